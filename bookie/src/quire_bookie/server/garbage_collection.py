"""Deletes ledgers that the cluster no longer has. Owns the rules of when that is certain; the storage does the rest.

The rules, each against a way to lose live data:
* the local set is captured before the listing, so a ledger created during it is not a candidate;
* the listing is at one revision and complete, or the round ends;
* a ledger must be missing in two rounds in a row; a failed round breaks the row;
* before each delete the INSTANCEID is compared (a wiped or foreign store has no ledgers) and the node is read once
  more, linearizable.
"""

import asyncio
import logging
from dataclasses import dataclass
from typing import Protocol

from quire_bookie.errors import MetadataError, StorageError
from quire_bookie.limits import GC_INTERVAL_S
from quire_bookie.metadata.initialise import read_instance_id
from quire_bookie.metadata.ledgers import LedgerNodes
from quire_bookie.metadata.store import MetadataStore
from quire_bookie.model import LedgerId

_log = logging.getLogger("quire.server.garbage_collection")


class CollectableStorage(Protocol):
    """What garbage collection needs of the ledger storage."""

    async def ledgers(self) -> list[LedgerId]:
        """Every ledger held."""
        ...

    async def delete_ledger(self, ledger_id: LedgerId, /) -> None:
        """Forget a ledger."""
        ...

    async def drop_dead_logs(self) -> int:
        """Remove entry logs without a live ledger; bytes freed."""
        ...


@dataclass(frozen=True, slots=True)
class GarbageCollectionSettings:
    """How often a round runs, in seconds."""

    interval_s: float = GC_INTERVAL_S


@dataclass(slots=True)
class GarbageCollectionStats:
    """Counters for the metrics collector."""

    rounds: int = 0
    completed_rounds: int = 0
    ledgers_deleted: int = 0
    freed_bytes: int = 0


class ForeignStoreError(MetadataError):
    """The metadata store is no longer of the cluster that this bookie belongs to."""


class GarbageCollection:
    """Rounds over one bookie's ledgers."""

    def __init__(
        self,
        storage: CollectableStorage,
        store: MetadataStore,
        instance_id: str,
        settings: GarbageCollectionSettings | None = None,
    ) -> None:
        self._storage = storage
        self._store = store
        self._nodes = LedgerNodes(store)
        self._instance_id = instance_id
        self._settings = settings or GarbageCollectionSettings()
        self._missing_last_round: frozenset[LedgerId] = frozenset()
        self._running = asyncio.Lock()
        self.stats = GarbageCollectionStats()

    async def run(self) -> None:
        """Rounds for as long as the bookie lives; cancel to end. A failed round is logged and the next one tries."""
        while True:
            await asyncio.sleep(self._settings.interval_s)
            try:
                await self.run_round()
            except (MetadataError, StorageError, OSError) as error:
                _log.warning("garbage collection ended early: %s", error)

    async def run_round(self) -> list[LedgerId]:
        """One round; the ledgers that it deleted. MetadataError or StorageError end it; nothing is half deleted."""
        async with self._running:
            self.stats.rounds += 1
            missing_before, self._missing_last_round = self._missing_last_round, frozenset()
            missing = await self._missing()
            deleted = await self._delete(missing & missing_before)
            self.stats.freed_bytes += await self._storage.drop_dead_logs()
            self._missing_last_round = missing - frozenset(deleted)
            self.stats.completed_rounds += 1
            if deleted:
                _log.info("deleted %d ledgers that the cluster no longer has", len(deleted))
            return deleted

    async def _missing(self) -> frozenset[LedgerId]:
        local = set(await self._storage.ledgers())
        if not local:
            return frozenset()
        await self._check_instance()
        async for page in self._nodes.ids():
            local.difference_update(page)
        return frozenset(local)

    async def _delete(self, doomed: frozenset[LedgerId]) -> list[LedgerId]:
        deleted = []
        for ledger in sorted(doomed):
            await self._check_instance()
            if await self._nodes.exists(ledger):
                continue
            await self._storage.delete_ledger(ledger)
            deleted.append(ledger)
            self.stats.ledgers_deleted += 1
        return deleted

    async def _check_instance(self) -> None:
        found = await read_instance_id(self._store)
        if found != self._instance_id:
            raise ForeignStoreError(
                f"the metadata store is of cluster {found}, this bookie of {self._instance_id}: nothing is deleted"
            )
