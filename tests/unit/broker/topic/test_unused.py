"""Topics that nothing uses: no periodic work while they rest, closed after a while, there again when needed."""

import asyncio
import gc
import random
import weakref

import pytest

from quire_broker.dispatch.delivery import AckId
from quire_broker.errors import ServiceNotReadyError
from quire_broker.managed_ledger.position import EARLIEST
from quire_broker.settings.managed_ledger import UNLIMITED, ManagedLedgerSettings
from quire_broker.settings.topics import UnusedTopicSettings
from quire_broker.topic.producers import Receipt
from quire_broker.topic.topic import Topic
from quire_broker.topic.unused import UnusedTopics
from quire_broker.wire.entry import peek
from quire_broker.wire.kinds import AckKind
from tests.unit.broker.dispatch.doubles import Link, spec
from tests.unit.broker.managed_ledger.world import VirtualClock, World
from tests.unit.broker.topic.test_topics import NAMESPACE, TOPIC, Broker, scenario, send, settle

TICK_S = 10.0
UNUSED_S = 600.0
SEEDS = 12


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


# closing


def _closing(broker: Broker, close_after_s: float = UNUSED_S) -> UnusedTopics:
    """Close its unused topics from now on."""
    unused = UnusedTopics(broker.topics, UnusedTopicSettings(close_after_s), VirtualClock())
    broker.background.start(unused.run(), "unused topics")
    return unused


async def _publish(broker: Broker, topic: Topic, *numbers: int) -> None:
    """Publish with a producer that leaves afterwards."""
    producer, link, _ = await broker.producer(topic)
    topic.publish(producer, [send(number) for number in numbers])
    await settle(link, len(numbers))
    topic.remove_producer(producer)


async def _consume(topic: Topic) -> list[int]:
    """Acknowledge what a subscription that begins at the first message gets, and leave."""
    subscription, link = await topic.subscription("s", create=True, initial=EARLIEST), Link()
    consumer = await subscription.add_consumer(spec(1), link)
    subscription.flow(consumer, 1000)
    await asyncio.sleep(5)
    positions = [delivery.position for _, delivery in link.deliveries]
    for position in positions:
        subscription.acknowledge(consumer, AckKind.INDIVIDUAL, [AckId(position)])
    await subscription.remove_consumer(consumer)
    await topic.consumer_left(subscription)
    return [peek(delivery.data).sequence_id for _, delivery in link.deliveries]


def test_a_topic_is_closed_when_nothing_used_it_for_long_enough_and_is_there_at_the_next_request() -> None:
    async def work(world: World, broker: Broker) -> None:
        unused = _closing(broker)
        topic = await broker.topics.get(TOPIC)
        await _publish(broker, topic, 0, 1)
        assert await _consume(topic) == [0, 1]
        await asyncio.sleep(UNUSED_S - 10)
        assert broker.topics.loaded == [topic]
        await asyncio.sleep(30)
        assert broker.topics.loaded == []
        assert broker.process.factory.opened == []
        assert unused.closed == 1
        assert await broker.topics.list(NAMESPACE) == [TOPIC]
        assert await broker.topics.exists(TOPIC)
        again = await broker.topics.get(TOPIC)
        await _publish(broker, again, 2)
        assert await _consume(again) == [2]
        assert again.ledger.entries == 3

    scenario(work)


def test_each_request_begins_the_time_again() -> None:
    async def work(world: World, broker: Broker) -> None:
        _closing(broker)
        topic = await broker.topics.get(TOPIC)
        for _ in range(10):
            await asyncio.sleep(UNUSED_S - 10)
            assert await broker.topics.get(TOPIC) is topic

    scenario(work)


def test_a_topic_with_a_client_or_a_backlog_stays() -> None:
    async def work(world: World, broker: Broker) -> None:
        unused = _closing(broker)
        topic = await broker.topics.get(TOPIC)
        producer, link, _ = await broker.producer(topic)
        await asyncio.sleep(10 * UNUSED_S)
        topic.publish(producer, [send(1)])
        await settle(link, 1)
        await topic.subscription("s", create=True, initial=EARLIEST)
        topic.remove_producer(producer)
        await asyncio.sleep(10 * UNUSED_S)
        assert broker.topics.loaded == [topic]
        assert await _consume(topic) == [1]
        await asyncio.sleep(UNUSED_S - 30)
        assert broker.topics.loaded == [topic]
        await asyncio.sleep(60)
        assert (broker.topics.loaded, unused.closed) == ([], 1)

    scenario(work)


def test_with_a_time_of_zero_no_topic_is_closed() -> None:
    async def work(world: World, broker: Broker) -> None:
        _closing(broker, 0)
        topic = await broker.topics.get(TOPIC)
        await asyncio.sleep(100 * UNUSED_S)
        assert broker.topics.loaded == [topic]

    scenario(work)


def test_consumed_data_of_a_closed_topic_go_when_they_would_have_gone() -> None:
    async def work(world: World, broker: Broker) -> None:
        unused = _closing(broker)
        begun_s = asyncio.get_running_loop().time()
        topic = await broker.topics.get(TOPIC)
        await _publish(broker, topic, 0)
        await _consume(topic)
        await asyncio.sleep(4 * 3600 - 30 - (asyncio.get_running_loop().time() - begun_s))
        assert broker.topics.loaded == []
        assert any(entry.entries for entry in world.bookies.ledgers.values())
        await asyncio.sleep(60)
        assert [found.name for found in broker.topics.loaded] == [TOPIC]
        await asyncio.sleep(200)
        data = [entry for entry in world.bookies.ledgers.values() if "pulsar/cursor" not in entry.metadata.custom]
        assert not any(entry.entries for entry in data)
        await asyncio.sleep(2 * UNUSED_S)
        assert (broker.topics.loaded, unused.closed) == ([], 2)
        await asyncio.sleep(8 * 3600)
        assert (broker.topics.loaded, unused.closed) == ([], 2)

    scenario(work)


