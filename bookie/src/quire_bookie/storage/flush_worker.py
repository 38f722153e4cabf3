"""When the write cache is flushed, by whom, and what happens when there is no space for it.

Owns the storage's write lock, the swapped half until it is durable, and the order that no crash may break: entry logs
synced, index committed, and only then the half given free and the journal's mark moved. Never loses an entry: when
space is short the half stays readable in memory and the journal keeps it. An error that is not *no space* is final.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any, Generic, Protocol, TypeVar

from quire_bookie.env.index_store import IndexStore
from quire_bookie.env.space_reserve import SpaceReserve
from quire_bookie.errors import DiskFullError, StorageError
from quire_bookie.limits import DISK_FULL_SEAL_BYTES_MIN
from quire_bookie.model import LedgerId
from quire_bookie.storage.flush import Flush
from quire_bookie.storage.formats.log_format import RECORD_HEADER_BYTES
from quire_bookie.storage.index.index_commits import IndexCommits
from quire_bookie.storage.ledgers.ledger_states import LedgerInfo, LedgerStates
from quire_bookie.storage.logs.log_appender import LogAppender
from quire_bookie.storage.settings import StorageSettings, StorageStats
from quire_bookie.storage.write_cache import CacheHalf, WriteCache

_log = logging.getLogger("quire.storage")
_INDEX_PART = 16
"""What a flush commits to the index is less than this part of its entries, or of the margin."""
_FLUSH_MARGIN_BYTES = 1024 * 1024
M = TypeVar("M")
T = TypeVar("T")


class Marks(Protocol[M]):
    """The journal positions that storage moves: everything before a committed one is durable here."""

    def capture(self) -> M:
        """Called at a cache swap, in the same loop step: the position up to which entries are in the swapped half."""
        ...

    async def commit(self, mark: M, /) -> None:
        """Called once everything before `mark` is durable."""
        ...


class FlushWorker(Generic[M]):
    """Flushes when a half is full, every `flush_interval_s`, and when asked."""

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
        """Held by whoever appends to entry logs or commits to the index."""
        self.epoch = 0
        """Grows with each flush: what was read from the index before may be older than what was evicted since."""
        self.failure: BaseException | None = None
        self.on_failure: Callable[[BaseException], None] | None = None
        self.disk_full = False
        self.reserve: SpaceReserve | None = None
        """Where a flush finds space on a full disk."""
        self.on_flushed: Callable[[CacheHalf], None] | None = None
        """Called when a half is in the index, in the step in which it leaves the memory."""
        self._wanted = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._swapped: tuple[dict[LedgerId, LedgerInfo], M] | None = None
        self._closing = False
        self._steps: set[asyncio.Task[Any]] = set()
        self.task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to flush by itself."""
        self.task = asyncio.get_running_loop().create_task(self._work(), name="storage-flush")

    def swap_full_half(self) -> None:
        """The active half is full and the other free: give it to the flush."""
        self._swap()
        self._wanted.set()

    async def wait_for_room(self) -> None:
        """Until a put that was refused may succeed. DiskFullError or StorageError when it will not by itself."""
        while self._cache.flushing is not None:
            if self.disk_full:
                raise DiskFullError(f"{self._directory}: no space to flush the write cache")
            self.check_alive()
            self._room.clear()
            await self._room.wait()

    async def flush(self) -> None:
        """Make everything put before this call durable, and move the mark. Errors as `LedgerStorage.flush`."""
        await self.unbroken(self._flush_all())

    async def exclusive(self, step: Callable[[], Coroutine[None, None, T]]) -> T:
        """Run a change of logs and index under the write lock, to its end even when the caller is cancelled."""
        return await self.unbroken(self._locked(step))

    async def unbroken(self, step: Coroutine[None, None, T]) -> T:
        """Run to its end even when the caller is cancelled: a half done flush would leave its records uncounted."""
        task = asyncio.get_running_loop().create_task(step)
        self._steps.add(task)
        task.add_done_callback(self._step_ended)
        return await asyncio.shield(task)

    def _step_ended(self, task: "asyncio.Task[Any]") -> None:
        """The caller got the error, unless it was cancelled: then nobody is left who could be told."""
        self._steps.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.debug("a change of the storage failed: %s", error)

    def check_alive(self) -> None:
        """StorageError once something failed for good."""
        if self.failure is not None:
            raise StorageError(f"{self._directory}: storage has failed: {self.failure}") from self.failure

    async def close(self) -> None:
        """Flush and end. What cannot be flushed any more stays in the journal."""
        self._closing = True
        self._wanted.set()
        if self.task is not None:
            await self.task
        try:
            if self.failure is None:
                await self.flush()
        except (StorageError, OSError) as error:
            _log.warning("closing without a flush, the journal keeps the entries: %s", error)
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
        """As `flush`, for the holder of the write lock."""
        with self._failing():
            if self._swapped is not None:
                await self._flush_swapped()
            # While its mark was moved the half was free already: a put may have swapped what this call is about.
            if self._swapped is None and (self._cache.active.entries or self._states.has_dirty):
                self._swap()
            if self._swapped is not None:
                await self._flush_swapped()
            else:
                # What the journal got without a change here (a fence of a fenced ledger) must not pile up.
                await self._move_mark(self.marks.capture())

    async def seal_logs(self) -> bool:
        """Seal the logs that flushes write to, so that deleted entries in them can be reclaimed.

        Return whether there were any. Errors as `flush`.
        """
        return await self.unbroken(self._locked(self._seal_logs))

    async def _seal_logs(self) -> bool:
        await self.flush_locked()
        if not self._appender.leave_log(DISK_FULL_SEAL_BYTES_MIN):
            return False
        with self._failing():
            await self._write(CacheHalf([]), {})
        return True

    async def write_state(self, info: LedgerInfo) -> None:
        """Make one state durable, in an entry log and in the index, for the holder of the write lock. As `flush`."""
        with self._failing():
            await self._write(CacheHalf([]), {info.ledger_id: info})

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """End the storage with an error of a write or a sync: after one, the file is unknown. Not when full."""
        try:
            yield
        except DiskFullError:
            raise
        except (StorageError, OSError) as error:
            self.fail(error)
            raise

    def _swap(self) -> None:
        """In one loop step: what is in the half, which states changed, and up to where the journal is covered."""
        self._cache.swap()
        self._swapped = (self._states.begin_flush(), self.marks.capture())

    async def _flush_swapped(self) -> None:
        half, swapped = self._cache.flushing, self._swapped
        assert half is not None and swapped is not None
        states, mark = swapped
        began_s = asyncio.get_running_loop().time()
        try:
            await self._write(half, states)
            self._stats.flush_seconds.observe(asyncio.get_running_loop().time() - began_s)
        except DiskFullError as error:
            self._stats.flushes_failed += 1
            if not self.disk_full:
                _log.warning("flush refused, entries stay in memory and in the journal: %s", error)
            self.disk_full = True
            self._room.set()
            raise
        self.epoch += 1
        self._states.end_flush()
        self._swapped = None
        if self.on_flushed is not None:
            self.on_flushed(half)
        self._cache.release()
        self._room.set()
        await self._move_mark(mark)

    async def _move_mark(self, mark: M) -> None:
        """After the index commit. The half is free by then: without space for the mark nothing is written twice."""
        try:
            await self.marks.commit(mark)
        except DiskFullError as error:
            if not self.disk_full:
                _log.warning("no space to move the journal's mark, its files stay: %s", error)
            self.disk_full = True
            raise
        self.disk_full = False

    async def _write(self, half: CacheHalf, states: Mapping[LedgerId, LedgerInfo]) -> None:
        """Flush, as often as a folder turns out full on the way and others, or the reserve, may have the room."""
        needed_bytes = half.payload_bytes + half.entries * RECORD_HEADER_BYTES
        age, reserve = self._commits.next_age, self.reserve
        await self._appender.begin(age)
        if reserve is not None and not self._appender.has_room(needed_bytes):
            await reserve.ensure(needed_bytes + needed_bytes // _INDEX_PART + _FLUSH_MARGIN_BYTES)
            await self._appender.begin(age, spend_floor=True)
        while True:
            flush = Flush(half, states, self._appender)
            try:
                self._appender.check_room(needed_bytes)
                await flush.run(self._index, self._commits, self._stats)
                return
            except DiskFullError:
                if flush.found_full_folder and self._appender.has_room(needed_bytes):
                    continue
                if reserve is None or not await reserve.release(_FLUSH_MARGIN_BYTES):
                    raise
                await self._appender.begin(age, spend_floor=True)

    def fail(self, error: BaseException) -> None:
        """Nothing can be made durable any more; says so once."""
        if self.failure is None:
            self.failure = error
            self._room.set()
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
                _log.debug("the flush will be tried again: %s", error)
            except Exception as error:  # noqa: BLE001 - the task's root: without it nothing is ever flushed again
                self.fail(error)

    async def _flush_full_half(self) -> None:
        """What a put swapped; the active half goes on filling."""
        async with self.write_lock:
            self.check_alive()
            if self._swapped is not None:
                await self._flush_swapped()
