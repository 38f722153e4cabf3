"""WebSocket consumers with maxRedeliverCount: messages that are refused too often go to the dead letter topic."""

import asyncio
from typing import Any

import pytest
from aiohttp import ClientWebSocketResponse, WSMsgType

from tests.integration.test_websockets import (
    BEARER,
    TOPIC,
    Sockets,
    acknowledge,
    publish,
    received,
    secured,
    sockets,
    token,
    until,
)

__all__ = ["secured", "sockets"]


async def refuse(consumer: ClientWebSocketResponse, message: dict[str, Any]) -> None:
    await consumer.send_json({"type": "negativeAcknowledge", "messageId": message["messageId"]})


@pytest.mark.parametrize(("chosen", "letters"), [("", "orders-s-DLQ"), ("&deadLetterTopic=failed", "failed")])
async def test_a_message_that_is_refused_too_often_goes_to_the_dead_letter_topic(
    sockets: Sockets, chosen: str, letters: str
) -> None:
    watcher = await sockets.open(f"consumer/persistent/public/default/{letters}/w")
    producer = await sockets.open(f"producer/{TOPIC}")
    options = f"subscriptionType=Shared&negativeAckRedeliveryDelay=10&maxRedeliverCount=1{chosen}"
    consumer = await sockets.open(f"consumer/{TOPIC}/s?{options}")
    fields = {"key": "k", "properties": {"a": "b"}, "eventTime": "2026-11-27T14:00:00.123Z"}
    await publish(producer, "bad", **fields)
    for count in (0, 1):
        found = await received(consumer)
        assert (found["payload"], found["redeliveryCount"]) == ("bad", count)
        await refuse(consumer, found)
    letter = await received(watcher)
    assert (letter["payload"], letter["key"], letter["eventTime"]) == ("bad", "k", found["eventTime"])
    assert letter["properties"].pop("ORIGIN_MESSAGE_ID") == letter["properties"].pop("ORIGIN_MESSAGE_IDY_TIME")
    assert letter["properties"] == {
        "a": "b",
        "REAL_TOPIC": "persistent://public/default/orders",
        "REAL_SUBSCRIPTION": "s",
    }
    await acknowledge(watcher, letter)
    await publish(producer, "good")
    found = await received(consumer)
    assert found["payload"] == "good"
    await acknowledge(consumer, found)
    topics = [topic for broker in sockets.world.brokers for topic in broker.topics.loaded if "s" in topic.subscriptions]

    async def settled() -> bool:
        return all(topic.subscriptions["s"].backlog == 0 for topic in topics)

    assert topics
    await until(settled)


async def test_a_role_that_may_not_publish_dead_letters_is_told_so(secured: Sockets) -> None:
    headers = {BEARER: f"Bearer {token('app')}"}
    producer = await secured.open(f"producer/{TOPIC}", headers=headers)
    options = "subscriptionType=Shared&negativeAckRedeliveryDelay=10&maxRedeliverCount=1"
    headers = {BEARER: f"Bearer {token('reader')}"}
    consumer = await secured.open(f"consumer/{TOPIC}/s?{options}", headers=headers)
    await publish(producer, "bad")
    for _ in range(2):
        await refuse(consumer, await received(consumer))
    async with asyncio.timeout(20):
        frame = await consumer.receive()
    assert frame.type is WSMsgType.CLOSE and consumer.close_code == 1008
    assert "not authorized to Produce" in str(frame.extra)
