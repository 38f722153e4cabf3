"""Stores schemas of topics in the metadata store and in separate ledgers. The node decides which versions exist.

Any broker may register: a ledger with the schema is written and closed first, then the node changes by compare-and-set;
the loser deletes its ledger and reads again. A crash in between leaves an unreferenced ledger of a few hundred bytes.
"""

import asyncio
import logging
from collections import OrderedDict
from functools import partial
from weakref import WeakValueDictionary

from quire_bookie.env.backoff import Backoff
from quire_bookie.env.chance import Chance
from quire_bookie.env.clock import WallClock
from quire_bookie.errors import BadVersionError, LedgerError, MetadataError, MetadataUnavailableError
from quire_bookie.metadata.store import MetadataStore
from quire_bookie.model import EntryId, LedgerId
from quire_broker.errors import SchemaError
from quire_broker.managed_ledger.ledger_port import Ledgers
from quire_broker.managed_ledger.nodes.stored_node import StoredNode
from quire_broker.managed_ledger.stored_passwords import to_read
from quire_broker.schemas.budget import BOUNDS, Budget, Checks
from quire_broker.schemas.compatibility import Strategy, flaw_of, incompatible, same
from quire_broker.schemas.stored import (
    Location,
    Schema,
    SchemaType,
    StoredSchema,
    decode_entry,
    decode_locator,
    encode_entry,
    encode_locator,
    node_path,
)
from quire_broker.settings.managed_ledger import ManagedLedgerSettings
from quire_broker.settings.schemas import SchemaBounds

CACHED_BYTES_MAX = 64 * 1024 * 1024
"""Bound of the cached content of versions, which never changes once stored."""
_CACHED_OVERHEAD_BYTES = 1024
_OF_DELETIONS = (b"", Schema(SchemaType.NONE, b"").hash)
"""Hashes in the node of versions that may mark a deletion, by stock brokers and by ours."""
_log = logging.getLogger("quire.broker.schemas")