def test_the_retention_of_a_closed_topic_ends_on_time() -> None:
    async def work(world: World, broker: Broker) -> None:
        _closing(broker)
        topic = await broker.topics.get(TOPIC)
        await _publish(broker, topic, 0)
        await topic.ledger.roll()
        await asyncio.sleep(23 * 3600)
        assert broker.topics.loaded == []
        await asyncio.sleep(1.1 * 3600)
        again = await broker.topics.get(TOPIC)
        assert again.ledger.entries == 0

    retention = ManagedLedgerSettings(rollover_age_min_s=0.0, retention_s=24 * 3600.0, retention_bytes=UNLIMITED)
    scenario(work, ledger=retention)


def test_a_closed_topic_of_a_bundle_that_moved_is_not_loaded_for_its_upkeep() -> None:
    async def work(world: World, broker: Broker) -> None:
        _closing(broker)
        topic = await broker.topics.get(TOPIC)
        await _publish(broker, topic, 0)
        await _consume(topic)
        await asyncio.sleep(2 * UNUSED_S)
        broker.owned = False
        await asyncio.sleep(5 * 3600)
        assert broker.topics.loaded == []

    scenario(work)


def test_a_closed_topic_is_loaded_for_its_upkeep_after_an_outage_of_the_metadata() -> None:
    async def work(world: World, broker: Broker) -> None:
        unused = _closing(broker)
        topic = await broker.topics.get(TOPIC)
        await _publish(broker, topic, 0)
        await _consume(topic)
        await asyncio.sleep(2 * UNUSED_S)
        world.away(True)
        await asyncio.sleep(5 * 3600)
        assert broker.topics.loaded == []
        world.away(False)
        await asyncio.sleep(3600)
        assert unused.closed == 2

    scenario(work)


def test_no_topic_is_closed_while_the_metadata_do_not_answer() -> None:
    async def work(world: World, broker: Broker) -> None:
        _closing(broker)
        topic = await broker.topics.get(TOPIC)
        await asyncio.sleep(UNUSED_S - 60)
        broker.process.store.lose_session()
        world.away(True)
        await asyncio.sleep(4 * UNUSED_S)
        assert broker.topics.loaded == [topic]

    scenario(work)


def test_a_topic_that_was_opened_while_too_few_bookies_accept_ledgers_is_closed() -> None:
    async def work(world: World, broker: Broker) -> None:
        unused = _closing(broker)
        broker.process.client.set_writable(0)
        topic = await broker.topics.get(TOPIC)
        assert topic.ledger.ledgers == []
        await asyncio.sleep(2 * UNUSED_S)
        assert (broker.topics.loaded, unused.closed) == ([], 1)

    scenario(work)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_clients_that_come_while_a_topic_is_being_closed_lose_nothing(seed: int) -> None:
    chance = random.Random(seed)

    async def publish(broker: Broker, name: str, acknowledged: list[str]) -> None:
        """Come and go, and note acknowledged messages; a refused client tries again, as stock clients do."""
        for number in range(30):
            try:
                topic = await broker.topics.get(TOPIC)
                await asyncio.sleep(chance.choice((0.0, 0.0, 0.5, 4.0)))
                producer, link, _ = await broker.producer(topic, f"{name}-{number}")
            except ServiceNotReadyError:
                continue
            topic.publish(producer, [send(number, producer=name)])
            await asyncio.sleep(chance.choice((0.0, 0.01, 0.2)))
            assert "closed" not in link.heard, "a topic with a client was closed"
            topic.remove_producer(producer)
            await asyncio.sleep(chance.choice((0.0, 0.5, 2.0, 3.0)))
            if any(isinstance(each, Receipt) for each in link.heard):
                acknowledged.append(f"{name}{number}")

    async def work(world: World, broker: Broker) -> None:
        unused = UnusedTopics(broker.topics, UnusedTopicSettings(1.0), VirtualClock())
        acknowledged: list[list[str]] = [[], []]
        publishing = asyncio.gather(*(publish(broker, name, acknowledged[at]) for at, name in enumerate("ab")))
        while not publishing.done():
            await asyncio.sleep(chance.choice((0.0, 0.1, 0.3)))
            await unused.round()
        await publishing
        assert unused.closed > 1, "the seed shows nothing"
        topic = await broker.topics.get(TOPIC)
        found = [peek(one.data) for one in await topic.ledger.read(EARLIEST, entries_max=1000)]
        for name, sent in zip("ab", acknowledged, strict=True):
            stored = [f"{name}{one.sequence_id}" for one in found if one.producer_name == name]
            assert len(sent) > 5
            assert stored == sorted(set(stored), key=lambda each: int(each[1:]))
            assert set(sent) <= set(stored)

    scenario(work)


def test_a_closed_topic_is_not_kept_in_memory() -> None:
    async def work(world: World, broker: Broker) -> None:
        unused = _closing(broker)
        topic = await broker.topics.get(TOPIC)
        await _publish(broker, topic, 0)
        await _consume(topic)
        await broker.topics.tick()
        known = [weakref.ref(each) for each in (topic, topic.ledger, topic.subscriptions["s"])]
        del topic
        await asyncio.sleep(2 * UNUSED_S)
        assert unused.closed == 1
        await broker.topics.tick()
        broker.process.client.writers.clear()  # the fake client keeps closed ones
        gc.collect()
        assert [each() for each in known] == [None, None, None]

    scenario(work)
