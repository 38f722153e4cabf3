"""The leader's rounds: moves are ordered at their source, happen, and are cleared away."""

import asyncio
import random
from typing import Any

import pytest

from quire_bookie.errors import MetadataUnavailableError
from quire_broker.balancing import leader
from quire_broker.balancing.assignments import ASSIGNMENTS
from quire_broker.balancing.events import EventKind
from quire_broker.balancing.made_moves import MOVES, made_before
from quire_broker.balancing.plan.loads import BrokerId
from tests.sim.metadata import SimMetadata, SimMetadataStore
from tests.unit.broker.balancing.brokers import BalancedBroker, balanced_brokers, until


async def loaded(brokers: list[BalancedBroker]) -> None:
    """Let the first broker own all four bundles and be overloaded; wait until the leader knows."""
    for number in range(40):
        assert (await brokers[0].find(number)).ours
    for broker in brokers[1:]:
        await broker.start()
    await brokers[0].report(90.0, **{"0x00": 10.0, "0x40": 20.0, "0x80": 30.0, "0xc0": 40.0})
    for broker in brokers[1:]:
        await broker.report(2.0)
    view = brokers[0].balancing.leader.view
    await until(lambda: {name: load.usage for name, load in view().items()} == {"a:2": 0.9, "b:2": 0.02})


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader, "CHECK_S", 0.05)


class TwoBrokers:
    """The first broker alone, then the second one."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings

    async def __aenter__(self) -> list[BalancedBroker]:
        self._running = balanced_brokers("a", bundles=4, **self.settings)
        brokers = await self._running.__aenter__()
        second = BalancedBroker(brokers[0].session._server, "b", brokers[0].balancing.settings)
        brokers.append(second)
        await loaded(brokers)
        return brokers

    async def __aexit__(self, *error: object) -> None:
        await self._running.__aexit__(None, None, None)


async def test_an_overloaded_broker_gives_bundles_to_another(quick: None) -> None:
    async with TwoBrokers(hits=1) as brokers:
        first, second = brokers
        plan = await first.balancing.leader.round()
        assert [(move.bundle[12:16], move.source, move.target) for move in plan.moves] == [
            ("0xc0", "a:2", "b:2"),
            ("0x00", "a:2", "b:2"),
        ]
        await until(lambda: len(first.owners.held) == 2)
        found = await second.find_in(first.moved[0][0])
        assert found.ours
        elsewhere = await first.find_in(first.moved[0][0])
        assert elsewhere.urls == second.urls
        server = first.session._server
        await second.find_in(first.moved[1][0])
        await until(lambda: not [key for key in server.nodes if key.startswith(ASSIGNMENTS)])
        assert first.balancing.events.counts[EventKind.MOVED] == 2
        assert not (await first.balancing.leader.round()).moves, "the reports are from before the move"


async def test_a_dry_run_moves_nothing_and_tells_the_same_on_every_broker() -> None:
    async with TwoBrokers() as brokers:
        plans = [(await broker.balancing.leader.dry_run())[1] for broker in brokers]
        assert [move.explain() for move in plans[0].moves] == [move.explain() for move in plans[1].moves]
        assert len(plans[0].moves) == 2
        assert not brokers[0].moved
        assert not (await brokers[0].balancing.leader.round()).moves, "it must be overloaded for some rounds"
        assert (await brokers[0].balancing.leader.round(at_once=True)).moves


async def test_rounds_at_the_same_time_order_each_move_once_and_obey_the_limit() -> None:
    async with TwoBrokers(hits=1, moves_per_minute_max=1) as brokers:
        first = brokers[0].balancing.leader
        plans = await asyncio.gather(first.round(), first.round(at_once=True), first.round())
        assert [len(plan.moves) for plan in plans] == [1, 0, 0]
        assert brokers[0].balancing.events.counts[EventKind.MOVED] == 1


async def test_a_round_that_fails_in_the_middle_remembers_the_moves_that_it_ordered() -> None:
    async with TwoBrokers(hits=1) as brokers:
        first = brokers[0]
        ordered: list[str] = []
        put = first.session.put

        async def fails_at_the_second(key: str, value: bytes, **given: Any) -> int:
            if key.startswith(ASSIGNMENTS):
                ordered.append(key)
                if len(ordered) == 2:
                    raise MetadataUnavailableError("no answer")
            return await put(key, value, **given)

        first.session.put = fails_at_the_second  # type: ignore[method-assign]
        with pytest.raises(MetadataUnavailableError):
            await first.balancing.leader.round()
        assert not (await first.balancing.leader.round()).moves, "the reports are from before the first move"
        assert len(ordered) == 2


async def test_a_broker_that_leads_no_more_moves_nothing() -> None:
    async with TwoBrokers(hits=1) as brokers:
        await brokers[0].session.delete("/loadbalance/leader")
        await until(lambda: brokers[1].balancing.leader.leads)
        assert not (await brokers[0].balancing.leader.round()).moves


async def test_the_limit_of_moves_survives_a_change_of_leader() -> None:
    async with TwoBrokers(hits=1, moves_per_minute_max=1) as brokers:
        first, second = (broker.balancing.leader for broker in brokers)
        assert len((await first.round()).moves) == 1
        await brokers[0].session.delete("/loadbalance/leader")
        await until(lambda: second.leads)
        plan = await second.round()
        assert not plan.moves
        assert plan.queued
        assert "at most 1 are made in a minute" in plan.notes[-1]


@pytest.mark.parametrize(
    ("stored", "count"), [(None, 0), (b'{"moves": 3}', 3), (b'{"moves": 1e9}', 5), (b'{"moves": -1}', 0), (b"{", 5)]
)
async def test_a_damaged_record_of_moves_counts_as_the_limit(stored: bytes | None, count: int) -> None:
    session = SimMetadataStore(SimMetadata(random.Random(1), delay_s=(0.0, 0.0)))
    if stored is not None:
        await session.put(MOVES, stored)
    assert await made_before(session, 5) == count


async def test_a_move_that_does_not_happen_is_given_up(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader, "MOVE_S", 0.1)
    async with TwoBrokers(hits=1) as brokers:
        brokers[0].balancing.assignments.on_move = lambda bundle, target: None
        await brokers[0].balancing.leader.round()
        events = brokers[0].balancing.events
        await until(lambda: events.counts[EventKind.GIVEN_UP])
        assert len(brokers[0].owners.held) == 4


async def test_malformed_names_and_numbers_of_a_report_end_no_term_and_are_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with TwoBrokers(hits=1) as brokers:
        first = brokers[0]
        report = dict(first.registration.data)
        bundle = {"msgRateIn": 45.0, "topics": 10**400, "producerCount": float("inf")}
        names = ("shop/orders", "a/b/c/0x00000000_0xffffffff", "shop/orders/all", "")
        report["lastStats"] = dict.fromkeys(names, bundle) | report["lastStats"]
        leader = first.balancing.leader
        for number in range(2):
            await first.registration.publish(report | {"numTopics": 77 + number})
            await until(lambda topics=77 + number: leader.view()[BrokerId("a:2")].topics == topics)
        plan = await leader.round()
        assert {move.bundle.rpartition("/")[0] for move in plan.moves} == {"shop/orders"}
        assert leader.leads
        assert [record.getMessage() for record in caplog.records if "not a name of a bundle" in record.message] == [
            "/loadbalance/brokers/a:2: 'shop/orders' is not a name of a bundle: such bundles are not moved"
        ]
