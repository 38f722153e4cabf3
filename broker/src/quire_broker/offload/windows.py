"""Range reads of objects through windows of a fixed size, with read-ahead, shared by all readers of a process.

`capacity_bytes` bounds cached and prefetched windows; a read that needs a window while too many are in flight waits.
Windows that several readers need are fetched once. The least recently used are evicted first.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from quire_bookie.dataclass import dataclass
from quire_bookie.env.background import Background
from quire_bookie.errors import QuireError
from quire_bookie.model import Buffer
from quire_broker.offload.settings import WindowSettings

Fetch = Callable[[int, int], Awaitable[Buffer]]


@dataclass(slots=True)
class WindowStats:
    """Counters since the start."""

    hits: int = 0
    fetched: int = 0
    fetched_bytes: int = 0
    failed: int = 0


class WindowCache:
    """The windows of one process. `close` cancels running fetches."""

    def __init__(self, settings: WindowSettings | None = None) -> None:
        self.settings = settings or WindowSettings()
        self.stats = WindowStats()
        self.size_bytes = 0
        self._kept: OrderedDict[tuple[int, int], memoryview] = OrderedDict()
        self._fetching: dict[tuple[int, int], asyncio.Task[memoryview]] = {}
        self._background = Background()
        self._most = max(1, self.settings.capacity_bytes // self.settings.window_bytes // 2)
        self._turns = asyncio.Semaphore(self._most)
        self._objects = 0

    def open(self, size_bytes: int, fetch: Fetch) -> "Windows":
        """Return the windows of one object; `fetch(start, end)` reads bytes of it."""
        self._objects += 1
        return Windows(self, self._objects, size_bytes, fetch)

    @property
    def fetching(self) -> int:
        """The number of windows being fetched."""
        return len(self._fetching)

    def kept(self, key: tuple[int, int]) -> memoryview | None:
        """Return a cached window."""
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
        return found

    def bring(self, key: tuple[int, int], fetch: Callable[[], Awaitable[Buffer]]) -> "asyncio.Task[memoryview]":
        """Fetch a window, once for all readers that need it. The caller must await it through a shield."""
        return self._fetching.get(key) or self._begin(key, fetch)

    def ahead(self, key: tuple[int, int], fetch: Callable[[], Awaitable[Buffer]]) -> None:
        """Start to fetch a window ahead of its use, if the budget allows."""
        if key not in self._kept and key not in self._fetching and len(self._fetching) < self._most:
            self._begin(key, fetch)

    def _begin(self, key: tuple[int, int], fetch: Callable[[], Awaitable[Buffer]]) -> "asyncio.Task[memoryview]":
        task = self._fetching[key] = self._background.spawn(self._fetch(key, fetch), f"read of window {key}")
        task.add_done_callback(lambda _: self._fetching.pop(key, None))
        return task

    async def _fetch(self, key: tuple[int, int], fetch: Callable[[], Awaitable[Buffer]]) -> memoryview:
        async with self._turns:
            try:
                found = memoryview(await fetch())
            except QuireError:
                self.stats.failed += 1
                raise
        self.stats.fetched += 1
        self.stats.fetched_bytes += len(found)
        self._kept[key] = found
        self.size_bytes += len(found)
        while self.size_bytes > self.settings.capacity_bytes and len(self._kept) > 1:
            _, gone = self._kept.popitem(last=False)
            self.size_bytes -= len(gone)
        return found

    def forget(self, number: int) -> None:
        """Drop the windows of one object."""
        for key in [key for key in self._kept if key[0] == number]:
            self.size_bytes -= len(self._kept.pop(key))

    def drop(self) -> None:
        """Drop all cached windows."""
        self._kept.clear()
        self.size_bytes = 0

    async def close(self) -> None:
        """Cancel running fetches and drop everything."""
        await self._background.close()
        self.drop()


class Windows:
    """The windows of one object, from its start."""

    def __init__(self, cache: WindowCache, number: int, size_bytes: int, fetch: Fetch) -> None:
        self.window_bytes = cache.settings.window_bytes
        self.size_bytes = size_bytes
        self._cache = cache
        self._number = number
        self._fetch = fetch
        self._last = -1

    async def window(self, index: int) -> memoryview:
        """Return the bytes from `index * window_bytes` on. Errors of the fetch."""
        cache = self._cache
        in_order = index in (self._last, self._last + 1)
        self._last = index
        key = (self._number, index)
        found = cache.kept(key)
        if found is not None:
            cache.stats.hits += 1
            self._look_ahead(index, in_order=in_order)
            return found
        task = cache.bring(key, lambda: self._range(index))
        self._look_ahead(index, in_order=in_order)
        return await asyncio.shield(task)  # cancelling one waiter must not cancel the fetch for the others

    def _look_ahead(self, index: int, *, in_order: bool) -> None:
        if not in_order:
            return
        end = -(-self.size_bytes // self.window_bytes)
        for next_one in range(index + 1, min(end, index + 1 + self._cache.settings.ahead)):
            self._cache.ahead((self._number, next_one), lambda at=next_one: self._range(at))  # type: ignore[misc]

    async def _range(self, index: int) -> Buffer:
        start = index * self.window_bytes
        return await self._fetch(start, min(start + self.window_bytes, self.size_bytes))

    def close(self) -> None:
        """Drop cached windows of the object."""
        self._cache.forget(self._number)