class SchemaRegistry:
    """The registry of one broker or reader. Errors of metadata store and ledger client are passed on unchanged."""

    def __init__(
        self,
        metadata: MetadataStore,
        ledgers: Ledgers,
        settings: ManagedLedgerSettings,
        clock: WallClock,
        chance: Chance,
        cached_bytes_max: int = CACHED_BYTES_MAX,
        bounds: SchemaBounds = BOUNDS,
    ) -> None:
        self._metadata = metadata
        self._ledgers = ledgers
        self._settings = settings
        self._clock = clock
        self._chance = chance
        self._bounds = bounds
        self._checks = Checks(bounds)
        self._cache: OrderedDict[tuple[int, int], StoredSchema] = OrderedDict()
        self._cached_bytes = 0
        self._cached_bytes_max = cached_bytes_max
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def versions(self, identity: str) -> list[StoredSchema]:
        """Return the versions in force, oldest first, without those before a deletion."""
        return self._live([await self._read(each) for each in await self.locations(identity)])

    async def history(self, identity: str) -> list[StoredSchema]:
        """Return every schema there ever was, oldest first, including those before a deletion, to read old messages."""
        versions = [await self._read(each) for each in await self.locations(identity)]
        return [each for each in versions if not each.deleted]

    async def latest(self, identity: str) -> StoredSchema | None:
        """Return the newest version; None: the topic has no schema."""
        locations = await self.locations(identity)
        if not locations:
            return None
        found = await self._read(locations[-1])
        return None if found.deleted else found

    async def version(self, identity: str, version: int) -> StoredSchema | None:
        """Return one version; None if it was deleted, also for messages that still carry it: they cannot be decoded."""
        locations = await self.locations(identity)
        wanted = next((each for each in locations if each.version == version), None)
        if wanted is None:
            return None
        marks = [each for each in locations if each.version >= version and each.hash in _OF_DELETIONS]
        ended = any([(await self._read(each)).deleted for each in marks])
        return None if ended else await self._read(wanted)

    async def find(self, identity: str, schema: Schema) -> StoredSchema | None:
        """Return the version that equals this schema, or None."""
        self._require_size(schema)
        versions = await self.versions(identity)
        return await self._checks.run(lambda budget: _same_among(versions, schema, budget))

    async def require_valid(self, schema: Schema) -> None:
        """Raise SchemaError if the schema cannot be registered."""
        self._require_size(schema)
        if schema.type in (SchemaType.NONE, SchemaType.AUTO_CONSUME):
            raise SchemaError(f"a schema of type {schema.type.name} cannot be registered")
        flaw = await self._checks.run(lambda budget: flaw_of(schema, budget))
        if flaw:
            raise SchemaError(flaw)

    async def incompatible(self, identity: str, schema: Schema, strategy: Strategy) -> str | None:
        """Return why a valid schema cannot be the next version; None if it can. SchemaError if it is invalid."""
        await self.require_valid(schema)
        return await self._incompatible(schema, await self.versions(identity), strategy)

    async def register(
        self, identity: str, schema: Schema, strategy: Strategy, *, allow_update: bool = True
    ) -> StoredSchema:
        """Return the version of this schema, storing it if it is new. SchemaError: invalid or incompatible."""
        await self.require_valid(schema)
        lock = self._locks.setdefault(identity, asyncio.Lock())
        async with lock:  # with two producers at once, the second finds the version of the first
            while True:
                node, locations = await self._load(identity)
                versions = self._live([await self._read(each) for each in locations])
                found = await self._checks.run(partial(_same_among, versions, schema))
                if found is not None:
                    return found
                if versions and not allow_update:
                    raise SchemaError(f"{identity}: Schema not found and schema auto updating is disabled.")
                flaw = await self._incompatible(schema, versions, strategy)
                if flaw:
                    raise SchemaError(f"{identity}: {flaw}")
                stored = await self._store(identity, node, locations, schema, deleted=False)
                if stored is not None:
                    return stored

    async def delete(self, identity: str) -> int | None:
        """Delete the versions so far; return the version that marks the deletion, None if there was no schema."""
        while True:
            node, locations = await self._load(identity)
            if not locations or (await self._read(locations[-1])).deleted:
                return None
            stored = await self._store(identity, node, locations, Schema(SchemaType.NONE, b""), deleted=True)
            if stored is not None:
                return stored.version

    async def check_consumer(self, identity: str, schema: Schema, strategy: Strategy) -> None:
        """Raise SchemaError unless this schema can read data of the topic's schemas."""
        await self.require_valid(schema)
        versions = await self.versions(identity)
        if not versions:
            raise SchemaError("Topic does not have schema to check")
        flaw = await self._incompatible(schema, versions, strategy.of_consumer())
        if flaw:
            raise SchemaError(f"{identity}: {flaw}")

    # checks

    def _require_size(self, schema: Schema) -> None:
        size = len(schema.data) + sum(len(key) + len(value) for key, value in schema.properties.items())
        if size > self._bounds.bytes_max:
            raise SchemaError(
                f"the schema has {size} bytes, including properties; at most {self._bounds.bytes_max} are accepted "
                "(schemaMaxBytes)"
            )

    async def _incompatible(self, schema: Schema, versions: list[StoredSchema], strategy: Strategy) -> str | None:
        existing = [each.schema for each in versions]
        return await self._checks.run(lambda budget: incompatible(schema, existing, strategy, budget))

    # storage

    @staticmethod
    def _live(versions: list[StoredSchema]) -> list[StoredSchema]:
        ended = max((number for number, each in enumerate(versions, 1) if each.deleted), default=0)
        return versions[ended:]

    def _node(self, identity: str) -> StoredNode:
        backoff = Backoff(self._settings.retry_backoff_s, self._chance)
        return StoredNode(self._metadata, node_path(identity), backoff)

    async def _load(self, identity: str) -> tuple[StoredNode, list[Location]]:
        node = self._node(identity)
        value = await node.load()
        return node, [] if value is None else decode_locator(node.key, value)

    async def locations(self, identity: str) -> list[Location]:
        """Return where every version is stored, oldest first, also those that were deleted."""
        return (await self._load(identity))[1]

    async def _read(self, location: Location) -> StoredSchema:
        key = (location.ledger_id, location.entry_id)
        cached = self._cache.get(key)
        if cached is not None:
            return cached
        reader = await self._ledgers.open_ledger(
            LedgerId(location.ledger_id),
            password=self._settings.password,
            recover=False,
            accept_stored=to_read,  # stock brokers write schemas with the empty password, whatever is configured
        )
        try:
            entries = await reader.read(EntryId(location.entry_id), EntryId(location.entry_id))
            found = decode_entry(location.version, bytes(entries[0].payload))
        finally:
            await reader.close()
        self._remember(key, found)
        return found

    def _remember(self, key: tuple[int, int], stored: StoredSchema) -> None:
        if key not in self._cache:
            self._cached_bytes += _size_bytes(stored)
        self._cache[key] = stored
        while self._cached_bytes > self._cached_bytes_max and len(self._cache) > 1:
            _, oldest = self._cache.popitem(last=False)
            self._cached_bytes -= _size_bytes(oldest)

    async def _store(
        self, identity: str, node: StoredNode, before: list[Location], schema: Schema, *, deleted: bool
    ) -> StoredSchema | None:
        """Write the next version; None if another broker was first."""
        version = before[-1].version + 1 if before else 0
        stored = StoredSchema(version, schema, self._clock.now_ms(), deleted)
        settings = self._settings
        writer = await self._ledgers.create_ledger(
            ensemble_size=settings.ensemble_size,
            write_quorum=settings.write_quorum,
            ack_quorum=settings.ack_quorum,
            digest_type=settings.digest_type,
            password=settings.password,
            custom={"component": b"schema", "pulsar/schemaId": identity.encode(), "application": b"pulsar"},
            fewer_bookies=True,
        )
        location: Location | None = None
        try:
            entry_id = await writer.append(encode_entry(identity, stored, before))
            await writer.close()
            location = Location(version, writer.ledger_id, entry_id, schema.hash)
            await node.write(encode_locator([*before, location]))
        except BadVersionError:
            # Our write may have taken effect with its answer lost, and another write may have followed it.
            if location is None or location not in await self.locations(identity):
                await self._discard(writer.ledger_id)
                return None
        except (LedgerError, MetadataUnavailableError):
            writer.abandon()
            await self._discard(writer.ledger_id)
            raise
        self._remember((writer.ledger_id, entry_id), stored)
        return stored

    async def _discard(self, ledger_id: LedgerId) -> None:
        try:
            await self._ledgers.delete_ledger(ledger_id)
        except (LedgerError, MetadataError) as error:
            _log.warning("could not delete ledger %d of a schema that was not registered: %s", ledger_id, error)


def _size_bytes(stored: StoredSchema) -> int:
    """Return the approximate size in memory."""
    texts = sum(len(key) + len(value) for key, value in stored.schema.properties.items())
    return _CACHED_OVERHEAD_BYTES + len(stored.schema.data) + texts


def _same_among(versions: list[StoredSchema], schema: Schema, budget: Budget) -> StoredSchema | None:
    return next((each for each in versions if same(each.schema, schema, budget)), None)
