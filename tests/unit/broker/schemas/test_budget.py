"""The cost of a schema check is bounded, and a costly check does not hold the event loop."""

import asyncio
import json
import random
import threading
from typing import Any

import pytest

from quire_broker.errors import SchemaError, TooManyOperationsError
from quire_broker.schemas.avro_check import AvroSchema, unreadable
from quire_broker.schemas.budget import Budget, BudgetSpentError, Checks
from quire_broker.schemas.compatibility import Strategy, incompatible
from quire_broker.schemas.registry import SchemaRegistry
from quire_broker.schemas.stored import Schema, SchemaType
from quire_broker.settings.schemas import SchemaBounds
from tests.sim.loop import SimLoop, simulate
from tests.sim.metadata import SimMetadata, SimMetadataStore
from tests.unit.broker.managed_ledger.ledgers import FakeBookies, FakeClient
from tests.unit.broker.managed_ledger.world import SeededChance, VirtualClock
from tests.unit.broker.schemas.test_registry import SETTINGS, TOPIC


def avro(schema: Any) -> Schema:
    return Schema(SchemaType.AVRO, json.dumps(schema).encode())


def parsed(schema: Any) -> AvroSchema:
    return AvroSchema(json.dumps(schema).encode(), Budget())


def records(prefix: str, count: int, field: str = "int") -> list[dict[str, Any]]:
    return [
        {"type": "record", "name": f"{prefix}{number}", "fields": [{"name": prefix, "type": field}]}
        for number in range(count)
    ]


@pytest.mark.parametrize(
    ("union", "flaw"),
    [
        (["int", "null", "int"], "two branches of the type int"),
        ([{"type": "array", "items": "int"}, {"type": "array", "items": "long"}], "two branches of the type array"),
        ([{"type": "record", "name": "R", "fields": []}, "R"], "two branches of the type R"),
        (["int", ["null", "string"]], "union directly inside a union"),
        ([{"type": ["null"]}], "union directly inside a union"),
    ],
)
def test_a_union_has_one_branch_of_a_type(union: Any, flaw: str) -> None:
    with pytest.raises(ValueError, match=flaw):
        parsed({"type": "record", "name": "Root", "fields": [{"name": "f", "type": union}]})


def test_records_of_one_union_differ_by_name() -> None:
    parsed(records("A", 3))


def test_comparing_equal_unions_costs_little() -> None:
    union = parsed({"type": "map", "values": records("A", 1000)})
    assert unreadable(union, union, Budget(10_000)) is None


def test_comparing_different_unions_is_stopped_by_the_budget() -> None:
    """Each written record fits only the last branch of the reader's union."""
    reader = [*records("A", 999), {"type": "record", "name": "Last", "fields": []}]
    with pytest.raises(BudgetSpentError, match="schemaCheckMaxSteps"):
        unreadable(parsed(reader), parsed(records("B", 1000)), Budget())


def test_a_long_chain_of_records_is_refused_before_the_stack_ends() -> None:
    def nested(name: str) -> AvroSchema:
        chain: list[Any] = [{"type": "record", "name": "R0", "fields": []}]
        for number in range(1, 500):
            fields = [{"name": "f", "type": f"R{number - 1}"}]
            chain.append({"type": "record", "name": f"R{number}", "fields": fields})
        types = {"name": name, "type": ["null", *chain], "default": None}
        return parsed({"type": "record", "name": "Root", "fields": [types, {"name": "last", "type": "R499"}]})

    with pytest.raises(BudgetSpentError, match="deeper than 64"):
        unreadable(nested("a"), nested("b"), Budget())


def test_versions_share_one_budget() -> None:
    fields = [{"name": f"f{number}", "type": "int", "default": 0} for number in range(100)]
    stored = [avro({"type": "record", "name": "R", "fields": fields[: number + 1]}) for number in range(100)]
    new = avro({"type": "record", "name": "R", "fields": fields})
    assert incompatible(new, stored, Strategy.FULL, Budget(5_000)) is None
    with pytest.raises(BudgetSpentError):
        incompatible(new, stored, Strategy.FULL_TRANSITIVE, Budget(5_000))


async def test_a_short_check_runs_at_once_and_a_long_one_in_a_thread() -> None:
    checks = Checks(SchemaBounds(steps_max=10_000))

    def cost(steps: int, budget: Budget) -> int:
        budget.spend(steps)
        return threading.get_ident()

    assert await checks.run(lambda budget: cost(100, budget)) == threading.get_ident()
    assert await checks.run(lambda budget: cost(9_000, budget)) != threading.get_ident()
    with pytest.raises(BudgetSpentError):
        await checks.run(lambda budget: cost(11_000, budget))


async def test_long_checks_wait_in_a_bounded_line() -> None:
    checks = Checks(SchemaBounds(waiting_max=3))
    go = threading.Event()

    def long(budget: Budget) -> bool:
        budget.spend(10_000)
        return go.wait(60)

    running = [asyncio.ensure_future(checks.run(long)) for _ in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(TooManyOperationsError, match="3 checks"):
        await checks.run(long)
    go.set()
    assert await asyncio.gather(*running) == [True] * 3
    assert await checks.run(long)


def test_the_registry_refuses_a_schema_that_is_too_large() -> None:
    async def scenario(loop: SimLoop) -> None:
        bookies = FakeBookies()
        store = SimMetadataStore(SimMetadata(random.Random(1)))
        bounds = SchemaBounds(bytes_max=2_000)
        registry = SchemaRegistry(store, FakeClient(bookies), SETTINGS, VirtualClock(), SeededChance(1), bounds=bounds)
        for schema in (avro(records("A", 100)), Schema(SchemaType.STRING, b"", {"a": "b" * 2_000})):
            with pytest.raises(SchemaError, match="at most 2000 are accepted"):
                await registry.register(TOPIC, schema, Strategy.FULL)
        assert not bookies.of_topic(b"schema")

    simulate(scenario, seed=1)
