"""The registry on simulated metadata and fake bookies: two brokers at once, lost answers, deletions."""

import asyncio
import json
import random

import pytest

from quire_broker.errors import SchemaError
from quire_broker.schemas.compatibility import Strategy
from quire_broker.schemas.registry import SchemaRegistry
from quire_broker.schemas.stored import Schema, SchemaType
from quire_broker.settings.managed_ledger import ManagedLedgerSettings
from tests.sim.loop import SimLoop, simulate
from tests.sim.metadata import SimMetadata, SimMetadataStore
from tests.unit.broker.managed_ledger.ledgers import FakeBookies, FakeClient
from tests.unit.broker.managed_ledger.world import SeededChance, VirtualClock

TOPIC = "t/n/x"
SETTINGS = ManagedLedgerSettings(retry_backoff_s=(0.01, 0.1))


def registry(server: SimMetadata, bookies: FakeBookies, seed: int = 1) -> SchemaRegistry:
    """Return the registry of one broker."""
    return SchemaRegistry(SimMetadataStore(server), FakeClient(bookies), SETTINGS, VirtualClock(), SeededChance(seed))


def avro(*names: str) -> Schema:
    fields = [{"name": name, "type": "int", "default": 0} for name in names]
    return Schema(SchemaType.AVRO, json.dumps({"type": "record", "name": "R", "fields": fields}).encode(), {"a": "b"})


@pytest.mark.parametrize("seed", range(10))
def test_brokers_that_register_at_once_agree_on_the_versions_and_leave_no_ledger(seed: int) -> None:
    async def scenario(loop: SimLoop) -> None:
        server, bookies = SimMetadata(random.Random(seed), unknown_chance=0.4), FakeBookies()
        brokers = [registry(server, bookies, number) for number in range(3)]
        schemas = [avro("a"), avro("a", "b"), avro("a"), avro("b")]
        work = [each.register(TOPIC, schema, Strategy.FULL) for each in brokers for schema in schemas]
        found = await asyncio.gather(*work)
        reader = registry(server, bookies)
        versions = await reader.versions(TOPIC)
        assert [each.version for each in versions] == [0, 1, 2]
        stored = {each.version: each.schema for each in versions}
        assert [stored[each.version] for each in found] == schemas * 3
        assert len(bookies.of_topic(b"schema")) == 3

    simulate(scenario, seed=seed)


def test_a_deletion_ends_the_versions_and_consumers_no_longer_get_them() -> None:
    async def scenario(loop: SimLoop) -> None:
        server, bookies = SimMetadata(random.Random(1)), FakeBookies()
        one = registry(server, bookies)
        assert await one.delete(TOPIC) is None
        await one.register(TOPIC, avro("a"), Strategy.FULL)
        assert await one.delete(TOPIC) == 1
        assert await one.delete(TOPIC) is None
        other = registry(server, bookies)
        assert await other.latest(TOPIC) is None
        assert await other.versions(TOPIC) == []
        assert await other.version(TOPIC, 0) is None
        assert [each.schema for each in await other.history(TOPIC)] == [avro("a")]
        text = Schema(SchemaType.STRING, b"")
        assert (await other.register(TOPIC, text, Strategy.FULL)).version == 2
        assert await other.find(TOPIC, avro("a")) is None
        assert await other.version(TOPIC, 0) is None
        kept = await other.version(TOPIC, 2)
        assert kept is not None and kept.schema == text

    simulate(scenario, seed=1)


def test_versions_that_do_not_fit_the_cache_are_read_again() -> None:
    async def scenario(loop: SimLoop) -> None:
        server, bookies = SimMetadata(random.Random(1)), FakeBookies()
        store, client = SimMetadataStore(server), FakeClient(bookies)
        one = SchemaRegistry(store, client, SETTINGS, VirtualClock(), SeededChance(1), cached_bytes_max=2_000)
        schemas = [avro("a"), avro("a", "b"), avro("b")]
        for schema in schemas:
            await one.register(TOPIC, schema, Strategy.FULL)
        for _ in range(2):
            assert [each.schema for each in await one.versions(TOPIC)] == schemas

    simulate(scenario, seed=1)


def test_an_incompatible_schema_is_refused_and_not_stored() -> None:
    async def scenario(loop: SimLoop) -> None:
        server, bookies = SimMetadata(random.Random(1)), FakeBookies()
        one = registry(server, bookies)
        await one.register(TOPIC, avro("a"), Strategy.FULL)
        with pytest.raises(SchemaError, match="exists schema type AVRO"):
            await one.register(TOPIC, Schema(SchemaType.INT32, b""), Strategy.FULL)
        with pytest.raises(SchemaError, match="auto updating is disabled"):
            await one.register(TOPIC, avro("a", "b"), Strategy.FULL, allow_update=False)
        with pytest.raises(SchemaError, match="Invalid schema"):
            await one.register(TOPIC, Schema(SchemaType.AVRO, b"{"), Strategy.ALWAYS_COMPATIBLE)
        with pytest.raises(SchemaError, match="does not have schema"):
            await one.check_consumer("t/n/y", avro("a"), Strategy.FULL)
        await one.check_consumer(TOPIC, avro("a", "b"), Strategy.FULL)
        assert len(bookies.of_topic(b"schema")) == 1

    simulate(scenario, seed=1)
