"""Bundles without owner: the leader assigns them, whichever broker is asked; without it the asked one takes them."""

import asyncio
from collections import Counter

import pytest

from quire_broker.balancing import assignments
from quire_broker.balancing.assignments import ASSIGNMENTS, LEADER, key_of, leader_of
from quire_broker.balancing.events import EventKind
from quire_broker.balancing.plan.loads import BrokerId
from quire_broker.ownership.owners import BrokerUrls, Bundle
from tests.unit.broker.balancing.brokers import NAMESPACE, BalancedBroker, balanced_brokers, until

ALL = Bundle(NAMESPACE, "0x00000000_0xffffffff")


async def owners_of(asked: BalancedBroker, brokers: list[BalancedBroker], topics: int) -> Counter[str]:
    """Look up topics at one broker and follow its redirects; count the bundles of each broker."""
    by_urls = {broker.urls: broker for broker in brokers}
    for number in range(topics):
        owner = await asked.find(number)
        if not owner.ours:
            again = await by_urls[owner.urls].find(number)
            assert again.ours, "one redirect leads to the owner"
    return Counter({broker.id: len(broker.owners.held) for broker in brokers})


@pytest.mark.parametrize("asked", [0, 1, 2], ids=["the leader", "another", "a third"])
async def test_bundles_are_spread_whichever_broker_is_asked(asked: int) -> None:
    async with balanced_brokers("a b c", bundles=12) as brokers:
        counts = await owners_of(brokers[asked], brokers, topics=120)
        assert counts == {"a:2": 4, "b:2": 4, "c:2": 4}


@pytest.mark.parametrize("giving", [0, 1], ids=["the leader", "another"])
async def test_bundles_that_a_broker_gives_away_are_spread_over_the_others(giving: int) -> None:
    async with balanced_brokers("a b c", bundles=12) as brokers:
        await owners_of(brokers[0], brokers, topics=120)
        giver = brokers[giving]
        chosen = [await giver.balancing.assignments.successor(bundle) for bundle in sorted(giver.owners.held, key=str)]
        others = [broker.id for broker in brokers if broker is not giver]
        assert Counter(chosen) == dict.fromkeys(others, 2)
        assert not any(broker.moved for broker in brokers), "an answer is no order to move"


async def test_without_a_leader_a_bundle_is_given_to_any_other_broker() -> None:
    async with balanced_brokers("a b", bundles=4) as brokers:
        await brokers[0].tasks.close()
        await brokers[1].tasks.close()
        await until(lambda: not brokers[0].balancing.leader.leads)
        assert await brokers[0].balancing.assignments.successor(ALL) == "b:2"


async def test_brokers_asked_at_the_same_time_name_the_same_owner() -> None:
    async with balanced_brokers("a b c", bundles=4) as brokers:
        for number in range(20):
            found = await asyncio.gather(*(broker.find(number) for broker in brokers))
            assert len({owner.urls for owner in found}) == 1
            assert sum(owner.ours for owner in found) <= 1


async def test_the_leader_is_registered_as_in_pulsar() -> None:
    async with balanced_brokers("a b", bundles=1) as brokers:
        assert await leader_of(brokers[1].session) == {"brokerId": "a:2", "serviceUrl": "http://a:2"}
        node = await brokers[0].session.get(LEADER)
        assert node is not None
        assert node.value == b'{"brokerId":"a:2","serviceUrl":"http://a:2"}'


async def test_another_broker_leads_when_the_lease_of_the_leader_ends() -> None:
    async with balanced_brokers("a b c", bundles=8) as brokers:
        brokers[0].session.lose_session()
        rest = brokers[1:]
        await until(lambda: any(broker.balancing.leader.leads for broker in rest))
        assert not brokers[0].balancing.leader.leads
        assert await owners_of(brokers[1], rest, topics=40) == {"b:2": 4, "c:2": 4}
        assert sum(broker.balancing.events.counts[EventKind.LEADER] for broker in rest) == 1


async def test_without_an_answer_of_the_leader_the_asked_broker_takes_the_bundle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(assignments, "ASK_S", 0.05)
    async with balanced_brokers("a b", bundles=4) as brokers:
        await brokers[0].tasks.close()
        await brokers[1].tasks.close()
        await brokers[0].session.put(LEADER, b'{"brokerId":"a:2"}', ephemeral=True)
        owner = await brokers[1].find(1)
        assert owner.ours
        assert brokers[1].balancing.events.counts[EventKind.FALLBACK] == 1


