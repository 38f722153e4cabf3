"""Deletes ledgers, and revives those that were deleted as superfluous copies. Owns the order of both.

    delete   memory (no request sees it any more), then the tombstone in the index, with the end of its quarantine in
             the same commit, then its unflushed entries and its blocks
    revive   a whole flush, which moves the journal's mark past every record from before the deletion; then the blocks
             that a crash left; then the state, into an entry log and into the index; then memory

A revival is therefore durable before the first entry is accepted: replay and a rebuild of the index find the ledger
held and fenced. A ledger that is gone from the cluster is never revived. A failed revival leaves the tombstone.
"""

from collections.abc import Callable, Coroutine
from typing import Any

from quire_bookie.dataclass import dataclass
from quire_bookie.errors import DiskFullError
from quire_bookie.model import EntryId, LedgerId
from quire_bookie.storage.flush_worker import FlushWorker
from quire_bookie.storage.formats.index_keys import state_key
from quire_bookie.storage.index.index_commits import IndexCommits
from quire_bookie.storage.ledger_quarantine import LedgerQuarantine
from quire_bookie.storage.ledgers.ledger_states import LedgerInfo, LedgerStates, encode_state, revived_state
from quire_bookie.storage.ledgers.tombstones import Tombstones
from quire_bookie.storage.read_cache import ReadCache
from quire_bookie.storage.write_cache import WriteCache

LoadLedger = Callable[[LedgerId], Coroutine[Any, Any, LedgerInfo | None]]


@dataclass(frozen=True, slots=True)
class Unchanged:
    """A snapshot of a ledger, to detect whether an entry was put since."""

    info: LedgerInfo
    last_entry: EntryId
    rewrites: int

    @classmethod
    def of(cls, info: LedgerInfo) -> "Unchanged":
        """Take the snapshot now."""
        return cls(info, info.last_entry, info.rewrites)

    @property
    def still(self) -> bool:
        """Whether no entry was put since."""
        return (self.info.last_entry, self.info.rewrites) == (self.last_entry, self.rewrites)


class Deletion:
    """Deletes and revives ledgers of one storage. The caller holds the write lock."""

    def __init__(
        self,
        commits: IndexCommits,
        states: LedgerStates,
        tombstones: Tombstones,
        cache: WriteCache,
        read_cache: ReadCache,
        flushes: FlushWorker[Any],
        quarantine: LedgerQuarantine,
        load: LoadLedger,
    ) -> None:
        self._quarantine = quarantine
        self._commits = commits
        self._states = states
        self._tombstones = tombstones
        self._cache = cache
        self._read_cache = read_cache
        self._flushes = flushes
        self._load = load

    async def delete(
        self, ledger: LedgerId, on_deleted: Callable[[LedgerId], None], unchanged: Unchanged | None = None
    ) -> bool:
        """Forget the entries and leave a tombstone; `on_deleted` is called in the step in which this takes effect.

        `unchanged`: the ledger is a superfluous copy, deleted only if no entry was put since. False: nothing was
        deleted, for example because an administrator undeleted the ledger first.
        DiskFullError: the ledger is held as before, but fenced. StorageError.
        """
        assert self._flushes.write_lock.locked()
        await self._quarantine.load()
        info = await self._load(ledger)
        if info is None or info.deleted or self._quarantine.is_kept(ledger):
            return False
        if unchanged is not None and (info is not unchanged.info or not unchanged.still or info.limbo):
            return False
        in_limbo = info.limbo
        info.deleted = info.fenced = True
        info.superfluous = unchanged is not None
        info.limbo = False
        info.rewrites += 1  # a read in flight must not put its result into the cache
        self._states.mark_dirty(info)
        self._read_cache.forget_ledger(ledger)
        on_deleted(ledger)
        try:
            puts = [(state_key(ledger), encode_state(info)), self._tombstones.new(ledger)]
            await self._commits.commit(puts, self._quarantine.keys_of(ledger))
        except DiskFullError:
            # The index is unchanged. The fence stays: a request may have observed it.
            info.deleted = info.superfluous = False
            info.limbo = in_limbo
            raise
        self._quarantine.forget(ledger)
        self._cache.forget_ledger(ledger)
        await self._tombstones.drop_blocks(ledger)
        return True

    async def revive(self, ledger: LedgerId, master_key: bytes) -> bool:
        """Hold a deleted superfluous copy again, durably, fenced and empty. False: the ledger is not such a copy.

        DiskFullError: nothing changed. StorageError, OSError: storage has failed.
        """
        info = await self._load(ledger)
        if info is None or not (info.deleted and info.superfluous):
            return False
        await self._flushes.flush_locked()
        await self._tombstones.drop_blocks(ledger)
        assert self._flushes.write_lock.locked()
        revived = revived_state(info, master_key)
        await self._flushes.write_state(revived)
        self._states.revive(info, revived)
        return True
