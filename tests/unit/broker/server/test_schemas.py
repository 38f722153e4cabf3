"""Schemas of requests, and the strategies of topics."""

import json
import random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from quire_broker.errors import AuthorizationError, NotAllowedError, SchemaError
from quire_broker.names import NamespaceName, parse_topic
from quire_broker.policies.store import PolicyStore
from quire_broker.schemas.compatibility import Strategy
from quire_broker.schemas.registry import SchemaRegistry
from quire_broker.schemas.stored import Schema, SchemaType
from quire_broker.security.authorization import Authorization, Rights
from quire_broker.server.schemas import (
    answer_get,
    answer_get_or_create,
    of_consumer,
    of_producer,
    schema_of,
    strategy_of,
)
from quire_broker.settings.managed_ledger import ManagedLedgerSettings
from quire_broker.topic.rules_in_force import RulesInForce
from quire_broker.wire.proto import pulsar_pb2 as pb
from tests.sim.loop import SimLoop, simulate
from tests.sim.metadata import SimMetadata, SimMetadataStore
from tests.unit.broker.managed_ledger.ledgers import FakeBookies, FakeClient
from tests.unit.broker.managed_ledger.world import SeededChance, VirtualClock

PARTITION = parse_topic("persistent://acme/orders/x-partition-0")


def test_bytes_are_not_a_schema_and_unknown_types_are_refused() -> None:
    assert schema_of(pb.Schema(name="", schema_data=b"", type=0)) is None
    assert schema_of(pb.Schema()) is None
    found = schema_of(pb.Schema(name="x", schema_data=b"d", type=2, properties=[pb.KeyValue(key="a", value="b")]))
    assert found == Schema(SchemaType.JSON, b"d", {"a": "b"})
    with pytest.raises(SchemaError, match="99"):
        schema_of(pb.Schema(name="", schema_data=b"", type=99))


@pytest.mark.parametrize(
    ("policies", "strategy"),
    [
        ({}, "FULL"),
        ({"schema_compatibility_strategy": "UNDEFINED"}, "FULL"),
        ({"schema_auto_update_compatibility_strategy": "Backward"}, "BACKWARD"),
        ({"schema_auto_update_compatibility_strategy": "AutoUpdateDisabled"}, "ALWAYS_INCOMPATIBLE"),
        ({"schema_compatibility_strategy": "FULL", "schema_auto_update_compatibility_strategy": "Backward"}, "FULL"),
    ]
    + [
        ({"schema_compatibility_strategy": each.name}, each.name) for each in Strategy if each is not Strategy.UNDEFINED
    ],
)
def test_the_strategy_is_full_by_default(policies: dict[str, Any], strategy: str) -> None:
    assert strategy_of(policies, PARTITION).name == strategy


def test_an_unknown_strategy_is_named_in_the_error() -> None:
    with pytest.raises(SchemaError, match="'SOME'"):
        strategy_of({"schema_compatibility_strategy": "SOME"}, PARTITION)


def message_of(*names: str) -> pb.Schema:
    fields = [{"name": name, "type": "int", "default": 0} for name in names]
    data = json.dumps({"type": "record", "name": "R", "fields": fields}).encode()
    return pb.Schema(name="", schema_data=data, type=SchemaType.AVRO)


async def secured_parts() -> tuple[Any, Authorization]:
    """Parts with a registry, and a namespace where `part` has rights for one partition and `whole` for the topic."""
    metadata = SimMetadata(random.Random(1), delay_s=(0.0, 0.0))
    policies = PolicyStore(SimMetadataStore(metadata), "c1")
    await policies.create_tenant("acme", {"adminRoles": [], "allowedClusters": ["c1"]})
    both = ["produce", "consume"]
    grants = {"destination_auth": {str(PARTITION): {"part": both}, str(PARTITION.partitioned): {"whole": both}}}
    await policies.create_namespace(NamespaceName("acme", "orders"), {"auth_policies": grants})
    settings = ManagedLedgerSettings(retry_backoff_s=(0.01, 0.1))
    store, client = SimMetadataStore(metadata), FakeClient(FakeBookies())
    registry = SchemaRegistry(store, client, settings, VirtualClock(), SeededChance(1))
    in_force = RulesInForce(policies, cast(Any, None), {})
    topics = SimpleNamespace(rules_of=in_force.of, rules=lambda topic: in_force.of(topic.name, {}))
    return SimpleNamespace(schemas=registry, policies=policies, topics=topics), Authorization(policies, frozenset())


def test_rights_for_a_partition_alone_add_no_schema_to_its_topic() -> None:
    async def scenario(_: SimLoop) -> None:
        parts, authorization = await secured_parts()
        part, whole = Rights(authorization, "part"), Rights(authorization, "whole")
        with pytest.raises(AuthorizationError, match=r"acme/orders/x, whose schemas .*x-partition-0 shares"):
            await of_producer(parts, part, PARTITION, message_of("a"))
        request = pb.CommandGetOrCreateSchema(request_id=1, topic=str(PARTITION), schema=message_of("a"))
        with pytest.raises(AuthorizationError):
            await answer_get_or_create(parts, part, request)
        assert await parts.schemas.latest("acme/orders/x") is None
        version = await of_producer(parts, whole, PARTITION, message_of("a"))
        assert await of_producer(parts, part, PARTITION, message_of("a")) == version
        with pytest.raises(AuthorizationError):
            await of_producer(parts, part, PARTITION, message_of("a", "b"))
        assert await of_producer(parts, part, PARTITION, pb.Schema()) == b""
        assert len(await parts.schemas.versions("acme/orders/x")) == 1

    simulate(scenario, seed=1)


def test_a_consumer_of_a_partition_alone_gives_its_topic_no_first_schema() -> None:
    async def scenario(_: SimLoop) -> None:
        parts, authorization = await secured_parts()
        part, whole = Rights(authorization, "part"), Rights(authorization, "whole")
        producers = SimpleNamespace(connected=[])
        topic: Any = SimpleNamespace(name=PARTITION, holds_messages=False, producers=producers)
        with pytest.raises(AuthorizationError):
            await of_consumer(parts, part, topic, "s", message_of("a"))
        await of_consumer(parts, part, topic, "s", pb.Schema())
        assert await parts.schemas.latest("acme/orders/x") is None
        await of_consumer(parts, whole, topic, "s", message_of("a"))
        await of_consumer(parts, part, topic, "s", message_of("a"))
        assert len(await parts.schemas.versions("acme/orders/x")) == 1

    simulate(scenario, seed=1)


async def test_a_version_of_more_bytes_than_a_number_has_is_refused() -> None:
    request = pb.CommandGetSchema(request_id=1, topic="x", schema_version=b"\x7f" * 100_000)
    with pytest.raises(NotAllowedError, match="schema_version has 100000 bytes; the limit is 8"):
        await answer_get(cast(Any, None), Rights(None, ""), request)
