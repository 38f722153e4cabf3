"""Tests of the limits of topics: at the limit, and one above it."""

import asyncio

import pytest

from quire_broker.errors import NotAllowedError, TooManyOperationsError
from quire_broker.limits import PARTITIONS_MAX
from quire_broker.names import parse_topic
from quire_broker.topic.topic import Topic
from tests.unit.broker.managed_ledger.world import World
from tests.unit.broker.topic.test_topics import TOPIC, Broker, scenario


def test_only_so_many_topics_load_at_once() -> None:
    async def work(world: World, broker: Broker) -> None:
        names = [parse_topic(f"persistent://public/default/t{number}") for number in range(4)]
        found = await asyncio.gather(*(broker.topics.get(name) for name in names), return_exceptions=True)
        assert [type(one) for one in found] == [Topic, Topic, Topic, TooManyOperationsError]
        assert "3 topics are being loaded" in str(found[3])
        assert (await broker.topics.get(names[3])).name == names[3], "the others have ended"

    scenario(work, loads_max=3)


def test_a_partitioned_topic_has_at_most_so_many_partitions() -> None:
    async def work(world: World, broker: Broker) -> None:
        for count in (0, PARTITIONS_MAX + 1):
            with pytest.raises(NotAllowedError, match=rf"between 1 and {PARTITIONS_MAX}; got {count}"):
                await broker.topics.create_partitioned(TOPIC, count)
        await broker.topics.create_partitioned(TOPIC, PARTITIONS_MAX - 1)
        await broker.topics.grow_partitioned(TOPIC, PARTITIONS_MAX)
        with pytest.raises(NotAllowedError, match=rf"got {PARTITIONS_MAX + 1}"):
            await broker.topics.grow_partitioned(TOPIC, PARTITIONS_MAX + 1)
        assert await broker.policies.partitions(TOPIC) == PARTITIONS_MAX

    scenario(work)
