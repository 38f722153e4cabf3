"""Detects metadata that went back in time. Owns the comparison of its counters with those read before.

A bookie reads epoch and counters of ledger ids at intervals, and soon after it received a new ledger whose id is above
the counters read last. It stores the highest values durably beside its entries (`storage.id_marks`). Metadata with
lower values is an older copy: then garbage collection stops on this bookie, since the copy may lack ledgers that were
never deleted.

The doubt ends by itself when the values are at least as high as before, or when the epoch is above the one that the
bookie remembers: a restore, a repair and `quire metadata raise-epoch` raise it. Never changes the metadata.
"""

import asyncio
import logging
from typing import Final, Protocol

from quire_bookie.errors import MetadataError, StorageError
from quire_bookie.limits import METADATA_CHECK_INTERVAL_S, METADATA_CHECK_PAUSE_S
from quire_bookie.metadata.initialise import read_instance_id
from quire_bookie.metadata.ledger_ids import read_counters
from quire_bookie.metadata.store import MetadataStore
from quire_bookie.model import IdCounters
from quire_bookie.storage.ledgers.id_marks import IdMarks

_log = logging.getLogger("quire.server.metadata_doubt")
REMEDY: Final = (
    "put the newer data back, or restore a backup into an empty store (`quire metadata restore`), or, without one, "
    "accept this copy with `quire metadata raise-epoch`; until then nothing is deleted and no ledger id is allocated "
    "(docs/kubernetes/backup.md)"
)


class MarkedStorage(Protocol):
    """The methods of the ledger storage that the comparison uses."""

    @property
    def id_marks(self) -> IdMarks:
        """The highest values read and ids stored so far."""
        ...

    async def keep_counters(self, seen: IdCounters) -> None:
        """Store the counters durably."""
        ...


class MetadataDoubt:
    """Compares the metadata with the values of one bookie. `reason` is shown to administrators; None: no doubt."""

    def __init__(self, storage: MarkedStorage, store: MetadataStore, instance_id: str) -> None:
        self._storage = storage
        self._store = store
        self._instance_id = instance_id
        self._wanted = asyncio.Event()
        self._comparing = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._compared_s = float("-inf")
        self.reason: str | None = None
        storage.id_marks.on_above_counter = self._wanted.set

    async def run(self) -> None:
        """Compare at intervals until cancelled. A failure is logged, and the next comparison tries again."""
        while True:
            try:
                await self.check()
            except (MetadataError, StorageError, OSError) as error:
                _log.info("could not check whether the metadata went back in time: %s", error)
            await asyncio.sleep(METADATA_CHECK_PAUSE_S)
            try:
                async with asyncio.timeout(METADATA_CHECK_INTERVAL_S):
                    await self._wanted.wait()
            except TimeoutError:
                continue

    async def check(self) -> str | None:
        """Read and compare, unless that was done a moment ago; return the reason for doubt.

        MetadataError, StorageError, OSError: unknown, `reason` stays.
        """
        async with self._comparing:
            if self._loop.time() - self._compared_s < METADATA_CHECK_PAUSE_S:
                return self.reason
            self._wanted.clear()
            if await read_instance_id(self._store) != self._instance_id:
                return self.reason  # a foreign store, or one that is being restored: ignore its counters
            found = await read_counters(self._store)
            seen = self._storage.id_marks.seen
            why = found.behind(seen)
            self._set(None if why is None else f"the metadata went back in time: {why}; {REMEDY}")
            if why is None:
                await self._storage.keep_counters(seen.highest(found))
            self._compared_s = self._loop.time()
            return self.reason

    def _set(self, reason: str | None) -> None:
        if reason == self.reason:
            return
        self.reason = reason
        if reason is not None:
            _log.error("garbage collection stops: %s", reason)
        else:
            _log.warning("the metadata is no longer older than this bookie remembers: garbage collection continues")
