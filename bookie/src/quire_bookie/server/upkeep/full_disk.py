"""Relieves a full disk: refills the reserve, and triggers garbage collection.

Owns the steps and their pace. Before each check of the disk monitor, spare journal files are removed in favour of the
reserve. While the disk is full, garbage collection runs every 30 s regardless of its interval, after the current entry
logs were sealed, because only sealed logs can be deleted. Compaction has its own rule for a full disk. Never deletes
entries itself.
"""

import asyncio
import logging
from collections.abc import Callable

from quire_bookie.env.space_reserve import SpaceReserves
from quire_bookie.errors import StorageError
from quire_bookie.journal import JournalPositions, Journals
from quire_bookie.limits import DISK_FULL_COLLECTION_S
from quire_bookie.storage.ledger_storage import LedgerStorage

_log = logging.getLogger("quire.server.disk")


class FullDisk:
    """Frees space for one bookie. `relieve` is for one caller at a time; `collect` begins a garbage collection."""

    def __init__(
        self,
        reserves: SpaceReserves,
        journals: Journals,
        storage: LedgerStorage[JournalPositions],
        margin_bytes: int,
        *,
        is_full: Callable[[], bool],
        collect: Callable[[], None],
    ) -> None:
        self._reserves = reserves
        self._journals = journals
        self._storage = storage
        self._margin_bytes = margin_bytes
        self._is_full = is_full
        self._collect = collect
        self._collected_s: float | None = None

    async def relieve(self) -> None:
        """Free as much space as possible. A failure is logged; the next call tries again."""
        try:
            await self._refill()
            if self._is_full():
                await self._reclaim()
        except (StorageError, OSError) as error:
            _log.warning("could not free space on the full disk: %s", error)

    async def _refill(self) -> None:
        if await self._fill():
            return
        await self._storage.flush()  # journal files that it covers become spares
        await self._journals.drop_spares()
        await self._fill()

    async def _fill(self) -> bool:
        filled = [await reserve.refill(self._margin_bytes) for reserve in self._reserves.all]
        return all(filled)

    async def _reclaim(self) -> None:
        now_s = asyncio.get_running_loop().time()
        if self._collected_s is not None and now_s - self._collected_s < DISK_FULL_COLLECTION_S:
            return
        self._collected_s = now_s
        await self._journals.drop_spares()
        await self._storage.seal_logs()
        self._collect()
