"""Deletes ledgers that the cluster no longer has. Owns the rules of when that is certain; the storage does the rest.

The rules, each against a way to lose live data:
* the local set is captured before the listing, so a ledger created during it is not a candidate;
* the listing is at one revision and complete, or the round ends;
* a ledger must be missing in two rounds in a row; a failed round breaks the row;
* when too many are missing at once the fuse blows (`gc_fuse`) and nothing is deleted until a person looked;
* a hold, on this bookie or on the cluster, stops deletions at once;
* before each delete the INSTANCEID is compared (a wiped or foreign store has no ledgers) and the node is read once
  more, linearizable.
Copies of living ledgers that no ensemble names any more have rules of their own (`over_replicated`).
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from quire_bookie.errors import DamagedError, MetadataError, StorageError
from quire_bookie.limits import GC_INTERVAL_S
from quire_bookie.metadata.collection_hold import read_collection_hold
from quire_bookie.metadata.initialise import read_instance_id
from quire_bookie.metadata.ledgers import LedgerNodes
from quire_bookie.metadata.store import MetadataStore
from quire_bookie.metrics import LatencyHistogram
from quire_bookie.model import LedgerId
from quire_bookie.server.gc_fuse import FuseSettings, GcFuse
from quire_bookie.server.over_replicated import OverReplicatedCopies, OverReplicatedSettings

_log = logging.getLogger("quire.server.garbage_collection")


class CollectableStorage(Protocol):
    """What garbage collection needs of the ledger storage."""

    async def ledgers(self) -> list[LedgerId]:
        """Every ledger held."""
        ...

    async def delete_ledger(self, ledger_id: LedgerId, /) -> None:
        """Forget a ledger."""
        ...

    async def expire_tombstones(self) -> int:
        """Forget ledgers that were deleted long ago; how many."""
        ...

    async def drop_dead_logs(self) -> int:
        """Remove entry logs without a live ledger; bytes freed."""
        ...


@dataclass(frozen=True, slots=True)
class GarbageCollectionSettings:
    """How often a round runs, in seconds, and when it does not trust what it finds."""

    interval_s: float = GC_INTERVAL_S
    fuse: FuseSettings = field(default_factory=FuseSettings)
    over_replicated: OverReplicatedSettings = field(default_factory=OverReplicatedSettings)


@dataclass(slots=True)
class GarbageCollectionStats:
    """Counters for the metrics collector."""

    rounds: int = 0
    completed_rounds: int = 0
    ledgers_held: int = 0
    ledgers_deleted: int = 0
    copies_deleted: int = 0
    freed_bytes: int = 0
    fuse_blown: int = 0
    """1 while the fuse is blown."""
    held_back: int = 0
    """1 while a hold stops deletions."""
    round_seconds: LatencyHistogram = field(default_factory=LatencyHistogram)


class ForeignStoreError(MetadataError):
    """The metadata store is no longer of the cluster that this bookie belongs to."""


class CollectionHeldError(MetadataError):
    """A person, or a tool, wants nothing deleted."""


class GarbageCollection:
    """Rounds over one bookie's ledgers. `copies`: None leaves copies that no ensemble names."""

    def __init__(
        self,
        storage: CollectableStorage,
        store: MetadataStore,
        instance_id: str,
        fuse: GcFuse,
        settings: GarbageCollectionSettings | None = None,
    ) -> None:
        self._storage = storage
        self._store = store
        self._nodes = LedgerNodes(store)
        self._instance_id = instance_id
        self._settings = settings or GarbageCollectionSettings()
        self._missing_last_round: frozenset[LedgerId] = frozenset()
        self._accepted: frozenset[LedgerId] = frozenset()
        self._accept_next = False
        self._running = asyncio.Lock()
        self._wanted = asyncio.Event()
        self._afterwards: list[Callable[[], None]] = []
        self.fuse = fuse
        self.copies: OverReplicatedCopies | None = None
        self.stats = GarbageCollectionStats()

    async def run(self) -> None:
        """Rounds for as long as the bookie lives; cancel to end. A failed round is logged and the next one tries."""
        while True:
            forced = await self._pause()
            try:
                await self.run_round()
                if forced:
                    await self.run_round()  # what was found missing for the first time goes with the second look
            except CollectionHeldError as error:
                _log.info("garbage collection waits: %s", error)
            except (MetadataError, StorageError, OSError) as error:
                _log.warning("garbage collection ended early: %s", error)
            if forced:
                afterwards, self._afterwards = self._afterwards, []
                for call in afterwards:
                    call()

    async def _pause(self) -> bool:
        """Until the next round is due, or asked for: then True."""
        try:
            async with asyncio.timeout(self._settings.interval_s):
                await self._wanted.wait()
        except TimeoutError:
            return False
        self._wanted.clear()
        return True

    def force(self, then: Callable[[], None] | None = None) -> None:
        """Run two rounds as soon as possible, and call `then` when they ended, well or not. Fuse and hold stand."""
        if then is not None:
            self._afterwards.append(then)
        self._wanted.set()

    @property
    def is_running(self) -> bool:
        """Whether a round is under way, or asked for."""
        return self._running.locked() or self._wanted.is_set()

    async def reset_fuse(self) -> None:
        """A person says that the missing ledgers may go: those that the fuse has seen, and no others. OSError."""
        _log.warning("the fuse of garbage collection is reset: what is missing may be deleted")
        self._accepted = self._missing_last_round
        self._accept_next = not self._accepted
        await self.fuse.reset()
        self.stats.fuse_blown = 0
        self.force()

    async def run_round(self) -> list[LedgerId]:
        """One round; the ledgers that it deleted. MetadataError or StorageError end it; nothing is half deleted."""
        async with self._running:
            start_s = asyncio.get_running_loop().time()
            self.stats.rounds += 1
            missing_before, self._missing_last_round = self._missing_last_round, frozenset()
            missing = await self._missing()
            deleted: list[LedgerId] = []
            if missing is not None:
                if not await self._is_blown(missing):
                    deleted = await self._delete(missing & missing_before)
                    await self._delete_copies()
                self._missing_last_round = missing - frozenset(deleted)
            self.stats.freed_bytes += await self._storage.drop_dead_logs()
            await self._storage.expire_tombstones()
            self.stats.completed_rounds += 1
            self.stats.round_seconds.observe(asyncio.get_running_loop().time() - start_s)
            if deleted:
                _log.info("deleted %d ledgers that the cluster no longer has", len(deleted))
            return deleted

    async def _missing(self) -> frozenset[LedgerId] | None:
        """Ledgers held here that the metadata does not name; None when nothing is held."""
        local = set(await self._storage.ledgers())
        self.stats.ledgers_held = len(local)
        if not local:
            return None
        await self._check()
        async for page in self._nodes.ids():
            local.difference_update(page)
        return frozenset(local)

    async def _is_blown(self, missing: frozenset[LedgerId]) -> bool:
        if self._accept_next:
            self._accepted, self._accept_next = missing, False
        # What stays away for good, or comes back, needs no word of a person any more.
        self._accepted &= missing
        held = self.stats.ledgers_held
        blown = await self.fuse.judge(len(missing - self._accepted), held - len(self._accepted))
        self.stats.fuse_blown = int(blown is not None)
        return blown is not None

    async def _delete(self, doomed: frozenset[LedgerId]) -> list[LedgerId]:
        deleted = []
        for ledger in sorted(doomed):
            await self._check()
            if await self._nodes.exists(ledger):
                continue
            try:
                await self._storage.delete_ledger(ledger)
            except DamagedError as error:
                _log.error("ledger %d is gone from the cluster and stays here: %s", ledger, error)
                continue  # it must not keep the others here
            deleted.append(ledger)
            self.stats.ledgers_deleted += 1
        return deleted

    async def _delete_copies(self) -> None:
        if self.copies is not None:
            gone = len(await self.copies.run_round())
            self.stats.copies_deleted += gone
            self.stats.ledgers_deleted += gone

    async def check(self) -> None:
        """Raise ForeignStoreError or CollectionHeldError when nothing may be deleted at this moment."""
        await self._check()

    async def _check(self) -> None:
        found = await read_instance_id(self._store)
        if found != self._instance_id:
            raise ForeignStoreError(
                f"the metadata store is of cluster {found}, this bookie of {self._instance_id}: nothing is deleted"
            )
        await self.fuse.load()
        hold = self.fuse.hold or await read_collection_hold(self._store)
        self.stats.held_back = int(hold is not None)
        if hold is not None:
            raise CollectionHeldError(f"on hold: {hold}")
