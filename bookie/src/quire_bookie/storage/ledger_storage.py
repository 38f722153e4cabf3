"""The facade of the storage: entries and ledger states of one bookie, in memory and on disk.

Owns the steps of a put and a read, and their order; delegates flushing to `flush_worker` and reads of the disk to
`log_reader`. Never answers *no such entry* without proof.

    put -> write cache -> (swap: capture mark) -> Flush: entry logs -> index -> release -> marks.commit
    read -> `entry_reads`: both halves of the write cache -> read cache -> index -> entry log, with read-ahead
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, TypeVar

from quire_bookie.env.chance import Chance, SystemChance
from quire_bookie.env.clock import SystemClock, WallClock
from quire_bookie.env.disk import Disk
from quire_bookie.env.index_store import IndexStore
from quire_bookie.env.space_reserve import SpaceReserve
from quire_bookie.errors import (
    DamagedError,
    DiskFullError,
    NoSuchLedgerError,
    TooManyRequestsError,
)
from quire_bookie.model import (
    NO_ENTRY,
    Buffer,
    EntryId,
    IdCounters,
    IdReport,
    LedgerId,
    Run,
    RunBatch,
)
from quire_bookie.settings.storage import StorageSettings
from quire_bookie.storage.deletion import Unchanged
from quire_bookie.storage.entry_ranges import EntryRange
from quire_bookie.storage.entry_reads import Stretch
from quire_bookie.storage.flush_worker import Marks
from quire_bookie.storage.formats.block_index import look_up
from quire_bookie.storage.formats.index_keys import (
    BLOCK_MASK,
    BLOCK_SHIFT,
    block_key,
)
from quire_bookie.storage.ledgers.ledger_states import LedgerInfo
from quire_bookie.storage.ledgers.tombstones import LEDGERS_PER_COMMIT
from quire_bookie.storage.logs.log_directories import LogDirectories
from quire_bookie.storage.logs.quarantine import QuarantinedLog
from quire_bookie.storage.parts import StorageParts, open_parts
from quire_bookie.storage.scrub import Damage, Pace, Scrub, ScrubbedLog, Verify
from quire_bookie.storage.write_cache import CacheHalf

_log = logging.getLogger("quire.storage")
M = TypeVar("M")


class LedgerStorage(Generic[M]):
    """Stores the entries and states of ledgers. Call sync methods in the loop step that enqueues to the journal."""

    def __init__(self, parts: StorageParts[M]) -> None:
        self._disk = parts.disk
        self._index = parts.index
        self._directory = parts.directory
        self._settings = parts.settings
        self.stats = parts.stats
        self._cache = parts.cache
        self._read_cache = parts.read_cache
        self._states = parts.states
        self._commits = parts.commits
        self._changes = parts.changes
        self._tombstones = parts.tombstones
        self._logs = parts.logs
        self._reader = parts.reader
        self._flushes = parts.flushes
        self._ledgers = parts.ledgers
        self._reads = parts.reads
        self._deletion = parts.deletion
        self.compaction = parts.compaction
        self.ledger_quarantine = parts.ledger_quarantine
        """Ledgers that the metadata no longer names and that are still held."""
        self.id_marks = parts.id_marks
        """The highest ledger ids ever held here, and the highest id counters ever read. May be read at any time."""
        self.cached_ledger = self._states.get  # bound once: called for every run
        self._reads.on_damage = self._read_failed
        self._flushes.on_flushed = self._forget_rewritten
        self.on_deleted: Callable[[LedgerId], None] | None = None
        """Called in the loop step in which a deletion takes effect, so that long polls of the ledger wake up."""
        self.on_damage: Callable[[LedgerId, EntryId, DamagedError], None] | None = None
        """Called when a read finds damage; entry -1: the record of which entries exist is damaged."""

    @classmethod
    async def open(
        cls,
        *,
        disk: Disk,
        index: IndexStore,
        directories: Sequence[str],
        settings: StorageSettings,
        marks: Marks[M],
        chance: Chance | None = None,
        clock: WallClock | None = None,
    ) -> "LedgerStorage[M]":
        """Open or create the storage in `directories`, which the caller has locked; the caller closes `index` later.

        Entry logs are in all directories; singletons are in the directory where they were found, or in the first.
        Raises StartupError if folders and index do not belong together, DamagedError if the index lost commits.
        """
        return cls(
            await open_parts(
                disk, index, directories, settings, marks, chance or SystemChance(), clock or SystemClock()
            )
        )

    @property
    def is_new(self) -> bool:
        """Whether index and folder were empty when opened."""
        return self._commits.is_new

    @property
    def directories(self) -> LogDirectories:
        """The folders of entry logs, with their last observed space."""
        return self._logs.directories

    @property
    def home(self) -> str:
        """The folder of the singletons: proof, quarantine list, requests of the administrator."""
        return self._directory

    @property
    def quarantined(self) -> list[QuarantinedLog]:
        """Entry logs that are missing or damaged as files. Their intact records are still read."""
        return self._logs.quarantine.logs()

    @property
    def failure(self) -> BaseException | None:
        """The error after which nothing can be made durable: the process must restart and replay its journal."""
        return self._flushes.failure

    @failure.setter
    def failure(self, error: BaseException | None) -> None:
        self._flushes.failure = error

    @property
    def on_failure(self) -> Callable[[BaseException], None] | None:
        """Called once, when `failure` is set."""
        return self._flushes.on_failure

    @on_failure.setter
    def on_failure(self, call: Callable[[BaseException], None] | None) -> None:
        self._flushes.on_failure = call

    @property
    def disk_full(self) -> bool:
        """Whether the last flush ran out of space. It is retried every `disk_full_retry_s` and by `flush`."""
        return self._flushes.disk_full

    @property
    def on_space(self) -> Callable[[], None] | None:
        """Called when a half of the write cache was released: puts that were refused may succeed."""
        return self._flushes.on_space

    @on_space.setter
    def on_space(self, call: Callable[[], None] | None) -> None:
        self._flushes.on_space = call

    # ---- state, sync
    cached_ledger: Callable[[LedgerId], LedgerInfo | None]
    """Return the ledger if it is in memory; None proves nothing, use `load_ledger`."""

    def create_ledger(self, ledger: LedgerId, master_key: bytes) -> LedgerInfo:
        """Create a ledger that `load_ledger`, `absent_of` or `is_unseen` found absent.

        Return one created since, if there is one: compare its master key.
        """
        info = self._states.create(ledger, master_key)
        self.id_marks.note((ledger,))
        self._bound_changed_states()
        return info

    def create_ledger_without_key(self, ledger: LedgerId) -> LedgerInfo:
        """Create a ledger whose key was lost in limbo. `restore_key`, or `adopt_key` from the metadata, follows."""
        self.id_marks.note((ledger,))
        return self._changes.create_without_key(ledger)

    def restore_key(self, info: LedgerInfo, master_key: bytes) -> None:
        """Set the key of a ledger that lost its own. Durable through the journal, then with the next flush."""
        self._changes.restore_key(info, master_key)

    def set_token(self, info: LedgerInfo, token: bytes) -> None:
        """Set the token of a ledger that has none. Durable through the journal, then with the next flush."""
        self._states.set_token(info, token)
        self._bound_changed_states()

    def fence(self, info: LedgerInfo) -> None:
        """Refuse normal adds from now on. Durable through the journal, then with the next flush."""
        if not info.fenced:
            info.fenced = True
            self._states.mark_dirty(info)
            self._bound_changed_states()

    def set_explicit_lac(self, info: LedgerInfo, packet: bytes, lac: EntryId) -> None:
        """Store the packet, replacing the previous one even if its LAC was higher. The known LAC never decreases."""
        self._states.set_explicit_lac(info, packet, lac)
        self._bound_changed_states()

    def _bound_changed_states(self) -> None:
        """Start a flush if many states changed: without entries, only the timer would start one."""
        if self._states.dirty_count >= self._settings.changed_states_max and self._cache.flushing is None:
            self._flushes.swap_full_half()

    def put(self, info: LedgerInfo, run: Run) -> None:
        """Add a run to the write cache; the caller has checked fence and key, and enqueues the run to the journal.

        TooManyRequestsError: both halves are full, nothing was added. NoSuchLedgerError: the ledger was deleted.
        """
        if info.deleted:
            raise NoSuchLedgerError(f"ledger {run.ledger} was deleted")
        cache, stats = self._cache, self.stats
        if not cache.has_space(run):
            self._swap_full_half()
        cache.active.add(info, run)
        count = len(run.entries)
        last = run.first + count - 1
        if run.first <= info.last_entry or info.last_unproven:
            self._note_rewritten(info, run.first, EntryId(last))
        if last > info.last_entry:
            info.last_entry = EntryId(last)
        if run.lac > info.lac:
            info.lac = run.lac
        stats.entries_put += count
        stats.bytes_put += run.size_bytes

    def put_batch(self, infos: Sequence[LedgerInfo], batch: RunBatch) -> None:
        """Add runs of several ledgers as `put` does, all or none; `infos` in the order of the rows."""
        if not self._cache.has_space(batch):
            self._swap_full_half()
        active = self._cache.active
        active.add_batch(infos, batch)
        for info, row in zip(infos, batch.rows(), strict=True):
            first, lac = row[1], row[3]
            if first <= info.last_entry or info.last_unproven:
                self._note_rewritten(info, first, EntryId(first + row[2] - 1))
            last = first + row[2] - 1
            if last > info.last_entry:
                info.last_entry = EntryId(last)
            if lac > info.lac:
                info.lac = lac
        self.stats.entries_put += batch.entries
        self.stats.bytes_put += batch.size_bytes

    def _swap_full_half(self) -> None:
        """Swap the halves and request a flush; TooManyRequestsError while the other half is being flushed."""
        if self._cache.flushing is not None:
            self.stats.puts_rejected += 1
            raise TooManyRequestsError("both halves of the write cache are full")
        self._flushes.swap_full_half()

    def _note_rewritten(self, info: LedgerInfo, first: EntryId, last: EntryId) -> None:
        """Invalidate cached reads of ids that were stored before."""
        info.rewrites += 1
        self._read_cache.forget(info.ledger_id, first, last)
        self._cache.active.note_rewritten(info.ledger_id, first, last)

    def _forget_rewritten(self, half: CacheHalf) -> None:
        """Invalidate older copies that a read-ahead may have cached: the half no longer shadows the read cache."""
        for ledger, (first, last) in half.rewritten.items():
            held = half.ledgers.get(ledger)
            if held is not None:  # not deleted meanwhile
                held.info.rewrites += 1
                self._read_cache.forget(ledger, first, last)

    @property
    def write_cache_bytes(self) -> int:
        """The memory charged for unflushed entries."""
        return self._cache.charged_bytes

    async def wait_for_space(self) -> None:
        """Wait until a refused put may succeed; for replay, which must not drop an entry.

        Raises DiskFullError or StorageError if intervention is needed.
        """
        await self._flushes.wait_for_space()

    # ---- state, async: see `stored_ledgers`
    async def load_ledger(self, ledger: LedgerId, covered: EntryId = NO_ENTRY) -> LedgerInfo | None:
        """Return the ledger; None proves that this bookie never had it. DamagedError if that cannot be determined.

        `covered`: the highest entry that the caller puts at once; see `StoredLedgers.load`.
        """
        return await self._ledgers.load(ledger, covered)

    async def absent_of(self, ledgers: Sequence[LedgerId]) -> set[LedgerId]:
        """Return those ledgers that `load_ledger` would prove absent, after one read for all; it may miss some."""
        return await self._ledgers.absent_of(ledgers)

    def is_unseen(self, ledger: LedgerId) -> bool:
        """Whether `load_ledger` would prove the ledger absent, as far as that is known without a read."""
        return self._ledgers.is_unseen(ledger)

    async def ledgers(self) -> list[LedgerId]:
        """Return every ledger held, ascending, without deleted ones; one with a damaged state counts as held."""
        return await self._ledgers.listed()

    async def delete_ledger(self, ledger: LedgerId) -> bool:
        """Delete the entries of a ledger and leave a tombstone. False: it is gone, or an administrator undeleted it."""
        return await self._flushes.exclusive(partial(self._delete, ledger, None))

    async def delete_copy(self, ledger: LedgerId, unchanged: Unchanged) -> bool:
        """Delete a copy of a ledger that the cluster still has; `revive_copy` can restore it.

        False: an entry was put since `unchanged`, or the ledger is in limbo; nothing was deleted.
        """
        return await self._flushes.exclusive(partial(self._delete, ledger, unchanged))

    async def _delete(self, ledger: LedgerId, unchanged: Unchanged | None) -> bool:
        if not await self._deletion.delete(ledger, self.on_deleted or (lambda _: None), unchanged):
            return False
        self.compaction.usages.note_deleted(ledger)
        self.stats.ledgers_deleted += 1
        try:
            await self.id_marks.cover()
        except DiskFullError as error:
            # The tombstone has the id, and expires only once there is space for the record.
            _log.warning("could not store the highest ledger id beside the entry logs: %s", error)
        return True

    async def revive_copy(self, ledger: LedgerId, master_key: bytes) -> bool:
        """Hold a ledger deleted by `delete_copy` again, durably, fenced and empty. False: it is not such a ledger.

        `master_key` is used only if the ledger's own was lost. Raises the errors of `flush`.
        """
        return await self._flushes.exclusive(partial(self._deletion.revive, ledger, master_key))

    async def expire_tombstones(self) -> int:
        """Remove tombstones older than `deleted_ledger_memory_s`; return how many."""
        old, undated = await self._tombstones.find()
        gone = 0
        for start in range(0, len(undated), LEDGERS_PER_COMMIT):
            part = undated[start : start + LEDGERS_PER_COMMIT]
            await self._flushes.exclusive(partial(self._tombstones.date, part))
        for start in range(0, len(old), LEDGERS_PER_COMMIT):
            part = old[start : start + LEDGERS_PER_COMMIT]
            gone += await self._flushes.exclusive(partial(self._forget_tombstones, part))
        self.stats.tombstones_expired += gone
        return gone

    async def _forget_tombstones(self, ledgers: list[LedgerId]) -> int:
        # Entries of new ledgers with these ids must never be copied to a log with a lower number than their tombstones:
        # a rebuild of the index reads the logs by number.
        self._logs.compacted.leave_log()
        await self.id_marks.cover()
        return await self._tombstones.forget(ledgers)

    # ---- limbo and lost keys: see `limbo` and `state_changes`
    @property
    def in_limbo(self) -> bool:
        """Whether ledgers may have lost entries here, so that a miss is unknown. Cleared by `end_limbo_of_all`."""
        return self._states.limbo.active

    def is_limbo(self, ledger: LedgerId) -> bool:
        """Return whether an absent ledger may have been lost; for a held one, `LedgerInfo.limbo`."""
        return self._ledgers.is_limbo(ledger)

    def id_report(self, ledger_known: bool | None) -> IdReport:
        """Return the report of ledger ids for clients."""
        marks = self.id_marks
        return IdReport(marks.short, marks.long, marks.seen, ledger_known)

    async def keep_counters(self, seen: IdCounters) -> None:
        """Record, durably, that these id counters or higher ones were read. DiskFullError, StorageError, OSError."""
        await self._flushes.exclusive(partial(self.id_marks.keep_seen, seen))

    async def enter_limbo(self, bounds: Sequence[LedgerId]) -> None:
        """Record, durably, that ledgers up to the highest of `bounds` in each id space may have lost entries here."""
        self.id_marks.note(bounds)
        await self._flushes.exclusive(partial(self._changes.enter_limbo, bounds))

    async def end_limbo(self, ledger: LedgerId) -> None:
        """End the limbo of a ledger whose entries were restored, durably. It stays fenced. NoSuchLedgerError."""
        await self._flushes.exclusive(partial(self._changes.end_limbo, ledger, self.load_ledger))

    async def end_limbo_of_all(self) -> None:
        """End the limbo of all ledgers, durably: every lost entry was restored."""
        await self._flushes.exclusive(self._changes.end_limbo_of_all)

    async def ledgers_without_key(self) -> list[LedgerId]:
        """Return the ledgers whose master key was lost with damaged entry logs; `adopt_key` takes it from metadata."""
        return await self._changes.ledgers_without_key()

    async def adopt_key(self, ledger: LedgerId, master_key: bytes) -> None:
        """Set the key of a ledger that lost its own, as its metadata implies it, durably. NoSuchLedgerError."""
        await self._flushes.exclusive(partial(self._changes.adopt_key, ledger, master_key, self.load_ledger))

    # ---- reads: see `entry_reads`
    def read_cached(self, info: LedgerInfo, entry: EntryId) -> bytes | None:
        """Return the entry if it is in memory, without awaiting; None proves nothing."""
        return self._reads.cached(info, entry)

    def stretch(self, info: LedgerInfo, entry: EntryId) -> Stretch | None:
        """Return contiguous entries in memory that include this one, as read from the disk; None proves nothing.

        Later puts invalidate it: use it before the next `await`.
        """
        return self._reads.stretch(info, entry)

    def note_served(self, entries: int) -> None:
        """Count entries that were served from stretches."""
        self.stats.read_cache_hits += entries

    async def read(self, ledger: LedgerId, entry: EntryId) -> Buffer:
        """Return one stored entry; NO_ENTRY requests the last one.

        NoSuchLedgerError and NoSuchEntryError are proofs; DamagedError if the entry or the proof is damaged,
        UnknownLedgerStateError if, in limbo, it is unknown whether the entry exists.
        """
        return await self._reads.one(ledger, entry)

    async def read_many(self, ledger: LedgerId, first: EntryId, entries_max: int, bytes_max: int) -> list[Buffer]:
        """Return consecutive entries from `first` on: at least one, at most `entries_max`, `bytes_max` together.

        Stops before the first entry that is absent or damaged. Raises the errors of `read` for `first`.
        """
        return await self._reads.many(ledger, first, entries_max, bytes_max)

    async def entry_ranges(self, ledger: LedgerId, *, known_only: bool = False) -> list[EntryRange]:
        """Return the ids held, as ascending inclusive runs. Raises the errors of `read`.

        `known_only`: of a ledger in limbo, return the known ids instead of raising UnknownLedgerStateError.
        """
        return await self._reads.ranges(ledger, known_only=known_only)

    def _read_failed(self, ledger: LedgerId, entry: EntryId, error: DamagedError) -> None:
        if self.on_damage is not None:
            self.on_damage(ledger, entry, error)

    def forget_read(self, ledger: LedgerId, first: EntryId, last: EntryId) -> None:
        """Drop these entries from the read cache, to read them from the disk: their bytes there may be damaged."""
        info = self._states.get(ledger)
        if info is not None:
            info.rewrites += 1  # a read in flight must not put them into the cache again
        self._read_cache.forget(ledger, first, last)

    # ---- scrub: see `scrub` and `server.upkeep.scrubbing`
    def new_scrub(self, report: Callable[[Damage], None], pace: Pace, verify: Verify | None = None) -> Scrub:
        """Return a scrub of all logs and the index, at the caller's pace. `report` receives each finding."""
        return Scrub(self._disk, self._index, report, pace, verify)

    def scrubbed_logs(self) -> dict[int, ScrubbedLog]:
        """Return the logs to scrub: all that a commit names, those in quarantine included."""
        return {state.log: ScrubbedLog.of(state, self._logs.path(state.log)) for state in self._logs.committed()}

    async def log_of(self, ledger: LedgerId, entry: EntryId) -> str | None:
        """Return the path of an entry's log; None if it is only in memory, or not held. Raises the errors of `read`."""
        key = block_key(ledger, entry >> BLOCK_SHIFT)
        place = look_up(key, await self._index.get(key), entry & BLOCK_MASK)
        return None if place is None else self._logs.path(place.log)

    def has_log(self, log: int) -> bool:
        """Return whether the index may point into this log."""
        return log in self._logs

    # ---- flush and space
    async def flush(self) -> None:
        """Make every earlier put durable, and move the mark.

        DiskFullError: no entry was lost, retry after space was freed. StorageError, OSError: see `failure`.
        """
        await self._flushes.flush()

    async def seal_logs(self) -> bool:
        """Seal the entry logs that flushes write to, so that garbage collection and compaction can process them.

        Return whether a log was large enough. Raises the errors of `flush`.
        """
        return await self._flushes.seal_logs()

    def use_reserve(self, reserve: SpaceReserve | None) -> None:
        """Set the reserve that flushes and compaction use on a full disk."""
        self._flushes.reserve = reserve
        self.compaction.reserve = reserve

    async def drop_dead_logs(self) -> int:
        """Remove the sealed entry logs without a live ledger; return the bytes freed."""
        return await self._flushes.exclusive(partial(self._logs.drop_dead, self._ledgers.first_live, self._commits))

    async def close(self) -> None:
        """Flush and release. Entries that cannot be flushed stay in the journal."""
        try:
            await self._flushes.close()
        finally:
            await self._reader.close()
            await self._logs.close()
