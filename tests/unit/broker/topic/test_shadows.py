"""Shadow topics in the registry: errors for publishers, partitions that are created late, and names in use."""

import pytest

from quire_broker.errors import ConflictError, ServerError
from quire_broker.managed_ledger.nodes.node_codec import SOURCE_PROPERTY
from quire_broker.names import parse_topic
from quire_broker.topic.producers import Refusal
from tests.unit.broker.managed_ledger.world import World
from tests.unit.broker.topic.test_topics import TOPIC, Broker, scenario, send, settle

SHADOW = parse_topic("persistent://public/default/shadow")


def test_messages_to_a_shadow_topic_are_refused_with_the_error_of_stock_brokers() -> None:
    async def work(world: World, broker: Broker) -> None:
        await broker.topics.create(TOPIC)
        shadow = await broker.topics.create_shadow(SHADOW, TOPIC)
        producer, link, last = await broker.producer(shadow)
        assert last == -1
        assert shadow.publish(producer, [send(0), send(1)]) == 2
        await settle(link, 2)
        text = "Cannot send messages to a shadow topic"
        assert link.heard == [Refusal(number, ServerError.NOT_ALLOWED, text) for number in range(2)]
        assert broker.topics.find(SHADOW) is shadow, "it is not unloaded"
        assert shadow.ledger.entries == 0

    scenario(work, deduplication=True)


def test_a_shadow_topic_takes_no_name_that_is_in_use() -> None:
    async def work(world: World, broker: Broker) -> None:
        await broker.topics.create(TOPIC)
        await broker.topics.create_shadow(SHADOW, TOPIC)
        with pytest.raises(ConflictError):
            await broker.topics.create_shadow(SHADOW, TOPIC)
        with pytest.raises(ConflictError):
            await broker.topics.create_shadow(TOPIC, SHADOW)

    scenario(work)


def test_a_partition_that_is_used_for_the_first_time_shows_that_of_the_source() -> None:
    async def work(world: World, broker: Broker) -> None:
        await broker.topics.create_partitioned(TOPIC, 2)
        await broker.topics.create_partitioned(SHADOW, 2, {SOURCE_PROPERTY: str(TOPIC)})
        source = await broker.topics.get(TOPIC.partition_of(1))
        producer, link, _ = await broker.producer(source)
        source.publish(producer, [send(0), send(1)])
        await settle(link, 2)
        await source.ledger.roll()
        shadow = await broker.topics.get(SHADOW.partition_of(1))
        assert shadow.ledger.source is not None
        assert shadow.ledger.last_confirmed == source.ledger.last_confirmed
        assert (await broker.topics.get(SHADOW.partition_of(0))).ledger.entries == 0

    scenario(work)


def test_a_deleted_shadow_topic_leaves_its_source() -> None:
    async def work(world: World, broker: Broker) -> None:
        source = await broker.topics.create(TOPIC)
        producer, link, _ = await broker.producer(source)
        source.publish(producer, [send(0)])
        await settle(link, 1)
        shadow = await broker.topics.create_shadow(SHADOW, TOPIC)
        await shadow.subscription("s", create=True)
        await broker.topics.delete(SHADOW)
        assert not await broker.topics.exists(SHADOW)
        assert await broker.topics.get(TOPIC) is source
        assert source.ledger.entries == 1

    scenario(work)
