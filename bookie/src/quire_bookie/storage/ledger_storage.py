"""The facade of storage: entries and ledger states of one bookie, from memory to disk and back.

Owns the write lock, the flush worker and the order that no crash may break: entry logs synced, index committed, and
only then the half of the write cache given free and the mark moved. Delegates everything else. Never answers *no such
entry* without proof, and never lets a flush lose an entry: when space is short the entries stay readable in memory and
the journal keeps them.

    put -> write cache -> (swap: capture mark) -> Flush: entry logs -> index -> release -> marks.commit
    read -> write cache, both halves -> read cache -> index -> entry log, with read-ahead
"""

import asyncio
import logging
import struct
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Generic, Protocol, TypeVar

from quire_bookie.env.chance import Chance, SystemChance
from quire_bookie.env.disk import Disk
from quire_bookie.env.index_store import IndexStore
from quire_bookie.errors import (
    DamagedError,
    DiskFullError,
    NoSuchEntryError,
    NoSuchLedgerError,
    StorageError,
    TooManyRequestsError,
)
from quire_bookie.model import ENTRY_HEADER_BYTES, NO_ENTRY, Buffer, EntryId, LedgerId, Run
from quire_bookie.storage.block_index import known_top
from quire_bookie.storage.flush import Flush
from quire_bookie.storage.index_commits import IndexCommits
from quire_bookie.storage.index_keys import (
    BLOCK_SHIFT,
    STATES_END,
    STATES_START,
    block_key,
    block_of_key,
    last_block_key,
    ledger_of_state_key,
    state_key,
)
from quire_bookie.storage.ledger_states import LedgerInfo, LedgerStates, decode_state, encode_state, is_deleted
from quire_bookie.storage.log_format import RECORD_HEADER_BYTES
from quire_bookie.storage.log_reader import LogReader
from quire_bookie.storage.log_set import EntryLogs
from quire_bookie.storage.read_cache import ReadCache
from quire_bookie.storage.settings import StorageSettings, StorageStats
from quire_bookie.storage.write_cache import WriteCache

_log = logging.getLogger("quire.storage")
_LAC = struct.Struct(">q")
_LAC_OFFSET = 16
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


