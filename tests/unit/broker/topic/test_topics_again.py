"""Topics that end while clients ask for them."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from quire_bookie.metadata.joint_write import Place
from quire_broker.errors import TopicNotFoundError
from quire_broker.names import parse_topic
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


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_stop_closes_a_bounded_number_of_topics_at_once(
    monkeypatch: pytest.MonkeyPatch, *, is_cancelled: bool
) -> None:
    monkeypatch.setattr("quire_broker.limits.TOPIC_CLOSES_MAX", 3)

    async def work(world: World, broker: Broker) -> None:
        topics = [await broker.topics.get(parse_topic(f"persistent://public/default/t{n}")) for n in range(10)]
        at_once, most, ended = 0, 0, 0
        closing = asyncio.ensure_future(broker.topics.close())

        def counted(quiesce: Callable[[Place | None], Awaitable[None]]) -> Callable[[Place | None], Awaitable[None]]:
            async def one(place: Place | None) -> None:
                nonlocal at_once, most, ended
                at_once += 1
                most = max(most, at_once)
                await quiesce(place)
                at_once -= 1
                ended += 1
                if is_cancelled and ended == 5:
                    closing.cancel()

            return one

        for topic in topics:
            monkeypatch.setattr(topic, "quiesce", counted(topic.quiesce))
        await asyncio.wait({closing})
        assert most == 3
        if is_cancelled:
            assert closing.cancelled()
            assert 5 <= ended <= 8 and len(broker.topics.loaded) >= 2, "topics that it has not begun stay as they are"
        else:
            assert ended == 10 and broker.topics.loaded == []

    scenario(work)
