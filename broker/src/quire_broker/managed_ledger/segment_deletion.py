"""Deletes the objects of offloaded ledgers that no record names any more, until they are gone.

As with ledgers: in the transaction that takes them out of the metadata a record is made, under
`/quire/unreferenced-segments/<managed ledger>/<ledger>:<uuid>`, and removed once they are gone. Whoever next opens or
deletes a managed ledger of that name goes on with it. What an upload that was given up writes after that stays.
"""

import asyncio
import json
import logging
from collections.abc import Iterable

from quire_bookie.env.background import Background
from quire_bookie.env.chance import Chance
from quire_bookie.errors import ConfigError, MetadataError, NodeMissingError
from quire_bookie.metadata.store import MetadataStore, Put
from quire_bookie.places.errors import PlaceError
from quire_broker.managed_ledger.offload_context import OffloadContext
from quire_broker.managed_ledger.patience import Backoff
from quire_broker.offload.tier import Tier

_log = logging.getLogger("quire.offload")
_ROOT = "/quire/unreferenced-segments"
_BACKOFF_S = (1.0, 300.0)
_AT_ONCE = 8


class SegmentDeletions:
    """The objects of one managed ledger. `pending`: uuids still to go."""

    def __init__(self, name: str, tier: Tier, store: MetadataStore, background: Background, chance: Chance) -> None:
        self._base = f"{_ROOT}/{name}"
        self._tier = tier
        self._store = store
        self._background = background
        self._chance = chance
        self.pending: set[str] = set()
        self._turns = asyncio.Semaphore(_AT_ONCE)

    def _key(self, ledger_id: int, context: OffloadContext) -> str:
        return f"{self._base}/{ledger_id}:{context.uuid}"

    def record(self, segments: Iterable[tuple[int, OffloadContext]]) -> list[Put]:
        """The operations that belong into the transaction which takes these out of use."""
        return [
            Put(
                self._key(ledger_id, context),
                json.dumps({"driver": context.driver, "properties": dict(context.properties)}).encode(),
            )
            for ledger_id, context in segments
        ]

    def begin(self, segments: Iterable[tuple[int, OffloadContext]]) -> None:
        """Delete in the background, with retries. Only after that transaction."""
        for ledger_id, context in segments:
            if context.uuid not in self.pending:
                self.pending.add(context.uuid)
                self._background.start(
                    self._delete_until_gone(ledger_id, context), f"deletion of the objects of ledger {ledger_id}"
                )

    async def resume(self) -> None:
        """Begin again with what an earlier owner left."""
        self.begin(await self._noted())

    async def _noted(self) -> list[tuple[int, OffloadContext]]:
        found = []
        for name in await self._store.children(self._base):
            ledger, _, uuid = name.partition(":")
            node = await self._store.get(f"{self._base}/{name}")
            if node is None or not ledger.isdecimal():
                continue
            try:
                value = json.loads(node.value)
                context = OffloadContext(uuid, str(value["driver"]), tuple(value["properties"].items()))
            except (ValueError, KeyError, TypeError, AttributeError):
                _log.warning("%s/%s does not say which objects to delete: they stay", self._base, name)
                continue
            found.append((int(ledger), context))
        return found

    async def _delete_until_gone(self, ledger_id: int, context: OffloadContext) -> None:
        backoff = Backoff(_BACKOFF_S, self._chance)
        while True:
            try:
                async with self._turns:
                    await self._delete_now(ledger_id, context)
            except ConfigError as error:
                _log.warning("the objects of ledger %d stay until their place can be opened: %s", ledger_id, error)
                break
            except (PlaceError, MetadataError) as error:
                _log.info("the objects of ledger %d are not deleted yet: %s", ledger_id, error)
                await backoff.wait()
            else:
                break
        self.pending.discard(context.uuid)

    async def _delete_now(self, ledger_id: int, context: OffloadContext) -> None:
        """The objects, then their record. PlaceError, ConfigError, MetadataError."""
        await self._tier.delete(ledger_id, context.uuid, context.driver, dict(context.properties))
        try:
            await self._store.delete(self._key(ledger_id, context))
        except NodeMissingError:
            _log.debug("somebody else noted that the objects of ledger %d are gone", ledger_id)

    async def delete_noted(self, patience_s: float) -> None:
        """What is noted of a managed ledger that is gone, as far as it can be deleted now; the rest stays noted."""
        try:
            for ledger_id, context in await self._noted():
                async with asyncio.timeout(patience_s):
                    await self._delete_now(ledger_id, context)
        except (PlaceError, ConfigError, MetadataError, TimeoutError) as error:
            _log.warning("objects are still to be deleted, as noted under %s: %s", self._base, error)
