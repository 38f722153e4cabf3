"""Topics that nothing uses: no periodic work while they rest."""

import asyncio

import pytest

from quire_broker.managed_ledger.position import EARLIEST
from quire_broker.topic.topic import Topic
from tests.unit.broker.dispatch.doubles import Link, spec
from tests.unit.broker.managed_ledger.world import World
from tests.unit.broker.topic.test_topics import TOPIC, Broker, scenario, send, settle

TICK_S = 10.0


@pytest.fixture
def ticks(monkeypatch: pytest.MonkeyPatch) -> list[Topic]:
    """The topics whose periodic work ran, in order."""
    found: list[Topic] = []
    tick = Topic.tick

    def counted(topic: Topic) -> bool:
        found.append(topic)
        return tick(topic)

    monkeypatch.setattr(Topic, "tick", counted)
    return found


def test_a_topic_without_traffic_has_no_periodic_work(ticks: list[Topic]) -> None:
    async def work(world: World, broker: Broker) -> None:
        topic = await broker.topics.get(TOPIC)
        await broker.topics.tick()
        await broker.topics.tick()
        assert ticks == [topic]

    scenario(work)


def test_the_rates_after_a_rest_are_those_of_the_last_interval(ticks: list[Topic]) -> None:
    async def work(world: World, broker: Broker) -> None:
        topic = await broker.topics.get(TOPIC)
        producer, link, _ = await broker.producer(topic)
        subscription = await topic.subscription("s", create=True, initial=EARLIEST)
        consumers = Link()
        subscription.flow(await subscription.add_consumer(spec(1), consumers), 1000)
        await broker.topics.tick()
        await broker.topics.tick()
        await asyncio.sleep(1000 * TICK_S)
        topic.publish(producer, [send(number) for number in range(20)])
        await settle(link, 20)
        await asyncio.sleep(TICK_S)
        await broker.topics.tick()
        assert topic.rates.messages.per_s == pytest.approx(20 / TICK_S, rel=0.1)
        assert producer.stats.message_rate.per_s == pytest.approx(20 / TICK_S, rel=0.1)
        assert subscription.stats.message_rate.per_s == pytest.approx(20 / TICK_S, rel=0.1)
        count = len(ticks)
        await asyncio.sleep(TICK_S)
        await broker.topics.tick()
        assert topic.rates.messages.per_s == subscription.stats.message_rate.per_s == 0
        await broker.topics.tick()
        assert len(ticks) == count + 1

    scenario(work)


def test_deduplication_saves_its_map_though_nothing_is_published_any_more(ticks: list[Topic]) -> None:
    async def work(world: World, broker: Broker) -> None:
        topic = await broker.topics.get(TOPIC)
        producer, link, _ = await broker.producer(topic)
        topic.publish(producer, [send(1)])
        await settle(link, 1)
        for _ in range(20):
            await asyncio.sleep(TICK_S)
            await broker.topics.tick()
        assert topic.deduplication is not None
        assert not topic.deduplication.has_unsaved
        count = len(ticks)
        await broker.topics.tick()
        assert len(ticks) == count

    scenario(work, deduplication=True)


def test_a_deletion_ends_the_periodic_work(ticks: list[Topic]) -> None:
    async def work(world: World, broker: Broker) -> None:
        await broker.topics.get(TOPIC)
        await broker.topics.delete(TOPIC)
        await broker.topics.tick()
        assert ticks == []

    scenario(work)
