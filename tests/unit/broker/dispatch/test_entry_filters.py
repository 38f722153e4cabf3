"""Entry filters: deliveries, drops and counts, the effect of errors, and the bound of their time."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from quire_bookie.errors import ConfigError
from quire_broker.dispatch import entry_filters
from quire_broker.dispatch.delivery import KeyShared
from quire_broker.dispatch.dispatcher import Dispatcher
from quire_broker.dispatch.entry_filters import (
    BUILT_IN,
    EntryFilter,
    FilterCost,
    FilteredEntry,
    SubscriptionFilters,
    by_properties,
    flaw_of_names,
    installed_filters,
    missing,
)
from quire_broker.dispatch.key_shared import KeySharedDispatcher
from quire_broker.dispatch.shared import SharedDispatcher
from quire_broker.dispatch.single_active import SingleActiveDispatcher
from quire_broker.settings.dispatch import DispatchSettings
from quire_broker.wire.proto.pulsar_pb2 import KeyValue, MessageMetadata
from tests.unit.broker.dispatch.doubles import Clock, Link, MemoryCursor, MemoryLedger, consumer, settle

RED = [KeyValue(key="color", value="red")]
BLUE = [KeyValue(key="color", value="blue")]


class Stage:
    """A topic in memory with a dispatcher that has filters."""

    def __init__(self, kind: str, *filters: EntryFilter, **wanted: str) -> None:
        self.ledger = MemoryLedger()
        self.cursor = MemoryCursor(self.ledger)
        self.link = Link()
        self.filters = SubscriptionFilters("t", "s", lambda: wanted, filters)
        self.dispatcher = self._dispatcher(kind)
        self.dispatcher.filters = self.filters
        self.ledger.on_append(self.dispatcher.appended)
        self.running = asyncio.get_running_loop().create_task(self.dispatcher.run())
        self.member = consumer(0, self.link, 1000)
        self.dispatcher.add(self.member)

    def _dispatcher(self, kind: str) -> Dispatcher:
        settings, clock = DispatchSettings(failover_delay_s=0.0), Clock()
        if kind == "shared":
            return SharedDispatcher(self.cursor, self.ledger, settings, clock)
        if kind == "key-shared":
            return KeySharedDispatcher(self.cursor, self.ledger, settings, clock, KeyShared())
        return SingleActiveDispatcher(self.cursor, self.cursor, self.ledger, settings, clock, topic="t")

    async def received(self) -> list[int]:
        await settle()
        return self.link.entries(0)


@pytest.fixture(params=["shared", "key-shared", "exclusive"])
def kind(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
async def stages() -> AsyncIterator[list[Stage]]:
    made: list[Stage] = []
    yield made
    for stage in made:
        stage.dispatcher.close()
        stage.running.cancel()
    await asyncio.gather(*(stage.running for stage in made), return_exceptions=True)


async def test_dropped_entries_are_acknowledged_and_counted(kind: str, stages: list[Stage]) -> None:
    stages.append(stage := Stage(kind, by_properties, **{"filter.color": "red, green"}))
    for properties in (RED, BLUE, RED, []):
        stage.ledger.publish(properties=properties)
    assert await stage.received() == [0, 2]
    stats = stage.filters.stats
    assert (stats.processed, stats.accepted, stats.rejected, stats.errors) == (4, 2, 2, 0)
    assert stage.cursor.acked == {1, 3}


async def test_an_entry_is_delivered_if_all_filters_deliver_it(kind: str, stages: list[Stage]) -> None:
    stages.append(stage := Stage(kind, lambda entry: True, lambda entry: entry.metadata.sequence_id != 1))
    for number in range(3):
        stage.ledger.publish(sequence_id=number)
    assert await stage.received() == [0, 2]


async def test_without_filters_nothing_is_counted(kind: str, stages: list[Stage]) -> None:
    stages.append(stage := Stage(kind))
    stage.ledger.publish()
    assert await stage.received() == [0]
    assert stage.filters.stats.processed == 0


async def test_a_filter_that_fails_drops_nothing(
    kind: str, stages: list[Stage], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entry_filters, "FILTER_STEP_S", 60.0)  # logging a failure may take longer than a step

    def broken(entry: FilteredEntry) -> bool:
        raise KeyError("defect")

    stages.append(stage := Stage(kind, broken))
    for _ in range(5):
        stage.ledger.publish()
    assert await stage.received() == [0, 1, 2, 3, 4]
    assert (stage.filters.stats.errors, stage.filters.stats.rejected) == (5, 0)
    assert len([line for line in caplog.records if "the entry is delivered" in line.message]) == 3, "not each is logged"


async def test_a_filter_that_is_not_installed_keeps_entries_back_until_the_policy_changes(
    kind: str, stages: list[Stage]
) -> None:
    stages.append(stage := Stage(kind, missing("theirs")))
    stage.ledger.publish()
    assert await stage.received() == []
    assert stage.cursor.acked == set()
    stage.filters.filters = ()
    async with asyncio.timeout(20):
        while not stage.link.entries(0):  # noqa: ASYNC110  a retry with back-off
            await asyncio.sleep(0.01)
    assert await stage.received() == [0]


async def test_a_slow_filter_ends_the_step_and_makes_its_subscription_pause(kind: str, stages: list[Stage]) -> None:
    stages.append(stage := Stage(kind))

    def slow(entry: FilteredEntry) -> bool:
        stage.filters.cost.taken_s += 0.015  # as if it had taken that long
        return True

    stage.filters.filters = (slow,)
    for _ in range(4):
        stage.ledger.publish()
    assert await stage.received() == [0, 1], "20 ms are spent after two"
    assert stage.filters.cost.taken_s == 0.0, "it pauses"
    async with asyncio.timeout(20):
        while len(stage.link.entries(0)) < 4:  # noqa: ASYNC110  the end of a pause
            await asyncio.sleep(0.01)


def test_the_pause_is_four_times_what_the_filters_took_and_bounded() -> None:
    cost = FilterCost()
    assert cost.take_pause_s() == 0.0
    for taken_s, pause_s in ((0.004, 0.0), (0.02, 0.08), (100.0, 5.0)):
        cost.taken_s = taken_s
        assert cost.take_pause_s() == pytest.approx(pause_s)
        assert cost.taken_s == 0.0


@pytest.mark.parametrize(
    ("wanted", "properties", "is_batch", "delivered"),
    [
        ({}, {}, False, True),
        ({"other": "x"}, {}, False, True),
        ({"filter.a": "1"}, {"a": "1"}, False, True),
        ({"filter.a": "1"}, {"a": "2"}, False, False),
        ({"filter.a": "1"}, {}, False, False),
        ({"filter.a": "1,2", "filter.b": "x"}, {"a": "2", "b": "x"}, False, True),
        ({"filter.a": "1,2", "filter.b": "x"}, {"a": "2", "b": "y"}, False, False),
        ({"filter.a": "1"}, {}, True, True),
    ],
)
def test_the_built_in_filter_compares_properties(
    wanted: dict[str, str], properties: dict[str, str], is_batch: bool, delivered: bool
) -> None:
    metadata = MessageMetadata(properties=[KeyValue(key=key, value=value) for key, value in properties.items()])
    assert by_properties(FilteredEntry("t", "s", wanted, metadata, 1, is_batch)) is delivered


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("properties", None),
        (" properties , properties ", None),
        ("", "can't be empty"),
        (" , ", "can't be empty"),
        ("com.example.Filter", "'com.example.Filter' not found: this broker has properties."),
        (",".join(["properties"] * 17), "17 entry filters; a topic has at most 16"),
    ],
)
def test_names_of_filters_are_checked(text: str, reason: str | None) -> None:
    found = flaw_of_names(text, BUILT_IN)
    assert found is None if reason is None else reason in str(found)


class Installed:
    """Entry points of an environment."""

    def __init__(self, **points: Any) -> None:
        self.points = points

    def __call__(self, group: str) -> Iterator[Any]:
        assert group == "quire.entry_filters"
        for name, loaded in self.points.items():

            def load(loaded: Any = loaded) -> Any:
                if isinstance(loaded, Exception):
                    raise loaded
                return loaded

            yield SimpleNamespace(name=name, value=f"package:{name}", load=load)


def test_filters_of_the_environment_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def mine(entry: FilteredEntry) -> bool:
        return False

    monkeypatch.setattr(entry_filters, "entry_points", Installed(mine=mine))
    assert installed_filters() == {**BUILT_IN, "mine": mine}


@pytest.mark.parametrize(
    ("points", "reason"),
    [
        ({"mine": ImportError("no module")}, "'mine' .package:mine. cannot be loaded: ImportError"),
        ({"mine": 7}, "is not a function"),
        ({"properties": by_properties}, "has the name of a built-in filter: rename it"),
    ],
    ids=["import", "number", "name"],
)
def test_filters_that_cannot_work_stop_the_start(
    points: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entry_filters, "entry_points", Installed(**points))
    with pytest.raises(ConfigError, match=reason):
        installed_filters()
