"""Decides when the write cache is flushed, runs the flushes, and handles a full disk.

Owns the storage's write lock, the swapped half until it is durable, and the order that no crash may break: entry logs
synced, index committed, and only then the half released and the journal's mark moved. Never loses an entry: without
space, the half stays readable in memory and in the journal. Any error other than *no space* is final.
"""

import asyncio
import contextlib
import logging
from bisect import bisect_right
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

from quire_bookie.env.index_store import IndexStore
from quire_bookie.env.space_reserve import SpaceReserve
from quire_bookie.errors import DiskFullError, StorageError
from quire_bookie.limits import DISK_FULL_SEAL_BYTES_MIN
from quire_bookie.model import LedgerId
from quire_bookie.settings.storage import StorageSettings
from quire_bookie.storage.flush import Flush
from quire_bookie.storage.flush_pace import FlushPace
from quire_bookie.storage.formats.log_format import RECORD_HEADER_BYTES
from quire_bookie.storage.index.index_commits import IndexCommits
from quire_bookie.storage.ledgers.ledger_states import LedgerInfo, LedgerStates
from quire_bookie.storage.logs.log_appender import LogAppender
from quire_bookie.storage.stats import StorageStats
from quire_bookie.storage.write_cache import CacheHalf, WriteCache

_log = logging.getLogger("quire.storage")
_INDEX_PART = 16
"""An index commit of a flush is smaller than this fraction (1/n) of its entries, or than the margin."""
_FLUSH_MARGIN_BYTES = 1024 * 1024
LEDGERS_PER_PART: Final = 8192
"""Ledgers in one commit. The commit holds the interpreter lock for about a microsecond a key, and the map of the
ledgers in an entry log is encoded in one step of the loop."""
_LEDGERS_PER_YIELD: Final = 2048
M = TypeVar("M")
T = TypeVar("T")


class Marks(Protocol[M]):
    """The journal positions that storage moves: everything before a committed one is durable here."""

    def capture(self) -> M:
        """Return the position up to which entries are in the swapped half. Called in the loop step of the swap."""
        ...

    async def commit(self, mark: M, /) -> None:
        """Move the mark; called once everything before `mark` is durable."""
        ...


class _Swapped(Generic[M]):
    """What a swap captured, and how far its flush is."""

    __slots__ = ("flushed", "mark", "needed_bytes", "states")

    def __init__(self, states: dict[LedgerId, LedgerInfo], mark: M, needed_bytes: int) -> None:
        self.states = states
        """The changed states that are not flushed yet."""
        self.mark = mark
        self.needed_bytes = needed_bytes
        """The records that are not flushed yet."""
        self.flushed = LedgerId(-1)
        """All ledgers up to this one are flushed."""

    def remaining(self, half: CacheHalf) -> list[LedgerId]:
        """Return the ledgers that are not flushed yet, ascending."""
        ledgers = sorted({*half.ledgers, *self.states})
        return ledgers[bisect_right(ledgers, self.flushed) :]


