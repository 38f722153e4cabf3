"""The components of one storage, built in the order of their dependencies."""

from collections.abc import Sequence
from typing import Generic, TypeVar

from quire_bookie.dataclass import dataclass
from quire_bookie.env.chance import Chance
from quire_bookie.env.clock import WallClock
from quire_bookie.env.disk import Disk
from quire_bookie.env.index_store import IndexStore
from quire_bookie.settings.storage import StorageSettings
from quire_bookie.storage.compaction import Compaction
from quire_bookie.storage.deletion import Deletion
from quire_bookie.storage.entry_reads import EntryReads
from quire_bookie.storage.flush_worker import FlushWorker, Marks
from quire_bookie.storage.index.index_commits import IndexCommits
from quire_bookie.storage.ledger_quarantine import LedgerQuarantine
from quire_bookie.storage.ledgers.id_marks import IdMarks
from quire_bookie.storage.ledgers.ledger_states import LedgerStates
from quire_bookie.storage.ledgers.state_changes import StateChanges
from quire_bookie.storage.ledgers.tombstones import Tombstones
from quire_bookie.storage.logs.log_directories import LogDirectories, home_of
from quire_bookie.storage.logs.log_reader import LogReader
from quire_bookie.storage.logs.log_set import EntryLogs
from quire_bookie.storage.read_cache import ReadCache
from quire_bookie.storage.stats import StorageStats
from quire_bookie.storage.stored_ledgers import StoredLedgers
from quire_bookie.storage.write_cache import WriteCache

M = TypeVar("M")


@dataclass(frozen=True, slots=True)
class StorageParts(Generic[M]):
    """The components to which `LedgerStorage` delegates."""

    disk: Disk
    index: IndexStore
    directory: str
    settings: StorageSettings
    stats: StorageStats
    cache: WriteCache
    read_cache: ReadCache
    states: LedgerStates
    commits: IndexCommits
    changes: StateChanges
    id_marks: IdMarks
    tombstones: Tombstones
    logs: EntryLogs
    reader: LogReader
    flushes: FlushWorker[M]
    ledgers: StoredLedgers
    reads: EntryReads
    ledger_quarantine: LedgerQuarantine
    deletion: Deletion
    compaction: Compaction


async def open_parts(
    disk: Disk,
    index: IndexStore,
    directories: Sequence[str],
    settings: StorageSettings,
    marks: Marks[M],
    chance: Chance,
    clock: WallClock,
) -> StorageParts[M]:
    """Open or create the components and start the flush task. Arguments and errors as in `LedgerStorage.open`."""
    for path in directories:
        await disk.make_dirs(path)
    home = await home_of(disk, directories)
    stats = StorageStats()
    cache, read_cache = WriteCache(settings.write_cache_bytes), ReadCache(settings.read_cache_bytes)
    states = LedgerStates(settings.ledger_states_max)
    log_directories = LogDirectories(disk, directories, settings.reserved_bytes)
    commits = await IndexCommits.open(disk, index, home, chance)
    changes = StateChanges(disk, index, home, commits, states, chance)
    await changes.restore_limbo()
    id_marks = await IdMarks.load(disk, index, home, commits)
    tombstones = Tombstones(index, commits, states, clock, int(settings.deleted_ledger_memory_s * 1000))
    logs = await EntryLogs.open(disk, index, log_directories, home, settings, stats, commits, chance, clock)
    reader = LogReader(index, logs, read_cache, settings.read_ahead_bytes, settings.write_cache_bytes, stats)
    flushes = FlushWorker(home, index, commits, logs.flushed, cache, states, marks, settings, stats)
    ledgers = StoredLedgers(index, commits, states, reader, flushes)
    reads = EntryReads(home, index, cache, read_cache, states, reader, stats, ledgers.load, ledgers.is_limbo)
    quarantine = LedgerQuarantine(index, commits, states, flushes, clock, ledgers.load)
    await quarantine.open()
    deletion = Deletion(commits, states, tombstones, cache, read_cache, flushes, quarantine, ledgers.load)
    flushes.start()
    compaction = Compaction(index, commits, logs, flushes)
    return StorageParts(
        disk,
        index,
        home,
        settings,
        stats,
        cache,
        read_cache,
        states,
        commits,
        changes,
        id_marks,
        tombstones,
        logs,
        reader,
        flushes,
        ledgers,
        reads,
        quarantine,
        deletion,
        compaction,
    )
