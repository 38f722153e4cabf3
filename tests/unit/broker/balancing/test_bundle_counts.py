"""Counts of a broker's topics by bundle: equal to a count of all topics, at the cost of those in use."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

from quire_broker.balancing.bundle_counts import BundleCounts
from quire_broker.balancing.load_report import BundleStats
from quire_broker.balancing.plan.loads import BundleName
from quire_broker.dispatch.delivery import ConsumerSpec
from quire_broker.names import TopicName, parse_topic
from quire_broker.ownership.owners import Bundle, Owners
from quire_broker.wire.kinds import SubscriptionType
from tests.unit.broker.managed_ledger.world import World
from tests.unit.broker.topic.test_changes import published, rested
from tests.unit.broker.topic.test_topics import NAMESPACE, Broker, scenario

TOPICS = [parse_topic(f"persistent://{NAMESPACE}/t{number}") for number in range(40)]


class Held:
    """The bundles that a test gives to the broker."""

    def __init__(self, held: list[Bundle]) -> None:
        self.held = held


class Counted:
    """A broker with counts of its bundles."""

    def __init__(self, broker: Broker, bundles: list[Bundle]) -> None:
        self.broker, self.held = broker, Held(bundles)
        self.counts = BundleCounts(cast(Owners, self.held), broker.policies, broker.topics)

    async def measure(self) -> dict[BundleName, BundleStats]:
        """Measure, and check topics and hashes against a visit of all."""
        found = await self.counts.measure()
        ring = await self.broker.policies.bundles(NAMESPACE)
        assert ring is not None
        for bundle in self.held.held:
            stats = found[BundleName(str(bundle))]
            inside = [each.hash for each in self.broker.topics.everything if ring.bundle_at(each.hash) == bundle.range]
            assert (stats.topics, sorted(stats.topic_hashes)) == (len(inside), sorted(inside))
        return found

    async def total(self) -> BundleStats:
        """Return the sum over all bundles."""
        whole = BundleStats()
        for stats in (await self.measure()).values():
            for name in ("topics", "topics_new", "producers", "consumers", "rate_in", "rate_out"):
                setattr(whole, name, getattr(whole, name) + getattr(stats, name))
        return whole


def counted(work: Callable[[Broker, Counted], Coroutine[Any, Any, None]]) -> None:
    """Run `work` with a broker that has all bundles of the namespace, and 40 topics that rest."""

    async def play(world: World, broker: Broker) -> None:
        ring = await broker.policies.bundles(NAMESPACE)
        assert ring is not None
        counts = Counted(broker, [Bundle(NAMESPACE, name) for name in ring.names])
        for name in TOPICS:
            await broker.topics.get(name)
        assert (await counts.total()).topics_new == len(TOPICS)
        await rested(broker)
        await asyncio.sleep(60)
        assert (await counts.total()).topics_new == 0
        await work(broker, counts)

    scenario(play)


def test_topics_that_rest_are_counted_without_a_visit() -> None:
    async def work(broker: Broker, counts: Counted) -> None:
        for _ in range(2):
            assert (await counts.total()).topics == len(TOPICS)
            assert not counts.counts._changed.due

    counted(work)


def test_a_topic_with_an_idle_client_stays_counted_with_it() -> None:
    async def work(broker: Broker, counts: Counted) -> None:
        topic = await broker.topics.get(TOPICS[0])
        producer, _, _ = await broker.producer(topic)
        await rested(broker)
        assert [(await counts.total()).producers for _ in range(3)] == [1, 1, 1]
        topic.remove_producer(producer)
        assert (await counts.total()).producers == 0
        assert not counts.counts._changed.due

    counted(work)


def test_a_consumer_that_joins_a_resting_subscription_is_counted() -> None:
    async def work(broker: Broker, counts: Counted) -> None:
        topic = await broker.topics.get(TOPICS[0])
        subscription = await topic.subscription("s", create=True)
        await rested(broker)
        assert (await counts.total()).consumers == 0
        await subscription.add_consumer(ConsumerSpec(1, "c", SubscriptionType.SHARED), cast(Any, Silent()))
        await rested(broker)
        assert [(await counts.total()).consumers for _ in range(2)] == [1, 1]

    counted(work)


class Silent:
    """A client that never asks for messages."""

    async def alive(self) -> bool:
        return True


def test_rates_are_counted_until_the_traffic_ends() -> None:
    async def work(broker: Broker, counts: Counted) -> None:
        topic = await broker.topics.get(TOPICS[0])
        await broker.topics.tick()
        await published(broker, topic, 5)
        await asyncio.sleep(1)
        await broker.topics.tick()
        assert (await counts.total()).rate_in > 0
        await rested(broker)
        await asyncio.sleep(60)
        await rested(broker)
        assert (await counts.total()).rate_in == 0
        assert not counts.counts._changed.due

    counted(work)


def test_closed_topics_are_not_counted_and_count_again_when_they_are_loaded() -> None:
    async def work(broker: Broker, counts: Counted) -> None:
        await broker.topics.unload(TOPICS[0])
        assert (await counts.total()).topics == len(TOPICS) - 1
        await broker.topics.get(TOPICS[0])
        await broker.topics.unload(TOPICS[1])
        assert (await counts.total()).topics == len(TOPICS) - 1

    counted(work)


def test_topics_that_are_not_stored_are_counted_too() -> None:
    async def work(broker: Broker, counts: Counted) -> None:
        await broker.topics.serve(_unstored("n"))
        assert (await counts.total()).topics == len(TOPICS) + 1

    counted(work)


def _unstored(name: str) -> TopicName:
    return parse_topic(f"non-persistent://{NAMESPACE}/{name}")


def test_a_bundle_that_its_namespace_does_not_have_counts_nothing() -> None:
    async def work(broker: Broker, counts: Counted) -> None:
        whole = Bundle(NAMESPACE, "0x00000000_0xffffffff")
        counts.held.held = [*counts.held.held, whole]
        found = await counts.counts.measure()
        assert found[BundleName(str(whole))] == BundleStats()
        assert sum(stats.topics for stats in found.values()) == len(TOPICS)

    counted(work)


def test_two_counts_at_a_time_are_equal() -> None:
    async def work(broker: Broker, counts: Counted) -> None:
        topic = await broker.topics.get(TOPICS[0])
        await broker.producer(topic)
        first, second = await asyncio.gather(counts.counts.measure(), counts.counts.measure())
        assert first == second

    counted(work)