class FlushWorker(Generic[M]):
    """Flushes when a half is full, every `flush_interval_s`, and on request.

    A half of many ledgers is flushed in parts, each with its own commit, and is released with the last one.
    """

    def __init__(
        self,
        directory: str,
        index: IndexStore,
        commits: IndexCommits,
        appender: LogAppender,
        cache: WriteCache,
        states: LedgerStates,
        marks: Marks[M],
        settings: StorageSettings,
        stats: StorageStats,
    ) -> None:
        self._directory = directory
        self._index = index
        self._commits = commits
        self._appender = appender
        self._cache = cache
        self._states = states
        self.marks = marks
        self._settings = settings
        self._stats = stats
        self.write_lock = asyncio.Lock()
        """Held during appends to entry logs and commits to the index."""
        self.epoch = 0
        """Incremented by each flush: a state read from the index before may be older than one evicted since."""
        self.failure: BaseException | None = None
        self.on_failure: Callable[[BaseException], None] | None = None
        self.disk_full = False
        self.reserve: SpaceReserve | None = None
        """Space for flushes on a full disk."""
        self.on_flushed: Callable[[CacheHalf], None] | None = None
        """Called when a half is in the index, in the loop step in which it leaves memory."""
        self.on_space: Callable[[], None] | None = None
        """Called when a half was released, in the same loop step: refused puts may succeed."""
        self._wanted = asyncio.Event()
        self._space_freed = asyncio.Event()
        self._space_freed.set()
        self._swapped: _Swapped[M] | None = None
        self._closing = False
        self._steps: set[asyncio.Task[Any]] = set()
        self.task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the background task."""
        self.task = asyncio.get_running_loop().create_task(self._work(), name="storage-flush")

    def swap_full_half(self) -> None:
        """Swap the full active half with the free one, and request its flush."""
        self._swap()
        self._wanted.set()

    async def wait_for_space(self) -> None:
        """Wait until a refused put may succeed. DiskFullError or StorageError if intervention is needed."""
        while self._cache.flushing is not None:
            if self.disk_full:
                raise DiskFullError(f"{self._directory}: no space to flush the write cache")
            self.check_alive()
            self._space_freed.clear()
            await self._space_freed.wait()

    async def flush(self) -> None:
        """Make every earlier put durable, and move the mark. Raises the errors of `LedgerStorage.flush`."""
        await self.unbroken(self._flush_all())

    async def exclusive(self, step: Callable[[], Coroutine[None, None, T]]) -> T:
        """Run a change of logs and index under the write lock, to its end even if the caller is cancelled."""
        return await self.unbroken(self._locked(step))

    async def unbroken(self, step: Coroutine[None, None, T]) -> T:
        """Run to its end even if the caller is cancelled: an interrupted flush would leave uncounted records."""
        task = asyncio.get_running_loop().create_task(step)
        self._steps.add(task)
        task.add_done_callback(self._step_ended)
        return await asyncio.shield(task)

    def _step_ended(self, task: "asyncio.Task[Any]") -> None:
        """Retrieve the error of a step whose caller was cancelled, and can no longer receive it."""
        self._steps.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.debug("a change of the storage failed: %s", error)

    def check_alive(self) -> None:
        """Raise StorageError once the storage has failed."""
        if self.failure is not None:
            raise StorageError(f"{self._directory}: storage has failed: {self.failure}") from self.failure

    async def close(self) -> None:
        """Flush and stop. Entries that cannot be flushed stay in the journal."""
        self._closing = True
        self._wanted.set()
        if self.task is not None:
            await self.task
        try:
            if self.failure is None:
                await self.flush()
        except (StorageError, OSError) as error:
            _log.warning("closing without a flush; the journal keeps the entries: %s", error)
        finally:
            while self._steps:
                await asyncio.wait(self._steps)

    async def _locked(self, step: Callable[[], Coroutine[None, None, T]]) -> T:
        async with self.write_lock:
            self.check_alive()
            return await step()

    async def _flush_all(self) -> None:
        async with self.write_lock:
            self.check_alive()
            await self.flush_locked()

    async def flush_locked(self) -> None:
        """Flush as `flush` does. The caller holds the write lock."""
        with self._failing():
            if self._swapped is not None:
                await self._flush_swapped()
            # The half was released before its mark moved, so a put may already have swapped the entries of this call.
            if self._swapped is None and (self._cache.active.entries or self._states.has_dirty):
                self._swap()
            if self._swapped is not None:
                await self._flush_swapped()
            else:
                # Journal records without a change here (a fence of a fenced ledger) must not accumulate.
                await self._move_mark(self.marks.capture())

    async def seal_logs(self) -> bool:
        """Seal the logs that flushes write to, so that deleted entries in them can be reclaimed.

        Return whether there were any. Raises the errors of `flush`.
        """
        return await self.unbroken(self._locked(self._seal_logs))

    async def _seal_logs(self) -> bool:
        await self.flush_locked()
        if not self._appender.leave_log(DISK_FULL_SEAL_BYTES_MIN):
            return False
        with self._failing():
            await self._write(CacheHalf([]), {}, (), 0)
        return True

    async def write_state(self, info: LedgerInfo) -> None:
        """Make one state durable, in an entry log and in the index. The caller holds the write lock."""
        assert self.write_lock.locked()
        with self._failing():
            await self._write(CacheHalf([]), {info.ledger_id: info}, (info.ledger_id,), 0)

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """Fail the storage on an error of a write or sync, after which the file is unknown; not on a full disk."""
        try:
            yield
        except DiskFullError:
            raise
        except (StorageError, OSError) as error:
            self.fail(error)
            raise

    def _swap(self) -> None:
        """Capture, in one loop step, the half, the changed states and the journal position that they cover."""
        assert self._swapped is None, "a swapped half is flushed before the next swap"
        half = self._cache.swap()
        needed_bytes = half.payload_bytes + half.entries * RECORD_HEADER_BYTES
        self._swapped = _Swapped(self._states.begin_flush(), self.marks.capture(), needed_bytes)

    async def _flush_swapped(self) -> None:
        half, swapped = self._cache.flushing, self._swapped
        assert half is not None and swapped is not None
        assert self.write_lock.locked(), "one flush at a time"
        began_s = asyncio.get_running_loop().time()
        try:
            await self._flush_parts(half, swapped)
            self._stats.flush_seconds.observe(asyncio.get_running_loop().time() - began_s)
        except DiskFullError as error:
            self._stats.flushes_failed += 1
            if not self.disk_full:
                _log.warning("no space to flush; entries stay in memory and in the journal: %s", error)
            self.disk_full = True
            self._space_freed.set()
            raise
        assert self._cache.flushing is half and self._swapped is swapped, "what was flushed is released"
        self._swapped = None
        self._stats.flushes += 1
        if self.on_flushed is not None:
            self.on_flushed(half)
        released = half.ledgers
        self._cache.release()
        self._space_freed.set()
        if self.on_space is not None:
            self.on_space()
        await self._move_mark(swapped.mark)
        while released:
            # Freed at once, tens of thousands of objects would stall the event loop.
            for _ in range(min(len(released), _LEDGERS_PER_YIELD)):
                released.popitem()
            await asyncio.sleep(0)

    async def _flush_parts(self, half: CacheHalf, swapped: _Swapped[M]) -> None:
        """Flush what remains of a half, part by part. DiskFullError: the parts that are done stay done."""
        ledgers, pace = swapped.remaining(half), FlushPace(self._cache, half.entries)
        for start in range(0, max(1, len(ledgers)), LEDGERS_PER_PART):
            part = ledgers[start : start + LEDGERS_PER_PART]
            is_last = start + LEDGERS_PER_PART >= len(ledgers)
            written_bytes = await self._write(
                half, swapped.states, part, swapped.needed_bytes, is_last=is_last, pace=pace
            )
            self.epoch += 1
            self._states.end_flush(part)
            swapped.needed_bytes = max(0, swapped.needed_bytes - written_bytes)
            if part:
                swapped.flushed = part[-1]
        assert not swapped.states, "each changed state belongs to a part"

    async def _move_mark(self, mark: M) -> None:
        """Move the mark after the index commit. The half is already released, so a retry writes no entry twice."""
        try:
            await self.marks.commit(mark)
        except DiskFullError as error:
            if not self.disk_full:
                _log.warning("no space to move the journal's mark; its files are kept: %s", error)
            self.disk_full = True
            raise
        self.disk_full = False

    async def _write(
        self,
        half: CacheHalf,
        states: Mapping[LedgerId, LedgerInfo],
        ledgers: Sequence[LedgerId],
        needed_bytes: int,
        *,
        is_last: bool = True,
        pace: FlushPace | None = None,
    ) -> int:
        """Flush some ledgers; retry whenever a folder is found full while others, or the reserve, may have space.

        `needed_bytes`: the records of these ledgers and of later parts. Return the bytes of the written records.
        """
        age, reserve = self._commits.next_age, self.reserve
        pace = pace or FlushPace(self._cache, 0)
        await self._appender.begin(age)
        if reserve is not None and not self._appender.has_space(needed_bytes):
            await reserve.ensure(needed_bytes + needed_bytes // _INDEX_PART + _FLUSH_MARGIN_BYTES)
            await self._appender.begin(age, spend_floor=True)
        while True:
            flush = Flush(half, states, ledgers, self._appender, pace)
            try:
                self._appender.check_space(needed_bytes)
                await flush.run(self._index, self._commits, self._stats, is_last=is_last)
                return flush.record_bytes
            except DiskFullError:
                if flush.found_full_folder and self._appender.has_space(needed_bytes):
                    continue
                if reserve is None or not await reserve.release(_FLUSH_MARGIN_BYTES):
                    raise
                await self._appender.begin(age, spend_floor=True)

    def fail(self, error: BaseException) -> None:
        """Fail the storage: nothing can be made durable any more. Report it once."""
        if self.failure is None:
            self.failure = error
            self._space_freed.set()
            _log.error("storage in %s has failed: %s", self._directory, error, exc_info=error)
            if self.on_failure is not None:
                self.on_failure(error)

    async def _work(self) -> None:
        while not self._closing and self.failure is None:
            pause_s = self._settings.disk_full_retry_s if self.disk_full else self._settings.flush_interval_s
            try:
                async with asyncio.timeout(pause_s):
                    await self._wanted.wait()
            except TimeoutError:
                if self._closing:
                    return
            only_swapped = self._wanted.is_set()
            self._wanted.clear()
            try:
                await (self._flush_full_half() if only_swapped else self.flush())
            except DiskFullError as error:
                _log.debug("the flush will be retried: %s", error)
            except Exception as error:  # noqa: BLE001 - the task's root: without the task nothing is flushed again
                self.fail(error)

    async def _flush_full_half(self) -> None:
        """Flush the half that a put swapped; the active half continues to fill."""
        async with self.write_lock:
            self.check_alive()
            if self._swapped is not None:
                await self._flush_swapped()
