"""Owns the buckets of a broker: opened once per target, shared by all its topics, with one memory limit for reads.

Knows segments and object stores, but no managed ledger. Credentials come from the process's environment.
"""

import asyncio
from collections.abc import Callable, Mapping

from quire_bookie.dataclass import dataclass
from quire_bookie.errors import ObjectStoreError
from quire_bookie.model import LedgerId
from quire_bookie.object_store.store import ObjectStore
from quire_broker.errors import SegmentDamagedError
from quire_broker.offload.segment_reader import SegmentReader
from quire_broker.offload.segment_writer import delete_segment
from quire_broker.offload.settings import TierSettings
from quire_broker.offload.target import OffloadTarget, open_target
from quire_broker.offload.windows import WindowCache

_PLACES_MAX = 64


@dataclass(slots=True)
class TierStats:
    """Counters since the start."""

    offloaded_ledgers: int = 0
    offloaded_bytes: int = 0
    offload_failures: int = 0
    reads: int = 0
    read_failures: int = 0
    fallbacks: int = 0
    """Reads that another copy answered, because the preferred one failed."""
    bookie_copies_deleted: int = 0
    segments_deleted: int = 0


class Tier:
    """Opens, checks and deletes segments for all topics of a broker. `turns`: held by each running offload."""

    def __init__(
        self,
        settings: TierSettings | None = None,
        environment: Mapping[str, str] | None = None,
        opened: Callable[[OffloadTarget], ObjectStore] | None = None,
    ) -> None:
        """`opened` returns the object store of a target; by default `open_target`."""
        self.settings = settings or TierSettings()
        self.stats = TierStats()
        self.windows = WindowCache(self.settings.windows)
        self.turns = asyncio.Semaphore(self.settings.at_once)
        self._open = opened or (lambda target: open_target(target, environment or {}))
        self._places: dict[OffloadTarget, ObjectStore] = {}

    def objects(self, target: OffloadTarget) -> ObjectStore:
        """Return the object store of a target. ConfigError."""
        found = self._places.get(target)
        if found is None:
            while len(self._places) >= _PLACES_MAX:
                del self._places[next(iter(self._places))]
            found = self._places[target] = self._open(target)
        return found

    async def open(self, ledger_id: int, uuid: str, driver: str, properties: Mapping[str, str]) -> SegmentReader:
        """Open a segment for reading. SegmentMissingError, SegmentDamagedError, ObjectStoreError, ConfigError."""
        objects = self.objects(OffloadTarget.from_properties(driver, properties))
        try:
            async with asyncio.timeout(self.settings.read_timeout_s):
                return await SegmentReader.open(objects, LedgerId(ledger_id), uuid, self.windows)
        except TimeoutError:
            raise ObjectStoreError(f"{objects.url}: no answer for {self.settings.read_timeout_s:.0f} s") from None

    async def check(
        self, ledger_id: int, uuid: str, driver: str, properties: Mapping[str, str], counts: tuple[int, int]
    ) -> None:
        """Check that both objects exist with these entries and bytes, by index and ends. Errors as in `open`.

        This is enough: the writer has already read everything back.
        """
        reader = await self.open(ledger_id, uuid, driver, properties)
        try:
            found = (reader.last_add_confirmed + 1, reader.length)
            if found != counts:
                raise SegmentDamagedError(
                    f"{uuid} holds {found[0]} entries of {found[1]} bytes; ledger {ledger_id} has {counts[0]} of "
                    f"{counts[1]}"
                )
            await reader.check_ends()
        finally:
            await reader.close()

    async def delete(self, ledger_id: int, uuid: str, driver: str, properties: Mapping[str, str]) -> None:
        """Remove both objects. ObjectStoreError, ConfigError."""
        await delete_segment(self.objects(OffloadTarget.from_properties(driver, properties)), ledger_id, uuid)
        self.stats.segments_deleted += 1

    async def close(self) -> None:
        """Cancel running reads."""
        await self.windows.close()