async def test_a_broker_that_stops_does_not_wait_for_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assignments, "ASK_S", 3600.0)
    async with balanced_brokers("a b", bundles=4) as brokers:
        await brokers[1].tasks.close()
        await brokers[1].balancing.close()
        assert (await brokers[1].find(1)).ours


async def test_without_a_leader_the_asked_broker_takes_the_bundle() -> None:
    async with balanced_brokers("a b", bundles=4) as brokers:
        for broker in brokers:
            await broker.tasks.close()
        assert (await brokers[1].find(1)).ours


async def test_an_assignment_to_a_broker_that_is_gone_is_made_again() -> None:
    async with balanced_brokers("a b c", bundles=1) as brokers:
        owner = await brokers[0].find(1)
        chosen = next(broker for broker in brokers if broker.urls == owner.urls)
        await chosen.registration.close()
        rest = [broker for broker in brokers if broker is not chosen]
        found = await rest[-1].find(1)
        assert found.urls in {broker.urls for broker in rest}


async def test_an_assignment_to_a_broker_that_is_drained_is_made_again() -> None:
    async with balanced_brokers("a b c", bundles=1) as brokers:
        leads = brokers[0]
        owner = await leads.find(1)
        chosen = next(broker for broker in brokers if broker.urls == owner.urls)
        assert not owner.ours, "else no assignment is stored"
        await chosen.registration.publish({"draining": True})
        chosen.balancing.assignments._isolation.draining = True
        await until(lambda: leads.balancing.leader.view()[BrokerId(chosen.id)].draining)
        rest = {broker.urls for broker in brokers if broker is not chosen}
        for broker in brokers[::-1]:
            assert (await broker.find(1)).urls in rest


async def test_an_assignment_that_cannot_be_read_does_not_delay_others() -> None:
    async with balanced_brokers("a b", bundles=8) as brokers:
        number = 0
        while not (await brokers[1].find(number)).ours:
            number += 1
        (held,) = brokers[1].owners.held
        await brokers[0].session.put(key_of(held), b"not JSON")
        assert sum((await owners_of(brokers[1], brokers, topics=80)).values()) == 8
        assert brokers[1].balancing.events.counts[EventKind.FALLBACK] == 0


async def test_isolation_policies_and_drains_decide_who_may_get_a_bundle() -> None:
    async with balanced_brokers("a b c", bundles=6) as brokers:
        only = {"namespaces": ["shop/.*"], "primary": ["b", "c"]}
        await brokers[0].policies.set_isolation("orders", only)
        await brokers[2].registration.publish({"draining": True})
        await until(lambda: brokers[0].balancing.leader.view()[BrokerId("c:2")].draining)
        assert await owners_of(brokers[0], brokers, topics=60) == {"a:2": 0, "b:2": 6, "c:2": 0}


async def test_nodes_of_a_dead_run_are_taken_again_by_the_same_broker() -> None:
    async with balanced_brokers("a b", bundles=1) as brokers:
        other = brokers[1].owners
        await brokers[1].session.put(ALL.key, b"x", ephemeral=True)
        await brokers[1].session.delete(ALL.key)
        dead = type(brokers[1].session)(brokers[1].session._server)
        await dead.put(ALL.key, other._value, ephemeral=True)
        assert (await brokers[1].find(1)).ours
        redirected = await brokers[0].find(1)
        assert (redirected.ours, redirected.urls) == (False, BrokerUrls("pulsar://b:1", "http://b:2"))


async def test_a_broker_alone_takes_bundles_without_a_question() -> None:
    async with balanced_brokers("a", bundles=4) as brokers:
        for number in range(20):
            assert (await brokers[0].find(number)).ours
        written = [key for _, key in brokers[0].session._server.history if key.startswith(ASSIGNMENTS)]
        assert not written


async def test_a_question_without_candidate_is_removed_and_refused() -> None:
    async with balanced_brokers("a b", bundles=1) as brokers:
        await brokers[0].policies.set_isolation("orders", {"namespaces": ["shop/.*"], "primary": ["z"]})
        for broker in brokers:
            with pytest.raises(Exception, match="no broker that may own bundles"):
                await broker.find(1)
        assert await brokers[0].session.get(key_of(ALL)) is None
