"""Deletes copies that no ensemble names any more: entries left after ledgers were replicated to other bookies.

The rules, each of which prevents the deletion of a needed copy:
* only closed ledgers of which no segment names this bookie, and that the auditor did not mark as under-replicated;
* two checks, with a round of garbage collection between them, must find the same entries: copies that a replication
  worker is just writing here stay;
* the second check holds the replication lock of the ledger, so no worker replicates it meanwhile, and the metadata is
  read, linearizable, after the lock was taken. The lock is checked once more before the deletion; the deletion, which
  may have to wait for a flush, does nothing if an entry was put since, because the lock may be lost by then;
* never while the bookie or the ledger is in limbo: then other bookies may need the copy for repair.

A deletion leaves a tombstone that a recovery add removes again, since the cluster may choose this bookie once more
(`storage.deletion`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from quire_bookie.errors import MetadataError, MetadataFormatError, NoSuchLedgerError, QuireError
from quire_bookie.metadata.ledgers import LedgerNodes
from quire_bookie.metadata.store import MetadataStore
from quire_bookie.metadata.under_replication import ReplicationLocks
from quire_bookie.model import BookieId, LedgerId, LedgerMetadata, LedgerState
from quire_bookie.settings.collection import OverReplicatedSettings
from quire_bookie.storage.deletion import Unchanged
from quire_bookie.storage.entry_ranges import EntryRange
from quire_bookie.storage.ledgers.ledger_states import LedgerInfo

CANDIDATES_MAX: Final = 10_000
"""Copies that one search may find; the entry ranges of each are remembered until the second check."""

_log = logging.getLogger("quire.server.over_replicated")


class CopyStorage(Protocol):
    """The methods of the ledger storage that the deletion of copies uses."""

    @property
    def in_limbo(self) -> bool:
        """Whether ledgers may have lost entries here."""
        ...

    async def ledgers(self) -> list[LedgerId]:
        """Return every stored ledger."""
        ...

    async def load_ledger(self, ledger: LedgerId, /) -> LedgerInfo | None:
        """Return the state of a ledger."""
        ...

    async def entry_ranges(self, ledger: LedgerId, /) -> list[EntryRange]:
        """Return the ranges of stored entry ids."""
        ...

    async def delete_copy(self, ledger: LedgerId, unchanged: Unchanged, /) -> bool:
        """Delete a ledger that may be revived. False: entries were put since."""
        ...


def is_superfluous(metadata: LedgerMetadata, bookie: BookieId) -> bool:
    """Whether no ensemble of a closed ledger names this bookie."""
    return metadata.state is LedgerState.CLOSED and not any(bookie in segment.ensemble for segment in metadata.segments)


class OverReplicatedCopies:
    """Finds and deletes superfluous copies. `check` raises if nothing may be deleted now (see `collection_doubts`)."""

    def __init__(
        self,
        storage: CopyStorage,
        store: MetadataStore,
        bookie: BookieId,
        locks: ReplicationLocks,
        check: Callable[[], Awaitable[None]],
        settings: OverReplicatedSettings | None = None,
    ) -> None:
        self._storage = storage
        self._nodes = LedgerNodes(store)
        self._bookie = bookie
        self._locks = locks
        self._check = check
        self._settings = settings or OverReplicatedSettings()
        self._seen: dict[LedgerId, list[EntryRange]] = {}
        self._last_search_s: float | None = None

    async def run_round(self) -> list[LedgerId]:
        """Delete copies of the last search that are still superfluous, or search if due. Return the deleted ledgers.

        MetadataError or StorageError end it; remaining copies wait for the next search.
        """
        if self._settings.interval_s <= 0 or self._storage.in_limbo:
            self._seen = {}
            return []
        seen, self._seen = self._seen, {}
        if seen:
            return await self._delete(seen)
        now_s = asyncio.get_running_loop().time()
        if self._last_search_s is None:
            self._last_search_s = now_s  # after a start, ensembles get time to name the bookie again
        elif now_s - self._last_search_s >= self._settings.interval_s:
            self._last_search_s = now_s
            self._seen = await self._search()
        return []

    async def _search(self) -> dict[LedgerId, list[EntryRange]]:
        found: dict[LedgerId, list[EntryRange]] = {}
        ledgers = await self._storage.ledgers()
        for start in range(0, len(ledgers), self._settings.at_once):
            part = ledgers[start : start + self._settings.at_once]
            for ledger, held in zip(part, await asyncio.gather(*map(self._ranges_if_superfluous, part)), strict=True):
                if held is not None:
                    found[ledger] = held
            if len(found) >= CANDIDATES_MAX:
                break  # the next search finds the rest
        if found:
            _log.info("%d ledgers stored here do not have this bookie in an ensemble; checked again later", len(found))
        return found

    async def _ranges_if_superfluous(self, ledger: LedgerId) -> list[EntryRange] | None:
        """Return the entry ranges of a superfluous copy; None if it is needed, or if that is in doubt."""
        try:
            metadata = (await self._nodes.read(ledger)).value
        except (NoSuchLedgerError, MetadataFormatError):
            return None  # garbage collection handles deleted ledgers; unreadable metadata keep the copy
        if not is_superfluous(metadata, self._bookie):
            return None
        try:
            info = await self._storage.load_ledger(ledger)
            if info is None or info.deleted or info.limbo or self._storage.in_limbo:
                return None
            return await self._storage.entry_ranges(ledger)
        except MetadataError:
            raise
        except QuireError as error:
            _log.warning("keeping the superfluous copy of ledger %d: %s", ledger, error)
            return None

    async def _delete(self, seen: dict[LedgerId, list[EntryRange]]) -> list[LedgerId]:
        deleted: list[LedgerId] = []
        for ledger, held in sorted(seen.items()):
            await self._check()
            if not await self._locks.acquire(ledger):
                continue
            try:
                if await self._delete_locked(ledger, held):
                    deleted.append(ledger)
            finally:
                await self._locks.release(ledger)
        if deleted:
            _log.info("deleted %d ledgers whose replicas are all on other bookies", len(deleted))
        return deleted

    async def _delete_locked(self, ledger: LedgerId, held: list[EntryRange]) -> bool:
        if await self._locks.is_marked(ledger) or await self._ranges_if_superfluous(ledger) != held:
            return False
        info = await self._storage.load_ledger(ledger)
        if info is None:
            return False
        unchanged = Unchanged.of(info)  # before the lock is checked: if it is lost, puts by its new owner are noticed
        return await self._locks.is_held(ledger) and await self._storage.delete_copy(ledger, unchanged)
