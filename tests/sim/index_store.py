"""A simulated index store that loses commits without a sync.

It lives on a `SimDisk`, under a path: a crash of the disk is a crash of the index, and its commits count as steps of
the same sequence.
"""

import bisect
import random
from collections.abc import AsyncIterator, Sequence

from quire_bookie.errors import DamagedError
from tests.sim.disk import SimCrashError, SimDisk, Survival


class _Image:
    """A sorted map, as the process sees it and as a crash leaves it."""

    def __init__(self, pairs: dict[bytes, bytes]) -> None:
        self.current = dict(pairs)
        self.durable = dict(pairs)
        self.keys = sorted(pairs)

    def survivor(self, survival: Survival, chance: random.Random) -> "_Image":
        """Unsynced commits survive all or not at all: the store's own log is in order."""
        keep = survival == "all" or (survival == "random" and chance.random() < 0.5)
        return _Image(self.current if keep else self.durable)


class SimIndexStore:
    """Implements the `IndexStore` port on a simulated disk."""

    def __init__(self, disk: SimDisk, path: str = "/index") -> None:
        self._disk = disk
        self._path = path
        image = disk.indexes.setdefault(path, _Image({}))
        assert isinstance(image, _Image)
        self._image = image
        self._damaged: set[bytes] = set()

    def damage(self, key: bytes) -> None:
        """Damage the page of a key: reads that need it fail from now on."""
        self._damaged.add(key)

    def _check(self, low: bytes, high: bytes) -> None:
        if any(low <= key <= high for key in self._damaged):
            raise DamagedError(self._path, 0, "simulated damage of an index page")

    async def get(self, key: bytes) -> bytes | None:
        """Return the value, or None."""
        await self._disk.pause()
        self._check(key, key)
        return self._image.current.get(key)

    async def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return one value or None per key."""
        await self._disk.pause()
        for key in keys:
            self._check(key, key)
        return [self._image.current.get(key) for key in keys]

    async def last_at_or_below(self, key: bytes, lower: bytes) -> tuple[bytes, bytes] | None:
        """Return the greatest pair in [lower, key]."""
        await self._disk.pause()
        self._check(lower, key)
        at = bisect.bisect_right(self._image.keys, key) - 1
        if at < 0 or self._image.keys[at] < lower:
            return None
        found = self._image.keys[at]
        return found, self._image.current[found]

    async def scan(self, start: bytes, end: bytes) -> AsyncIterator[tuple[bytes, bytes]]:
        """Yield the pairs in [start, end) of one snapshot."""
        await self._disk.pause()
        self._check(start, end)
        keys = self._image.keys
        found = [
            (key, self._image.current[key])
            for key in keys[bisect.bisect_left(keys, start) : bisect.bisect_left(keys, end)]
        ]
        for pair in found:
            yield pair

    async def commit(
        self, puts: Sequence[tuple[bytes, bytes]], deletes: Sequence[bytes] = (), *, sync: bool = True
    ) -> None:
        """Commit atomically; durable if synced."""
        await self._disk.pause()
        self._disk.reserve(sum(len(key) + len(value) for key, value in puts))
        if self._disk.step("commit", self._path):
            raise SimCrashError(self._path)
        self._image.current.update(puts)
        for key in deletes:
            self._image.current.pop(key, None)
        self._settle(sync)

    async def delete_range(self, start: bytes, end: bytes) -> None:
        """Delete [start, end); durable with the next synced commit."""
        await self._disk.pause()
        if self._disk.step("commit", self._path):
            raise SimCrashError(self._path)
        for key in [key for key in self._image.current if start <= key < end]:
            del self._image.current[key]
        self._settle(False)

    def _settle(self, sync: bool) -> None:
        self._image.keys = sorted(self._image.current)
        if sync:
            self._image.durable = dict(self._image.current)

    async def close(self) -> None:
        """Nothing to release."""
        await self._disk.pause()
