"""Detects metadata that went back in time. Owns the comparison of their counters with those read before.

A bookie reads epoch and counters of ledger ids now and then, and soon after a new ledger came whose id is above the
counters read last. It keeps the highest ones durably beside its entries (`storage.id_marks`). Metadata that say less
are an older copy: then garbage collection stops on this bookie, since that copy may lack ledgers that nothing deleted.

The doubt ends by itself when the metadata say as much as before, or when their epoch is above the one that the bookie
remembers: a restore, a repair and `quire metadata raise-epoch` raise it. Never changes the metadata.
"""

import asyncio
import logging
from typing import Final, Protocol

from quire_bookie.errors import MetadataError, StorageError
from quire_bookie.limits import METADATA_LOOK_INTERVAL_S, METADATA_LOOK_PAUSE_S
from quire_bookie.metadata.initialise import read_instance_id
from quire_bookie.metadata.ledger_ids import read_counters
from quire_bookie.metadata.store import MetadataStore
from quire_bookie.model import IdCounters
from quire_bookie.storage.ledgers.id_marks import IdMarks

_log = logging.getLogger("quire.server.metadata_doubt")
REMEDY: Final = (
    "put the newer data back, or restore a backup into an empty store (`quire metadata restore`), or, without one, "
    "accept this copy with `quire metadata raise-epoch`; nothing is deleted and no ledger id is given out before "
    "(docs/kubernetes/backup.md)"
)


class MarkedStorage(Protocol):
    """The part of the ledger storage that the doubt needs."""

    @property
    def id_marks(self) -> IdMarks:
        """What was read and held so far."""
        ...

    async def keep_counters(self, seen: IdCounters) -> None:
        """Remember them durably."""
        ...


class MetadataDoubt:
    """Of one bookie. `reason` is for an operator; None: the metadata are as they should be."""

    def __init__(self, storage: MarkedStorage, store: MetadataStore, instance_id: str) -> None:
        self._storage = storage
        self._store = store
        self._instance_id = instance_id
        self._wanted = asyncio.Event()
        self._looking = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._looked_s = float("-inf")
        self.reason: str | None = None
        storage.id_marks.on_above_counter = self._wanted.set

    async def run(self) -> None:
        """Look for as long as the bookie lives; cancel to end. A failed look is logged and the next one tries."""
        while True:
            try:
                await self.look()
            except (MetadataError, StorageError, OSError) as error:
                _log.info("whether the metadata went back in time is not known at the moment: %s", error)
            await asyncio.sleep(METADATA_LOOK_PAUSE_S)
            try:
                async with asyncio.timeout(METADATA_LOOK_INTERVAL_S):
                    await self._wanted.wait()
            except TimeoutError:
                continue

    async def look(self) -> str | None:
        """Read and compare, unless that was done a moment ago; the reason for doubt.

        MetadataError, StorageError, OSError: not known, `reason` stays.
        """
        async with self._looking:
            if self._loop.time() - self._looked_s < METADATA_LOOK_PAUSE_S:
                return self.reason
            self._wanted.clear()
            if await read_instance_id(self._store) != self._instance_id:
                return self.reason  # a foreign store, or one that is being restored: nothing of it counts
            found = await read_counters(self._store)
            seen = self._storage.id_marks.seen
            why = found.behind(seen)
            self._set(None if why is None else f"the metadata went back in time: {why}; {REMEDY}")
            if why is None:
                await self._storage.keep_counters(seen.highest(found))
            self._looked_s = self._loop.time()
            return self.reason

    def _set(self, reason: str | None) -> None:
        if reason == self.reason:
            return
        self.reason = reason
        if reason is not None:
            _log.error("garbage collection stops: %s", reason)
        else:
            _log.warning("the metadata are as new as this bookie knows them to be: garbage collection goes on")
