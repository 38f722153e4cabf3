"""Deletes ledgers that the cluster no longer has. Owns the rules that make a deletion certain; the storage deletes.

The rules, each of which prevents a loss of live data:
* the local set is captured before the listing, so a ledger created during it is not a candidate;
* the listing reads a single revision completely, or the round ends;
* a ledger must be missing in two consecutive rounds; a failed round restarts the count;
* when too many ledgers are missing at once, the fuse blows (`gc_fuse`) and nothing is deleted until an administrator
  resets it;
* while the metadata is in doubt (`collection_doubts`: a hold, a lost session, a foreign store, an open restoration,
  metadata that went back in time: `metadata_doubt`) the round ends;
* missing ledgers first go into quarantine (`storage.ledger_quarantine`), whole and readable, for `keep_s`. Only time
  between two rounds without doubt counts. A ledger leaves quarantine by itself when the metadata names it again;
* before a ledger enters quarantine, and again before it is deleted, all doubts are checked and its node is read,
  linearizable.
Copies of existing ledgers that no ensemble names any more have their own rules (`over_replicated`). They need no
quarantine: the node exists and omits the bookie, which a loss of nodes cannot cause. Metadata that went back in time
can, so the doubts are checked for these copies, too.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import field
from typing import Protocol

from quire_bookie.dataclass import dataclass
from quire_bookie.errors import DamagedError, MetadataError, StorageError
from quire_bookie.limits import GC_QUARANTINE_LEDGERS_MAX
from quire_bookie.metadata.ledgers import LedgerNodes
from quire_bookie.metadata.store import MetadataStore
from quire_bookie.metrics import LatencyHistogram
from quire_bookie.model import LedgerId
from quire_bookie.server.upkeep.collection_doubts import CollectionDoubts, CollectionHeldError
from quire_bookie.server.upkeep.gc_fuse import GcFuse
from quire_bookie.server.upkeep.over_replicated import OverReplicatedCopies
from quire_bookie.server.upkeep.quarantine_rules import due, released
from quire_bookie.settings.collection import GarbageCollectionSettings
from quire_bookie.storage.ledger_quarantine import QuarantinedLedger

_log = logging.getLogger("quire.server.garbage_collection")


class Quarantine(Protocol):
    """The methods of `storage.ledger_quarantine` that garbage collection uses."""

    clock_ms: int

    async def all(self) -> list[QuarantinedLedger]:
        """Return every record."""
        ...

    async def put(self, ledger: LedgerId, reason: str, /) -> bool:
        """Put a ledger into quarantine. False: it is not stored, or already has a record."""
        ...

    async def release(self, ledgers: Iterable[LedgerId], /) -> None:
        """Remove the records of these ledgers."""
        ...

    async def advance(self, elapsed_ms: int, /) -> None:
        """Advance the clock of quarantine by time without doubt."""
        ...


class CollectableStorage(Protocol):
    """The methods of the ledger storage that garbage collection uses."""

    @property
    def ledger_quarantine(self) -> Quarantine:
        """The ledgers in quarantine."""
        ...

    async def ledgers(self) -> list[LedgerId]:
        """Return every stored ledger."""
        ...

    async def delete_ledger(self, ledger_id: LedgerId, /) -> bool:
        """Delete a ledger. False: it is gone, or was undeleted meanwhile."""
        ...

    async def expire_tombstones(self) -> int:
        """Remove old tombstones; return their number."""
        ...

    async def drop_dead_logs(self) -> int:
        """Remove entry logs without a live ledger; return the bytes freed."""
        ...


@dataclass(slots=True)
class GarbageCollectionStats:
    """Holds counters for the metrics collector."""

    rounds: int = 0
    completed_rounds: int = 0
    ledgers_held: int = 0
    ledgers_quarantined: int = 0
    ledgers_returned: int = 0
    """Ledgers that left quarantine because the metadata named them again."""
    ledgers_deleted: int = 0
    copies_deleted: int = 0
    freed_bytes: int = 0
    fuse_blown: int = 0
    """1 while the fuse is blown."""
    held_back: int = 0
    """1 while a hold stops deletions."""
    in_doubt: int = 0
    """1 while the last round did not trust the metadata, or could not read it."""
    round_seconds: LatencyHistogram = field(default_factory=LatencyHistogram)


class GarbageCollection:
    """Runs rounds over one bookie's ledgers. With `copies` None, copies that no ensemble names stay."""

    def __init__(
        self,
        storage: CollectableStorage,
        store: MetadataStore,
        instance_id: str,
        fuse: GcFuse,
        settings: GarbageCollectionSettings | None = None,
    ) -> None:
        self._storage = storage
        self._nodes = LedgerNodes(store)
        self._settings = settings or GarbageCollectionSettings()
        self._missing_last_round: frozenset[LedgerId] = frozenset()
        self._accepted: frozenset[LedgerId] = frozenset()
        self._accept_next = False
        self._running = asyncio.Lock()
        self._wanted = asyncio.Event()
        self._afterwards: list[Callable[[], None]] = []
        self._sure_since_s: float | None = None
        self.fuse = fuse
        self.doubts = CollectionDoubts(store, instance_id, fuse)
        self.excess_bytes: Callable[[], int] = lambda: 0
        """Bytes in use above the disks' warning threshold; with an excess, ledgers leave quarantine early."""
        self.doubt: str | None = None
        """Why the last round did not trust the metadata."""
        self.copies: OverReplicatedCopies | None = None
        self.stats = GarbageCollectionStats()

    async def run(self) -> None:
        """Run rounds until cancelled. A failed round is logged, and the next one tries again."""
        forget_session = self.doubts.watch_session()
        try:
            await self._rounds()
        finally:
            forget_session()

    async def _rounds(self) -> None:
        while True:
            forced = await self._pause()
            try:
                await self.run_round()
                if forced:
                    await self.run_round()  # the second round removes ledgers first missing in the previous one
            except CollectionHeldError as error:
                _log.info("garbage collection waits: %s", error)
            except (MetadataError, StorageError, OSError) as error:
                _log.warning("garbage collection ended early: %s", error)
            if forced:
                afterwards, self._afterwards = self._afterwards, []
                for call in afterwards:
                    call()

    async def _pause(self) -> bool:
        """Wait until the next round is due. True: it was requested by `force`."""
        try:
            async with asyncio.timeout(self._settings.interval_s):
                await self._wanted.wait()
        except TimeoutError:
            return False
        self._wanted.clear()
        return True

    def force(self, then: Callable[[], None] | None = None) -> None:
        """Run two rounds as soon as possible, then call `then`, even if they failed. Fuse and hold still apply."""
        if then is not None:
            self._afterwards.append(then)
        self._wanted.set()

    @property
    def is_running(self) -> bool:
        """Whether a round is running or requested."""
        return self._running.locked() or self._wanted.is_set()

    async def reset_fuse(self) -> None:
        """Allow the deletion of the missing ledgers that the fuse has seen, and no others. OSError."""
        _log.warning("the fuse of garbage collection was reset: missing ledgers may be deleted")
        self._accepted = self._missing_last_round
        self._accept_next = not self._accepted
        await self.fuse.reset()
        self.stats.fuse_blown = 0
        self.force()

    async def run_round(self) -> list[LedgerId]:
        """Run one round; return the deleted ledgers. MetadataError and StorageError leave no ledger half deleted."""
        async with self._running:
            try:
                deleted = await self._round()
            except MetadataError as error:
                self.stats.in_doubt, self.doubt = 1, str(error)
                raise
            self.stats.in_doubt, self.doubt = 0, None
            return deleted

    async def _round(self) -> list[LedgerId]:
        start_s = asyncio.get_running_loop().time()
        self.stats.rounds += 1
        missing_before, self._missing_last_round = self._missing_last_round, frozenset()
        sure_since_s, self._sure_since_s = self._sure_since_s, None
        if self.doubts.begin_round():  # neither the listing nor the time of a former session counts
            missing_before, sure_since_s = frozenset(), None
        missing = await self._missing()
        deleted: list[LedgerId] = []
        if missing is not None:
            known = await self._storage.ledger_quarantine.all()
            if not await self._is_blown(missing, known):
                if sure_since_s is not None:
                    await self._storage.ledger_quarantine.advance(int((start_s - sure_since_s) * 1000))
                deleted = await self._collect(missing, missing_before, known)
                await self._delete_copies()
                self._sure_since_s = start_s
            self._missing_last_round = missing - frozenset(deleted)
        self.stats.freed_bytes += await self._storage.drop_dead_logs()
        await self._storage.expire_tombstones()
        self.stats.completed_rounds += 1
        self.stats.round_seconds.observe(asyncio.get_running_loop().time() - start_s)
        if deleted:
            _log.info("deleted %d ledgers that the cluster no longer has", len(deleted))
        return deleted

    async def _missing(self) -> frozenset[LedgerId] | None:
        """Return stored ledgers that the metadata does not name; None if no ledger is stored."""
        local = set(await self._storage.ledgers())
        self.stats.ledgers_held = len(local)
        if not local:
            return None
        await self.check()
        async for page in self._nodes.ids():
            local.difference_update(page)
        await self.check()  # the store must still be the one that was checked before the listing
        return frozenset(local)

    async def _is_blown(self, missing: frozenset[LedgerId], known: list[QuarantinedLedger]) -> bool:
        if self._accept_next:
            self._accepted, self._accept_next = missing, False
        # Forget the administrator's acceptance of ledgers that were deleted or are no longer missing.
        self._accepted &= missing
        # The fuse assessed the quarantined ledgers when they entered quarantine.
        assessed = self._accepted | (missing & {one.ledger for one in known})
        held = self.stats.ledgers_held
        assert len(assessed) <= len(missing) <= held, "only ledgers that are stored can be missing"
        blown = await self.fuse.check(len(missing - assessed), held - len(assessed))
        self.stats.fuse_blown = int(blown is not None)
        return blown is not None

    async def _collect(
        self, missing: frozenset[LedgerId], missing_before: frozenset[LedgerId], known: list[QuarantinedLedger]
    ) -> list[LedgerId]:
        """Move ledgers into and out of quarantine; return the deleted ones."""
        quarantine, rules = self._storage.ledger_quarantine, self._settings.quarantine
        await self._return(released(known, quarantine.clock_ms, missing), missing)
        new = sorted((missing & missing_before) - {one.ledger for one in known})
        if rules.keep_ms == 0:
            return await self._delete([*due(known, quarantine.clock_ms, rules), *new])
        excess = len(known) + len(new) - GC_QUARANTINE_LEDGERS_MAX
        going = due(known, quarantine.clock_ms, rules, excess_bytes=self.excess_bytes(), excess_ledgers=excess)
        deleted = await self._delete(going)
        entered = 0
        # The remaining ledgers stay as they are; a later round puts them into quarantine.
        for ledger in new[: max(0, GC_QUARANTINE_LEDGERS_MAX - len(known) + len(deleted))]:
            entered += await self._is_surely_missing(ledger) and await self._enter_quarantine(ledger)
        if entered:
            _log.info("put %d ledgers into quarantine: the metadata does not name them", entered)
        return deleted

    async def _return(self, ledgers: list[LedgerId], missing: frozenset[LedgerId]) -> None:
        if not ledgers:
            return
        back = [ledger for ledger in ledgers if ledger not in missing]
        await self._storage.ledger_quarantine.release(ledgers)
        self.stats.ledgers_returned += len(back)
        if back:
            _log.warning("%d ledgers leave quarantine: the metadata names them again, %s first", len(back), back[0])

    async def _enter_quarantine(self, ledger: LedgerId) -> bool:
        try:
            entered = await self._storage.ledger_quarantine.put(ledger, "its metadata is missing")
        except DamagedError as error:
            _log.error("ledger %d is missing in the metadata, but cannot enter quarantine: %s", ledger, error)
            return False
        self.stats.ledgers_quarantined += entered
        return entered

    async def _is_surely_missing(self, ledger: LedgerId) -> bool:
        """Whether the node is missing, in metadata that is beyond doubt after the read. InDoubtError."""
        if await self._nodes.exists(ledger):
            return False
        await self.check()
        return True

    async def _delete(self, doomed: list[LedgerId]) -> list[LedgerId]:
        deleted = []
        for ledger in doomed:
            if not await self._is_surely_missing(ledger):
                continue  # the next listing names it, and it leaves quarantine
            try:
                gone = await self._storage.delete_ledger(ledger)
            except DamagedError as error:
                _log.error("ledger %d was deleted in the cluster, but cannot be deleted here: %s", ledger, error)
                continue  # it must not prevent the deletion of others
            if gone:
                deleted.append(ledger)
                self.stats.ledgers_deleted += 1
        return deleted

    async def _delete_copies(self) -> None:
        if self.copies is not None:
            gone = len(await self.copies.run_round())
            self.stats.copies_deleted += gone
            self.stats.ledgers_deleted += gone

    async def check(self) -> None:
        """Raise InDoubtError or CollectionHeldError if nothing may be deleted now."""
        try:
            await self.doubts.check()
        finally:
            self.stats.held_back = int(self.doubts.hold is not None)
