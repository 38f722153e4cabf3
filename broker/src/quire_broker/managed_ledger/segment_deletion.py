"""Deletes the objects of offloaded ledgers that no record names any more, and retries until they are gone.

As with ledgers, the transaction that removes them from the metadata creates a record under
`/quire/unreferenced-segments/<managed ledger>/<ledger>:<uuid>`, which is removed once they are gone. The next open or
deletion of a managed ledger of that name continues the work. Objects that an aborted upload writes later stay.
"""

import asyncio
import json
import logging
from collections.abc import Iterable, Sequence

from quire_bookie.env.background import Background
from quire_bookie.env.backoff import Backoff
from quire_bookie.env.chance import Chance
from quire_bookie.errors import ConfigError, MetadataError, NodeMissingError, ObjectStoreError
from quire_bookie.metadata.store import MetadataStore, Node, Put, Under
from quire_broker.limits import RECORDS_READ_MAX
from quire_broker.managed_ledger.nodes.offload_context import OffloadContext
from quire_broker.offload.tier import Tier

_log = logging.getLogger("quire.offload")
_ROOT = "/quire/unreferenced-segments"
_BACKOFF_S = (1.0, 300.0)
_AT_ONCE = 8


class SegmentDeletions:
    """Deletes objects of one managed ledger. `pending`: uuids not yet deleted."""

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
        """Return the operations that must be in the transaction that removes these objects from use."""
        return [
            Put(
                self._key(ledger_id, context),
                json.dumps({"driver": context.driver, "properties": dict(context.properties)}).encode(),
            )
            for ledger_id, context in segments
        ]

    def begin(self, segments: Iterable[tuple[int, OffloadContext]]) -> None:
        """Delete the objects in the background, with retries. Call it only after that transaction."""
        for ledger_id, context in segments:
            if context.uuid not in self.pending:
                self.pending.add(context.uuid)
                self._background.start(
                    self._delete_until_gone(ledger_id, context), f"deletion of the objects of ledger {ledger_id}"
                )

    @property
    def records(self) -> Under:
        """The read of the records; one more than are handled at once."""
        return Under(f"{self._base}/", RECORDS_READ_MAX + 1)

    async def resume(self, records: Sequence[Node] | None = None) -> None:
        """Continue the deletions that an earlier owner left unfinished. `records`: if all were just read."""
        self.begin(self._decoded(await self._recorded() if records is None else records))

    async def _recorded(self) -> list[Node]:
        names = await self._store.children(self._base)
        nodes = [await self._store.get(f"{self._base}/{name}") for name in names]
        return [node for node in nodes if node is not None]

    def _decoded(self, records: Sequence[Node]) -> list[tuple[int, OffloadContext]]:
        found = []
        for node in records:
            name = node.key.removeprefix(f"{self._base}/")
            ledger, _, uuid = name.partition(":")
            if not ledger.isdecimal():
                continue
            try:
                value = json.loads(node.value)
                context = OffloadContext(uuid, str(value["driver"]), tuple(value["properties"].items()))
            except (ValueError, KeyError, TypeError, AttributeError):
                _log.warning("%s/%s does not name the objects to delete: they stay", self._base, name)
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
                _log.warning(
                    "the objects of ledger %d stay until their object store can be opened: %s", ledger_id, error
                )
                break
            except (ObjectStoreError, MetadataError) as error:
                _log.info("could not delete the objects of ledger %d yet: %s", ledger_id, error)
                await backoff.wait()
            else:
                break
        self.pending.discard(context.uuid)

    async def _delete_now(self, ledger_id: int, context: OffloadContext) -> None:
        """Delete the objects, then their record. ObjectStoreError, ConfigError, MetadataError."""
        await self._tier.delete(ledger_id, context.uuid, context.driver, dict(context.properties))
        try:
            await self._store.delete(self._key(ledger_id, context))
        except NodeMissingError:
            _log.debug("another client already removed the record of the objects of ledger %d", ledger_id)

    async def delete_recorded(self, timeout_s: float) -> None:
        """Delete the recorded objects of a deleted managed ledger as far as possible now; the records keep the rest."""
        try:
            for ledger_id, context in self._decoded(await self._recorded()):
                async with asyncio.timeout(timeout_s):
                    await self._delete_now(ledger_id, context)
        except (ObjectStoreError, ConfigError, MetadataError, TimeoutError) as error:
            _log.warning("could not delete all objects recorded under %s: %s", self._base, error)
