"""Deletes copies that no ensemble names any more: what is still here after ledgers were replicated elsewhere.

The rules, each against deleting a copy that counts:
* closed ledgers only, and no segment names this bookie; not one that an auditor marked as lacking replicas;
* two looks, with a round of garbage collection between them, at which the ledger held the same entries: what somebody
  is just copying here is left alone;
* the second look is under the replication lock of the ledger, so nobody replicates it meanwhile, and the metadata is
  read, linearizable, after the lock was taken; the lock is asked for once more before the delete, and the delete, which
  may have to wait for a flush, changes nothing if an entry was put since: the lock may be gone by then;
* never while the bookie or the ledger is in limbo: then other copies may rely on what is here.

What is left is a tombstone that a recovery add takes away again: the cluster may need this very bookie
(`storage.deletion`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Protocol

from quire_bookie import limits
from quire_bookie.errors import MetadataError, MetadataFormatError, NoSuchLedgerError, QuireError
from quire_bookie.metadata.ledgers import LedgerNodes
from quire_bookie.metadata.store import MetadataStore
from quire_bookie.metadata.under_replication import ReplicationLocks
from quire_bookie.model import BookieId, LedgerId, LedgerMetadata, LedgerState
from quire_bookie.storage.deletion import Unchanged
from quire_bookie.storage.entry_ranges import EntryRange
from quire_bookie.storage.ledgers.ledger_states import LedgerInfo

CANDIDATES_MAX: Final = 10_000
"""Copies that one search may find; what is held of each is remembered until the second look."""

_log = logging.getLogger("quire.server.over_replicated")


class CopyStorage(Protocol):
    """What is asked of the ledger storage."""

    @property
    def in_limbo(self) -> bool:
        """Whether ledgers may have lost something here."""
        ...

    async def ledgers(self) -> list[LedgerId]:
        """Every ledger held."""
        ...

    async def load_ledger(self, ledger: LedgerId, /) -> LedgerInfo | None:
        """The state of a ledger."""
        ...

    async def entry_ranges(self, ledger: LedgerId, /) -> list[EntryRange]:
        """The ids held."""
        ...

    async def delete_copy(self, ledger: LedgerId, unchanged: Unchanged, /) -> bool:
        """Forget a ledger that may come back. False: something was put since."""
        ...


@dataclass(frozen=True, slots=True)
class OverReplicatedSettings:
    """`interval_s` between two searches (0: never), ledgers looked at together."""

    interval_s: float = limits.GC_OVER_REPLICATED_INTERVAL_S
    at_once: int = limits.GC_OVER_REPLICATED_AT_ONCE


def is_superfluous(metadata: LedgerMetadata, bookie: BookieId) -> bool:
    """Whether a copy on this bookie counts for nobody."""
    return metadata.state is LedgerState.CLOSED and not any(bookie in segment.ensemble for segment in metadata.segments)


class OverReplicatedCopies:
    """Search and deletion. `check` raises when nothing may be deleted now (foreign store, hold, fuse)."""

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
        """Delete what the last search found and still is superfluous, or search when it is time. The deleted ones.

        MetadataError or StorageError end it; what it did not get to waits for the next search.
        """
        if self._settings.interval_s <= 0 or self._storage.in_limbo:
            self._seen = {}
            return []
        seen, self._seen = self._seen, {}
        if seen:
            return await self._delete(seen)
        now_s = asyncio.get_running_loop().time()
        if self._last_search_s is None:
            self._last_search_s = now_s  # a bookie that just came back is given time to be named again
        elif now_s - self._last_search_s >= self._settings.interval_s:
            self._last_search_s = now_s
            self._seen = await self._search()
        return []

    async def _search(self) -> dict[LedgerId, list[EntryRange]]:
        found: dict[LedgerId, list[EntryRange]] = {}
        ledgers = await self._storage.ledgers()
        for start in range(0, len(ledgers), self._settings.at_once):
            part = ledgers[start : start + self._settings.at_once]
            for ledger, held in zip(part, await asyncio.gather(*map(self._look, part)), strict=True):
                if held is not None:
                    found[ledger] = held
            if len(found) >= CANDIDATES_MAX:
                break  # the next search finds the rest
        if found:
            _log.info("%d ledgers held here are of no ensemble of theirs; they are looked at once more", len(found))
        return found

    async def _look(self, ledger: LedgerId) -> list[EntryRange] | None:
        """What is held of a superfluous copy; None for any other, and whenever that is in doubt."""
        try:
            metadata = (await self._nodes.read(ledger)).value
        except (NoSuchLedgerError, MetadataFormatError):
            return None  # the other rules, or nobody, decide about it
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
            _log.warning("ledger %d is left as it is: %s", ledger, error)
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
            _log.info("deleted %d ledgers of which other bookies hold all replicas", len(deleted))
        return deleted

    async def _delete_locked(self, ledger: LedgerId, held: list[EntryRange]) -> bool:
        if await self._locks.is_marked(ledger) or await self._look(ledger) != held:
            return False
        info = await self._storage.load_ledger(ledger)
        if info is None:
            return False
        unchanged = Unchanged.of(info)  # before the lock is asked for: whoever has it by now puts entries first
        return await self._locks.is_held(ledger) and await self._storage.delete_copy(ledger, unchanged)
