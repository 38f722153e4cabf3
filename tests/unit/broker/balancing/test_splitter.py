"""Splits by the owner: both halves are its own at once, other brokers find it, and the old node goes later."""

import asyncio
from typing import Any

import pytest

from quire_bookie.errors import MetadataUnavailableError
from quire_broker.balancing import splitter
from quire_broker.balancing.load_report import BundleStats
from quire_broker.balancing.plan.loads import BundleName
from quire_broker.errors import ConflictError
from quire_broker.ownership.owners import Bundle
from tests.unit.broker.balancing.brokers import NAMESPACE, balanced_brokers, until

ALL = Bundle(NAMESPACE, "0x00000000_0xffffffff")
HALVES = {Bundle(NAMESPACE, "0x00000000_0x7fffffff"), Bundle(NAMESPACE, "0x7fffffff_0xffffffff")}
CROWDED = {BundleName(str(ALL)): BundleStats(topics=1001)}


async def test_a_crowded_bundle_is_split_without_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    async with balanced_brokers("a b", bundles=1, split_hits=1) as brokers:
        for broker in (*brokers, *brokers):
            await broker.find(1)  # now both have the old bundles in their caches
        owner, other = sorted(brokers, key=lambda broker: -len(broker.owners.held))
        tenure = owner.owners.tenure(ALL)
        await owner.balancing.splitter.check(CROWDED)
        assert owner.owners.held == HALVES
        assert {owner.owners.tenure(half) for half in HALVES} == {tenure}, "open topics are not loaded again"
        assert (await owner.find(1)).ours
        assert (await other.find(1)).urls == owner.urls, "by the old node"
        monkeypatch.setattr(splitter, "KNOWN_S", 0.0)
        await owner.balancing.splitter.check({})
        assert await owner.session.get(ALL.key) is None
        other.policies.forget_bundles(NAMESPACE)
        assert (await other.find(1)).urls == owner.urls, "by the nodes of the halves"
        bundles = await other.policies.bundles(NAMESPACE)
        assert bundles is not None
        assert bundles.names == tuple(sorted(half.range for half in HALVES))


async def test_splits_by_topic_count_divide_the_topics() -> None:
    async with balanced_brokers("a", bundles=1) as (broker,):
        await broker.find(1)
        stats = BundleStats(topics=4, topic_hashes=[1, 2, 3, 4])
        halves = await broker.balancing.splitter.split(ALL, stats, "asked", "topic_count_equally_divide")
        assert [half.range for half in halves] == ["0x00000000_0x00000003", "0x00000003_0xffffffff"]


async def test_only_the_owner_splits() -> None:
    async with balanced_brokers("a b", bundles=1) as brokers:
        for broker in brokers:
            if not (await broker.find(1)).ours:
                with pytest.raises(ConflictError, match="not owned by this broker"):
                    await broker.balancing.splitter.split(ALL, BundleStats(), "asked")
        with pytest.raises(ConflictError, match="no bundle"):
            await brokers[0].owners.split(Bundle(NAMESPACE, "0x00000000_0x00000007"), 3)


async def test_a_bundle_whose_topics_have_one_hash_is_not_split() -> None:
    async with balanced_brokers("a", bundles=1) as (broker,):
        await broker.find(1)
        with pytest.raises(ConflictError, match="cannot be divided"):
            await broker.balancing.splitter.split(
                ALL, BundleStats(topic_hashes=[5, 5]), "asked", "topic_count_equally_divide"
            )


async def test_a_session_that_is_lost_leaves_the_halves_in_doubt() -> None:
    async with balanced_brokers("a", bundles=1) as (broker,):
        await broker.find(1)
        await broker.owners.split(ALL, 5)
        broker.session.lose_session()
        await until(lambda: not any(broker.owners.certain(half) for half in broker.owners.held))
        assert len(broker.owners.held) == 2


async def test_a_bundle_that_was_divided_before_it_arrived_here_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    async with balanced_brokers("a", bundles=1) as (broker,):
        await broker.find(1)
        await broker.owners.split(ALL, 5)
        await broker.owners.remove_divided(ALL)
        halves = broker.owners.held
        await broker.owners.owner_of(ALL)  # as a move does that did not know of the split
        await broker.balancing.splitter.check({})
        assert ALL in broker.owners.held, "this broker may not know the bundles of the namespace yet"
        monkeypatch.setattr(splitter, "KNOWN_S", 0.0)
        await broker.balancing.splitter.check({})
        assert broker.owners.held == halves
        assert await broker.session.get(ALL.key) is None


@pytest.mark.parametrize("succeeds", [True, False])
async def test_a_move_waits_for_the_split_of_its_bundle(succeeds: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async with balanced_brokers("a", bundles=1) as (broker,):
        await broker.find(1)
        transact, begun, may_end = broker.session.transact, asyncio.Event(), asyncio.Event()

        async def slow(*words: Any) -> Any:
            begun.set()
            await may_end.wait()
            if not succeeds:
                raise MetadataUnavailableError("no response")
            return await transact(*words)

        monkeypatch.setattr(broker.session, "transact", slow)
        split = asyncio.ensure_future(broker.owners.split(ALL, 0x7FFFFFFF))
        await begun.wait()
        with pytest.raises(ConflictError, match="being divided already"):
            await broker.owners.split(ALL, 5)
        parts = asyncio.ensure_future(broker.owners.parts_of(ALL))
        await asyncio.sleep(0)
        assert not parts.done()
        may_end.set()
        await asyncio.wait({split})
        assert set(await parts) == (HALVES if succeeds else {ALL})
        assert broker.owners.held == set(await parts)
        assert (split.exception() is None) is succeeds


async def test_a_draining_broker_splits_nothing() -> None:
    async with balanced_brokers("a", bundles=1) as (broker,):
        await broker.find(1)
        broker.owners.drain()
        with pytest.raises(ConflictError, match="about to move"):
            await broker.owners.split(ALL, 5)
