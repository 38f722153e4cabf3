"""Topics whose messages are not stored: recipients, dropped messages, and when a topic begins and ends."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from quire_broker.dispatch.delivery import ConsumerSpec, Delivery, KeyShared
from quire_broker.dispatch.entry_filters import FilteredEntry
from quire_broker.errors import (
    ConflictError,
    ConsumerBusyError,
    NotAllowedError,
    ProducerBusyError,
    ServiceNotReadyError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
)
from quire_broker.managed_ledger.position import EARLIEST
from quire_broker.names import NON_PERSISTENT, NamespaceName, parse_topic, topic_of
from quire_broker.topic.non_persistent_subscription import UNSTORED
from quire_broker.topic.non_persistent_topic import NonPersistentTopic
from quire_broker.topic.non_persistent_topics import NonPersistentSettings
from quire_broker.topic.producers import Producer, Receipt, Refusal
from quire_broker.wire.entry import seal
from quire_broker.wire.frames import Send
from quire_broker.wire.kinds import AccessMode, KeySharedMode, Moved, SubscriptionType
from quire_broker.wire.proto.pulsar_pb2 import MessageMetadata
from tests.unit.broker.managed_ledger.world import World
from tests.unit.broker.topic.test_topics import Broker, Link, scenario, send

NAME = parse_topic("non-persistent://public/default/t")


class Client:
    """The connection of a consumer: records what it gets."""

    peer = "/client"
    client_version = "test"
    writable = True

    def __init__(self, *, lives: bool = True) -> None:
        self.got: list[bytes] = []
        self.heard: list[Any] = []
        self._lives = lives

    def deliver(self, consumer_id: int, deliveries: Sequence[Delivery], messages: int) -> None:
        assert all(delivery.position == UNSTORED for delivery in deliveries)
        self.got += [bytes(delivery.data)[-2:] for delivery in deliveries]

    def active_changed(self, consumer_id: int, active: bool) -> None:
        self.heard.append(active)

    def reached_end(self, consumer_id: int) -> None:
        self.heard.append("end")

    def close_consumer(self, consumer_id: int, moved: Moved | None = None) -> None:
        self.heard.append(moved or "closed")

    def on_writable(self, callback: Callable[[], None]) -> None:
        raise AssertionError("an entry that is not stored does not wait")

    async def alive(self) -> bool:
        return self._lives


def spec(kind: SubscriptionType = SubscriptionType.EXCLUSIVE, name: str = "c", **fields: Any) -> ConsumerSpec:
    return ConsumerSpec(1, name, kind, **fields)


async def joined(
    topic: NonPersistentTopic, wanted: ConsumerSpec, client: Client, permits: int = 100, subscription: str = "s"
) -> Any:
    found = await topic.subscribed(subscription, wanted)
    consumer = await found.add_consumer(wanted, client)
    found.flow(consumer, permits)
    return found, consumer


async def produced(topic: NonPersistentTopic, name: str = "p", **fields: Any) -> tuple[Producer, Link]:
    link = Link()
    producer = Producer(1, name, link, **fields)
    assert await topic.add_producer(producer, None) == -1
    return producer, link


def keyed(sequence_id: int, key: str) -> Send:
    metadata = MessageMetadata(producer_name="p", sequence_id=sequence_id, publish_time=1, partition_key=key)
    return Send(sequence_id, None, 1, False, False, memoryview(seal(metadata, b"m%d" % sequence_id)))


def colored(sequence_id: int, color: str) -> Send:
    metadata = MessageMetadata(producer_name="p", sequence_id=sequence_id, publish_time=1)
    metadata.properties.add(key="color", value=color)
    return Send(sequence_id, None, 1, False, False, memoryview(seal(metadata, b"m%d" % sequence_id)))


def test_every_subscription_gets_a_message_and_the_producer_an_answer() -> None:
    async def work(world: World, broker: Broker) -> None:
        topic = await broker.topics.non_persistent.get(NAME)
        first, second = Client(), Client()
        await joined(topic, spec(), first)
        await joined(topic, spec(), second, subscription="other")
        producer, link = await produced(topic)
        assert topic.publish(producer, [send(0), send(1)]) == 2
        await asyncio.sleep(0)
        assert first.got == second.got == [b"m0", b"m1"]
        assert link.heard == [Receipt(0, 0, 0, 0), Receipt(1, 0, 0, 0)] and link.done == 2
        assert await broker.topics.list(NAME.namespace) == [], "nothing is stored"
        assert topic.stats.messages_in == 2 and topic.dropped == 0

    scenario(work)


def test_a_damaged_message_is_refused() -> None:
    async def work(world: World, broker: Broker) -> None:
        topic = await broker.topics.non_persistent.get(NAME)
        client = Client()
        await joined(topic, spec(), client)
        producer, link = await produced(topic)
        topic.publish(producer, [send(0, bad=True), send(1)])
        await asyncio.sleep(0)
        assert isinstance(link.heard[0], Refusal) and client.got == [b"m1"]
        assert topic.stats.checksum_errors == 1

    scenario(work)


def test_messages_without_permits_are_dropped_and_counted() -> None:
    async def work(world: World, broker: Broker) -> None:
        topics = broker.topics.non_persistent
        topic = await topics.get(NAME)
        client = Client()
        subscription, consumer = await joined(topic, spec(), client, permits=1)
        producer, _ = await produced(topic)
        topic.publish(producer, [send(0), send(1), send(2)])
        assert client.got == [b"m0"] and subscription.drops.messages == 2
        subscription.flow(consumer, 1)
        client.writable = False
        topic.publish(producer, [send(3)])
        client.writable = True
        topic.publish(producer, [send(4)])
        assert client.got == [b"m0", b"m4"], "a dropped message does not come later"
        await topic.drop_subscription("s", force=True)
        assert topic.dropped == 3
        topics.let_go(topic)
        assert topics.dropped == 3, "counters do not fall"

    scenario(work)


def test_entry_filters_decide_what_a_subscription_gets() -> None:
    async def work(world: World, broker: Broker) -> None:
        topics = broker.topics.non_persistent
        topic = await topics.get(NAME)
        red, everything, late = Client(), Client(), Client()
        filtered, _ = await joined(topic, spec(subscription_properties={"filter.color": "red"}), red)
        await joined(topic, spec(), everything, subscription="all")
        broker.topics.limit(topic, {"entryFilters": {"entryFilterNames": "properties"}})
        await joined(topic, spec(subscription_properties={"filter.color": "blue"}), late, subscription="late")
        producer, _ = await produced(topic)
        topic.publish(producer, [colored(0, "red"), colored(1, "blue"), send(2)])
        assert (red.got, everything.got, late.got) == ([b"m0"], [b"m0", b"m1", b"m2"], [b"m1"])
        stats = filtered.filters.stats
        assert (stats.processed, stats.accepted, stats.rejected, filtered.drops.messages) == (3, 1, 2, 0)
        broker.topics.limit(topic, {})
        topic.publish(producer, [send(3)])
        assert red.got == [b"m0", b"m3"]

    scenario(work)


def test_messages_are_dropped_while_slow_filters_pause() -> None:
    async def work(world: World, broker: Broker) -> None:
        topic = await broker.topics.non_persistent.get(NAME)
        client = Client()
        subscription, _ = await joined(topic, spec(), client)

        def slow(entry: FilteredEntry) -> bool:
            subscription.filters.cost.taken_s += 0.015  # as if it had taken that long
            return True

        topic.use_filters([slow])
        producer, _ = await produced(topic)
        topic.publish(producer, [send(number) for number in range(4)])
        assert client.got == [b"m0", b"m1"] and subscription.drops.messages == 2
        topic.publish(producer, [send(4)])
        assert subscription.drops.messages == 3, "it pauses four times as long as the filters took"
        await asyncio.sleep(0.13)
        topic.publish(producer, [send(5)])
        assert client.got == [b"m0", b"m1", b"m5"]

    scenario(work)


def test_a_subscription_whose_filter_is_not_installed_gets_nothing() -> None:
    async def work(world: World, broker: Broker) -> None:
        topic = await broker.topics.non_persistent.get(NAME)
        client = Client()
        subscription, _ = await joined(topic, spec(), client)
        broker.topics.limit(topic, {"entryFilters": {"entryFilterNames": "elsewhere"}})
        producer, link = await produced(topic)
        topic.publish(producer, [send(0), send(1)])
        await asyncio.sleep(0)
        assert (client.got, subscription.drops.messages, len(link.heard)) == ([], 2, 2)

    scenario(work)


def test_the_type_chooses_the_consumer() -> None:
    async def work(world: World, broker: Broker) -> None:
        topic = await broker.topics.non_persistent.get(NAME)
        producer, _ = await produced(topic)
        turns, keys, ranges, actives = ([Client(), Client()] for _ in range(4))
        for index in range(2):
            await joined(topic, spec(SubscriptionType.SHARED), turns[index], subscription="turns")
            auto = spec(SubscriptionType.KEY_SHARED, f"c{index}", key_shared=KeyShared())
            await joined(topic, auto, keys[index], subscription="keys")
            half = KeyShared(KeySharedMode.STICKY, ((index * 32768, index * 32768 + 32767),))
            await joined(topic, spec(SubscriptionType.KEY_SHARED, key_shared=half), ranges[index], subscription="half")
            one = spec(SubscriptionType.FAILOVER, f"c{index}")
            await joined(topic, one, actives[index], subscription="active")
        topic.publish(producer, [keyed(number % 10, f"k{number}") for number in range(40)])
        topic.publish(producer, [keyed(number % 10, f"k{number}") for number in range(40)])
        assert [len(client.got) for client in turns] == [40, 40]
        for clients in (keys, ranges):
            assert sum(len(client.got) for client in clients) == 80 and all(client.got for client in clients)
            assert all(len(client.got) % 2 == 0 for client in clients), "a key went to the same consumer twice"
        assert sorted(len(client.got) for client in actives) == [0, 80]
        active = next(client for client in actives if client.got)
        assert active.heard[-1] is True
        assert next(client for client in actives if not client.got).heard[-1] is False

    scenario(work)


def test_conflicting_consumers_are_refused_while_the_other_one_lives() -> None:
    async def work(world: World, broker: Broker) -> None:
        topic = await broker.topics.non_persistent.get(NAME)
        subscription, _ = await joined(topic, spec(), Client())
        with pytest.raises(ConsumerBusyError):
            await subscription.add_consumer(spec(), Client())
        with pytest.raises(ConsumerBusyError, match="different type"):
            await subscription.add_consumer(spec(SubscriptionType.SHARED), Client())
        with pytest.raises(NotAllowedError, match="readCompacted"):
            await subscription.add_consumer(spec(read_compacted=True), Client())
        dead, _ = await joined(topic, spec(), Client(lives=False), subscription="dead")
        successor = await dead.add_consumer(spec(name="n"), Client())
        assert list(dead.consumers) == [successor]

    scenario(work)


def test_what_needs_stored_messages_is_refused() -> None:
    async def work(world: World, broker: Broker) -> None:
        topic = await broker.topics.non_persistent.get(NAME)
        subscription, _ = await joined(topic, spec(), Client())
        await subscription.set_replicated(False)
        for refused in (
            subscription.seek_position(EARLIEST),
            subscription.seek_time(1),
            subscription.set_replicated(True),
            topic.last_message(),
        ):
            with pytest.raises(NotAllowedError, match="non-persistent"):
                await refused

    scenario(work)


def test_a_subscription_of_a_reader_ends_with_it() -> None:
    async def work(world: World, broker: Broker) -> None:
        topic = await broker.topics.non_persistent.get(NAME)
        subscription, consumer = await joined(topic, spec(durable=False), Client())
        durable, other = await joined(topic, spec(), Client(), subscription="durable")
        await subscription.remove_consumer(consumer)
        await topic.consumer_left(subscription)
        await durable.remove_consumer(other)
        await topic.consumer_left(durable)
        assert list(topic.subscriptions) == ["durable"]
        with pytest.raises(SubscriptionNotFoundError):
            await topic.drop_subscription("s")

    scenario(work)


def test_an_exclusive_producer_holds_the_topic() -> None:
    async def work(world: World, broker: Broker) -> None:
        topic = await broker.topics.non_persistent.get(NAME)
        holder, _ = await produced(topic, mode=AccessMode.EXCLUSIVE)
        with pytest.raises(ProducerBusyError):
            await produced(topic, "q")
        topic.remove_producer(holder)
        await produced(topic, "q")

    scenario(work)


def test_a_topic_begins_only_where_it_may() -> None:
    async def work(world: World, broker: Broker) -> None:
        topics = broker.topics.non_persistent
        with pytest.raises(TopicNotFoundError):
            await topics.get(NAME, create=False)
        with pytest.raises(TopicNotFoundError, match="Namespace"):
            await topics.get(parse_topic("non-persistent://no/where/t"))
        await broker.topics.create_partitioned(NAME, 2)
        first, second, third = NAME.partitions(3)
        assert (await topics.get(first, create=False)).name == first, "a recorded partition exists"
        with pytest.raises(TopicNotFoundError):
            await topics.get(third)
        assert await broker.topics.list_non_persistent(NamespaceName("public", "default")) == [first, second]
        assert await broker.topics.partitions_for_client(NAME, auto_create=False) == 2
        broker.owned = False
        with pytest.raises(ServiceNotReadyError, match="another broker"):
            await topics.get(second)

    scenario(work)


def test_only_administrators_create_topics_where_clients_may_not() -> None:
    async def work(world: World, broker: Broker) -> None:
        topics = broker.topics.non_persistent
        with pytest.raises(TopicNotFoundError):
            await topics.get(NAME)
        assert (await topics.get(NAME, may_create=True)) is await topics.get(NAME)

    scenario(work, auto_create=False)


def test_a_broker_without_such_topics_refuses_them() -> None:
    async def work(world: World, broker: Broker) -> None:
        with pytest.raises(NotAllowedError, match="enableNonPersistentTopics"):
            await broker.topics.non_persistent.get(NAME)

    scenario(work, non_persistent=NonPersistentSettings(enabled=False))


def test_topics_without_clients_are_forgotten() -> None:
    async def work(world: World, broker: Broker) -> None:
        topics = broker.topics.non_persistent
        topic = await topics.get(NAME)
        await topics.get(topic_of(NON_PERSISTENT, NAME.namespace, "unused"))
        producer, _ = await produced(topic)
        await asyncio.sleep(61)
        await broker.topics.tick()
        assert topics.loaded == [topic]
        topic.remove_producer(producer)
        await broker.topics.tick()
        assert topics.loaded == [topic], "its last client has just left"
        await asyncio.sleep(61)
        await broker.topics.tick()
        assert topics.loaded == []

    scenario(work, non_persistent=NonPersistentSettings(close_after_s=60.0))


def test_a_topic_in_use_is_deleted_only_by_force() -> None:
    async def work(world: World, broker: Broker) -> None:
        topics = broker.topics.non_persistent
        topic = await topics.get(NAME)
        client = Client()
        subscription, _ = await joined(topic, spec(), client)
        producer, link = await produced(topic)
        with pytest.raises(ConflictError):
            topics.delete(NAME)
        topics.delete(NAME, force=True)
        assert client.heard == ["closed"] and link.heard == ["closed"]
        assert topic.publish(producer, [send(0)]) == 0
        for late in (topic.subscribed("s", spec()), subscription.add_consumer(spec(), Client())):
            with pytest.raises(ServiceNotReadyError):
                await late
        with pytest.raises(TopicNotFoundError):
            topics.delete(NAME)

    scenario(work)


def test_a_closed_broker_begins_no_topic() -> None:
    async def work(world: World, broker: Broker) -> None:
        topic = await broker.topics.non_persistent.get(NAME)
        client = Client()
        await joined(topic, spec(), client)
        await broker.topics.close()
        assert client.heard == ["closed"] and topic.closing
        with pytest.raises(ServiceNotReadyError, match="shutting down"):
            await broker.topics.non_persistent.get(NAME)

    scenario(work)