class LedgerStorage(Generic[M]):
    """See the module's text. The sync methods belong into the loop step that also enqueues to the journal."""

    def __init__(
        self, disk: Disk, index: IndexStore, directory: str, settings: StorageSettings, marks: Marks[M]
    ) -> None:
        self._disk = disk
        self._index = index
        self._directory = directory
        self._settings = settings
        self._marks = marks
        self.stats = StorageStats()
        self._cache = WriteCache(settings.write_cache_bytes)
        self._read_cache = ReadCache(settings.read_cache_bytes)
        self._states = LedgerStates(settings.ledger_states_max)
        self._write_lock = asyncio.Lock()
        self._wanted = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._swapped: tuple[dict[LedgerId, LedgerInfo], M] | None = None
        self._epoch = 0
        self._closing = False
        self._worker: asyncio.Task[None] | None = None
        self._steps: set[asyncio.Task[Any]] = set()
        self.failure: BaseException | None = None
        """Why nothing can be made durable any more; the process must restart and replay its journal."""
        self.on_failure: Callable[[BaseException], None] | None = None
        self.disk_full = False
        """The last flush ran out of space. It is tried again every `disk_full_retry_s` and by `flush`."""

    @classmethod
    async def open(
        cls,
        *,
        disk: Disk,
        index: IndexStore,
        directory: str,
        settings: StorageSettings,
        marks: Marks[M],
        chance: Chance | None = None,
    ) -> "LedgerStorage[M]":
        """Open or create the storage in `directory`; the caller locked it, and closes `index` afterwards.

        Raises StartupError when folder and index do not belong together, DamagedError when the index lost commits.
        """
        storage = cls(disk, index, directory, settings, marks)
        chance = chance or SystemChance()
        await disk.make_dirs(directory)
        storage._commits = await IndexCommits.open(disk, index, directory, chance)
        storage._logs = await EntryLogs.open(disk, index, directory, settings, storage.stats, storage._commits, chance)
        storage._reader = LogReader(index, storage._logs, storage._read_cache, settings.read_ahead_bytes, storage.stats)
        storage._worker = asyncio.get_running_loop().create_task(storage._work(), name="storage-flush")
        return storage

    _commits: IndexCommits
    _logs: EntryLogs
    _reader: LogReader

    @property
    def is_new(self) -> bool:
        """Whether index and folder were empty when they were opened."""
        return self._commits.is_new

    # ---- state, sync
    def cached_ledger(self, ledger: LedgerId) -> LedgerInfo | None:
        """The ledger if it is in memory; None says nothing: `load_ledger`."""
        return self._states.get(ledger)

    def create_ledger(self, ledger: LedgerId, master_key: bytes) -> LedgerInfo:
        """A ledger that `load_ledger` found absent, or the one created meanwhile: compare its master key."""
        return self._states.create(ledger, master_key)

    def fence(self, info: LedgerInfo) -> None:
        """No normal add from here on. Durable by the journal, and with the next flush."""
        if not info.fenced:
            info.fenced = True
            self._states.mark_dirty(info)

    def set_explicit_lac(self, info: LedgerInfo, packet: bytes, lac: EntryId) -> None:
        """Keep an explicit LAC unless a newer one is known."""
        if info.explicit_lac is None or lac > info.explicit_lac_entry:
            info.explicit_lac = bytes(packet)
            info.explicit_lac_entry = lac
            info.lac = max(info.lac, lac)
            self._states.mark_dirty(info)

    def put(self, info: LedgerInfo, run: Run) -> None:
        """Take a run into the write cache; the caller checked fence and key, and enqueues it to the journal.

        TooManyRequestsError: both halves are full; nothing was taken. NoSuchLedgerError: the ledger was deleted.
        """
        if info.deleted:
            raise NoSuchLedgerError(f"ledger {run.ledger} was deleted")
        cache, stats = self._cache, self.stats
        if not cache.has_room(run):
            if cache.flushing is not None:
                stats.puts_rejected += 1
                raise TooManyRequestsError("both halves of the write cache are full")
            self._swap()
            self._wanted.set()
        cache.active.add(info, run)
        count = len(run.entries)
        last = run.first + count - 1
        if run.first <= info.last_entry or info.last_unproven:
            info.rewrites += 1
            self._read_cache.forget(run.ledger, run.first, EntryId(last))
        if last > info.last_entry:
            info.last_entry = EntryId(last)
        if run.lac > info.lac:
            info.lac = run.lac
        stats.entries_put += count
        stats.bytes_put += run.size_bytes

    @property
    def write_cache_bytes(self) -> int:
        """What unflushed entries are charged for."""
        return self._cache.charged_bytes

    async def wait_for_room(self) -> None:
        """Until a put that was refused may succeed; for replay, which must not drop anything.

        Raises DiskFullError or StorageError when that will not happen by itself.
        """
        while self._cache.flushing is not None:
            if self.disk_full:
                raise DiskFullError(f"{self._directory}: no space to flush the write cache")
            self._check_alive()
            self._room.clear()
            await self._room.wait()

    # ---- state, async
    async def load_ledger(self, ledger: LedgerId) -> LedgerInfo | None:
        """The ledger; None proves that this bookie never had it. DamagedError when neither can be said."""
        while True:
            info = self._states.get(ledger)
            if info is not None:
                return info
            epoch = self._epoch
            value = await self._index.get(state_key(ledger))
            if value is not None:
                info = decode_state(ledger, value)
                if not info.deleted:
                    await self._load_last(info)
            if epoch != self._epoch:
                continue  # a flush came between: what was read may be older than what was evicted since
            if info is not None:
                return self._states.add_loaded(info)
            if self._states.get(ledger) is None:
                self._states.note_absent(ledger)
                return None

    async def _load_last(self, info: LedgerInfo) -> None:
        ledger = info.ledger_id
        try:
            pair = await self._index.last_at_or_below(last_block_key(ledger), block_key(ledger, 0))
        except DamagedError as error:
            _log.error("the last entry of ledger %d is not provable: %s", ledger, error)
            info.last_unproven = True
            return
        if pair is None:
            return
        top, info.last_unproven = known_top(*pair)
        info.last_entry = NO_ENTRY if top < 0 else EntryId(block_of_key(pair[0]) << BLOCK_SHIFT | top)
        if top < 0:
            return
        try:
            body = await self._reader.read(info, info.last_entry)
        except (NoSuchEntryError, DamagedError):
            return  # the LAC of a ledger is a lower bound; the entry itself answers with the damage when it is read
        if len(body) >= ENTRY_HEADER_BYTES:
            info.lac = EntryId(max(info.lac, _LAC.unpack_from(body, _LAC_OFFSET)[0]))

    async def ledgers(self) -> list[LedgerId]:
        """Every ledger held, ascending, without deleted ones."""
        found: set[LedgerId] = set()
        async for key, value in self._index.scan(STATES_START, STATES_END):
            ledger = ledger_of_state_key(key)
            if not is_deleted(ledger, value):
                found.add(ledger)
        for info in self._states.dirty_ledgers():
            (found.discard if info.deleted else found.add)(info.ledger_id)
        return sorted(found)

    async def delete_ledger(self, ledger: LedgerId) -> None:
        """Forget the entries of a ledger and leave a tombstone. A second time changes nothing."""
        await self._unbroken(self._delete(ledger))

    async def _delete(self, ledger: LedgerId) -> None:
        async with self._write_lock:
            self._check_alive()
            info = await self.load_ledger(ledger)
            if info is None or info.deleted:
                return
            info.deleted = info.fenced = True
            self._states.mark_dirty(info)
            self._read_cache.forget_ledger(ledger)
            await self._commits.commit([(state_key(ledger), encode_state(info))])
            await self._index.delete_range(block_key(ledger, 0), last_block_key(ledger) + b"\0")
            self.stats.ledgers_deleted += 1

    # ---- reads
    def read_cached(self, info: LedgerInfo, entry: EntryId) -> bytes | None:
        """The entry if it is in memory, without awaiting; None says nothing. DamagedError as `read`."""
        body = self._cache.get(info.ledger_id, entry)
        if body is not None:
            self.stats.write_cache_hits += 1
            return body
        body = self._read_cache.get(info.ledger_id, entry)
        if body is not None:
            self.stats.read_cache_hits += 1
        return body

    async def read(self, ledger: LedgerId, entry: EntryId) -> Buffer:
        """One stored entry; NO_ENTRY asks for the last one.

        NoSuchLedgerError and NoSuchEntryError are proofs; DamagedError when bytes or the proof are damaged.
        """
        info = await self._readable(ledger)
        if entry == NO_ENTRY:
            if info.last_unproven:
                raise DamagedError(self._directory, 0, f"the last entry of ledger {ledger} is not provable")
            entry = info.last_entry
        return await self._read(info, entry)

    async def read_many(self, ledger: LedgerId, first: EntryId, entries_max: int, bytes_max: int) -> list[Buffer]:
        """Consecutive entries from `first` on: at least one, at most `entries_max`, `bytes_max` together.

        Stops before the first that is absent or damaged. Errors are those of `read` for `first`.
        """
        info = await self._readable(ledger)
        found: list[Buffer] = []
        size = 0
        for entry in range(first, first + max(1, entries_max)):
            try:
                body = await self._read(info, EntryId(entry), bytes_max - size)
            except (NoSuchEntryError, DamagedError):
                if not found:
                    raise
                break
            if found and size + len(body) > bytes_max:
                break
            found.append(body)
            size += len(body)
            if size >= bytes_max:
                break
        return found

    async def _readable(self, ledger: LedgerId) -> LedgerInfo:
        info = self._states.get(ledger) or await self.load_ledger(ledger)
        if info is None or info.deleted:
            raise NoSuchLedgerError(f"ledger {ledger} is not held here")
        return info

    async def _read(self, info: LedgerInfo, entry: EntryId, expected_bytes: int = 0) -> bytes:
        self.stats.reads += 1
        try:
            body = self.read_cached(info, entry)
            if body is None:
                if entry < 0 or (entry > info.last_entry and not info.last_unproven):
                    raise NoSuchEntryError(f"ledger {info.ledger_id} has no entry {entry} here")
                body = await self._reader.read(info, entry, expected_bytes)
        except (NoSuchEntryError, DamagedError) as error:
            if info.deleted:  # meanwhile: what was missed went with it
                raise NoSuchLedgerError(f"ledger {info.ledger_id} was deleted") from error
            self.stats.reads_damaged += isinstance(error, DamagedError)
            raise
        if info.deleted:
            raise NoSuchLedgerError(f"ledger {info.ledger_id} was deleted")
        return body

    # ---- flush and space
    async def flush(self) -> None:
        """Make everything put before this call durable, and move the mark.

        DiskFullError: nothing was lost, retry after space was freed. StorageError, OSError: see `failure`.
        """
        await self._unbroken(self._flush_all())

    async def _flush_all(self) -> None:
        async with self._write_lock:
            self._check_alive()
            try:
                if self._swapped is not None:
                    await self._flush_swapped()
                # While its mark was moved the half was free already: a put may have swapped what this call is about.
                if self._swapped is None and (self._cache.active.entries or self._states.has_dirty):
                    self._swap()
                if self._swapped is not None:
                    await self._flush_swapped()
                else:
                    # What the journal got without a change here (a fence of a fenced ledger) must not pile up.
                    await self._move_mark(self._marks.capture())
            except DiskFullError:
                raise
            except (StorageError, OSError) as error:
                self._fail(error)
                raise

    async def drop_dead_logs(self) -> int:
        """Remove the sealed entry logs without a living ledger; returns the bytes freed."""
        return await self._unbroken(self._drop_dead_logs())

    async def _drop_dead_logs(self) -> int:
        async with self._write_lock:
            self._check_alive()
            return await self._logs.drop_dead(self._first_live, self._commits)

    async def _unbroken(self, step: Coroutine[None, None, T]) -> T:
        """Run to its end even when the caller is cancelled: a half done flush would leave its records uncounted."""
        task = asyncio.get_running_loop().create_task(step)
        self._steps.add(task)
        task.add_done_callback(self._steps.discard)
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Flush and release. What cannot be flushed any more stays in the journal."""
        self._closing = True
        self._wanted.set()
        if self._worker is not None:
            await self._worker
        try:
            if self.failure is None:
                await self.flush()
        except (StorageError, OSError) as error:
            _log.warning("closing without a flush, the journal keeps the entries: %s", error)
        finally:
            while self._steps:
                await asyncio.wait(self._steps)
            await self._logs.close()

    def _swap(self) -> None:
        """In one loop step: what is in the half, which states changed, and up to where the journal is covered."""
        self._cache.swap()
        self._swapped = (self._states.begin_flush(), self._marks.capture())

    async def _flush_swapped(self) -> None:
        half, swapped = self._cache.flushing, self._swapped
        assert half is not None and swapped is not None
        states, mark = swapped
        try:
            await self._check_space(half.payload_bytes + half.entries * RECORD_HEADER_BYTES)
            await Flush(half, states, self._logs).run(self._index, self._commits, self.stats)
        except DiskFullError as error:
            self.stats.flushes_failed += 1
            if not self.disk_full:
                _log.warning("flush refused, entries stay in memory and in the journal: %s", error)
            self.disk_full = True
            self._room.set()
            raise
        self._epoch += 1
        self._states.end_flush()
        self._swapped = None
        self._cache.release()
        self._room.set()
        await self._move_mark(mark)

    async def _move_mark(self, mark: M) -> None:
        """After the index commit. The half is free by then: without space for the mark nothing is written twice."""
        try:
            await self._marks.commit(mark)
        except DiskFullError as error:
            if not self.disk_full:
                _log.warning("no space to move the journal's mark, its files stay: %s", error)
            self.disk_full = True
            raise
        self.disk_full = False

    async def _check_space(self, needed_bytes: int) -> None:
        """Refuse before the last bytes are gone: deletions need them to give space back."""
        usage = await self._disk.usage(self._directory)
        if usage.free_bytes - needed_bytes < self._settings.reserved_bytes:
            raise DiskFullError(
                f"{self._directory}: {usage.free_bytes} bytes free; a flush of {needed_bytes} must leave "
                f"{self._settings.reserved_bytes}"
            )

    async def _first_live(self, ledgers: Sequence[LedgerId]) -> LedgerId | None:
        try:
            values = await self._index.get_many([state_key(ledger) for ledger in ledgers])
            for ledger, value in zip(ledgers, values, strict=True):
                if value is not None and not is_deleted(ledger, value):
                    return ledger
        except DamagedError:
            return ledgers[0]  # whether it lives is not known
        return None

    def _check_alive(self) -> None:
        if self.failure is not None:
            raise StorageError(f"{self._directory}: storage has failed: {self.failure}") from self.failure

    def _fail(self, error: BaseException) -> None:
        if self.failure is None:
            self.failure = error
            self._room.set()
            _log.error("storage in %s has failed: %s", self._directory, error, exc_info=error)
            if self.on_failure is not None:
                self.on_failure(error)

    async def _work(self) -> None:
        """Flush when a half is full, and every `flush_interval_s`."""
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
                self._fail(error)

    async def _flush_full_half(self) -> None:
        """What a put swapped; the active half goes on filling."""
        async with self._write_lock:
            self._check_alive()
            if self._swapped is not None:
                await self._flush_swapped()
