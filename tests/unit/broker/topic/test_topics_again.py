"""Topics that end while clients ask for them."""

import asyncio

import pytest

from quire_broker.errors import TopicNotFoundError
from tests.unit.broker.managed_ledger.world import World
from tests.unit.broker.topic.test_topics import TOPIC, Broker, scenario


def test_a_client_that_waits_for_the_end_of_a_topic_gets_the_one_that_another_client_loaded_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("quire_broker.topic.topics._UNLOAD_PAUSE_S", 1.0)

    async def work(world: World, broker: Broker) -> None:
        old = await broker.topics.get(TOPIC)
        deletion = asyncio.create_task(broker.topics.delete(TOPIC))
        while not old.closing:  # noqa: ASYNC110  no event tells
            await asyncio.sleep(0)
        waiting = asyncio.create_task(broker.topics.get(TOPIC))
        await deletion
        assert not waiting.done()
        new = await broker.topics.get(TOPIC)
        assert new is not old and await waiting is new

    scenario(work)


def test_a_client_that_may_create_a_topic_gets_it_although_another_one_that_may_not_asked_before() -> None:
    async def work(world: World, broker: Broker) -> None:
        first = asyncio.create_task(broker.topics.get(TOPIC, create=False))
        await asyncio.sleep(0)
        second, third = (asyncio.create_task(broker.topics.get(TOPIC)) for _ in range(2))
        with pytest.raises(TopicNotFoundError):
            await first
        assert await second is await third

    scenario(work)
