"""WebSocket consumers of all topics that match a pattern."""

import asyncio
from urllib.parse import urlencode

import aiohttp
import pytest
from aiohttp import ClientWebSocketResponse, WSMsgType

from quire_broker.limits import WEBSOCKET_PARTITIONS_MAX
from quire_broker.names import parse_topic
from tests.integration.test_websockets import (
    BEARER,
    Sockets,
    acknowledge,
    acknowledged,
    publish,
    received,
    secured,
    sockets,
    token,
    until,
)

__all__ = ["secured", "sockets"]
ORDERS = "public/default/orders-[a-z]+"


def address(sockets: Sockets, **query: str) -> str:
    """The address of a consumer of subscription s at broker 0."""
    return f"ws://127.0.0.1:{sockets.world.brokers[0].http_port}/ws/v3/consumer/s?{urlencode(query)}"


async def opened(sockets: Sockets, pattern: str = ORDERS, role: str = "", **query: str) -> ClientWebSocketResponse:
    headers = {BEARER: f"Bearer {token(role)}"} if role else {}
    query = {"topicsPattern": pattern, "subscriptionInitialPosition": "Earliest"} | query
    return await sockets.session.ws_connect(address(sockets, **query), headers=headers)


async def published(sockets: Sockets, name: str, text: str) -> None:
    producer = await sockets.open(f"producer/persistent/public/default/{name}", number=1)
    assert (await publish(producer, text))["result"] == "ok"
    await producer.close()


async def admin(sockets: Sockets, method: str, path: str, json: object = None) -> None:
    url = f"http://127.0.0.1:{sockets.world.brokers[0].http_port}/admin/v2/persistent/public/default/{path}"
    async with sockets.session.request(method, url, json=json) as answer:
        assert answer.status == 204, await answer.text()


async def test_topics_that_match_are_consumed_and_new_ones_join(sockets: Sockets) -> None:
    for name in ("orders-a", "orders-b", "other"):
        await published(sockets, name, name)
    consumer = await opened(sockets)
    assert {(await received(consumer))["payload"] for _ in range(2)} == {"orders-a", "orders-b"}
    await published(sockets, "orders-c", "new")
    await published(sockets, "orders-1", "no letters")
    message = await received(consumer)
    assert message["payload"] == "new"
    await acknowledge(consumer, message)
    await published(sockets, "orders-a", "last")
    assert (await received(consumer))["payload"] == "last"


async def test_a_pattern_that_matches_no_topic_waits_for_one(sockets: Sockets) -> None:
    consumer = await opened(sockets, "persistent://public/default/orders-[a-z]+")
    await consumer.send_json({"type": "isEndOfTopic"})
    assert await consumer.receive_json(timeout=20) == {"endOfTopic": False}
    await published(sockets, "orders-a", "first")
    message = await received(consumer)
    assert message["payload"] == "first"
    await acknowledge(consumer, message)
    await acknowledged(sockets.world, "s")


async def test_partitions_are_consumed_that_had_no_message_yet(sockets: Sockets) -> None:
    await admin(sockets, "PUT", "orders-p/partitions", 3)
    consumer = await opened(sockets, subscriptionInitialPosition="Latest")
    producer = await sockets.open("producer/persistent/public/default/orders-p?messageRoutingMode=RoundRobinPartition")
    for number in range(6):
        await publish(producer, str(number))
    assert {(await received(consumer))["payload"] for _ in range(6)} == set("012345")


async def test_a_deleted_topic_is_not_created_again_by_its_consumer(sockets: Sockets) -> None:
    broker = sockets.world.brokers[0]
    await published(sockets, "orders-a", "a")
    await published(sockets, "orders-b", "b")
    consumer = await opened(sockets)
    assert {(await received(consumer))["payload"] for _ in range(2)} == {"a", "b"}
    await admin(sockets, "DELETE", "orders-a?force=true")
    await published(sockets, "orders-c", "c")
    assert (await received(consumer))["payload"] == "c", "the list has changed since the deletion"
    namespace = parse_topic(ORDERS).namespace
    assert [name.local for name in await broker.topics.list(namespace)] == ["orders-b", "orders-c"]
    await published(sockets, "orders-a", "again")
    assert (await received(consumer))["payload"] == "again"


async def test_consumers_and_the_list_go_on_when_a_broker_is_gone(sockets: Sockets) -> None:
    first, second = sockets.world.brokers
    await published(sockets, "orders-a", "a")
    (bundle,) = [owned for broker in (first, second) if broker.topics.loaded for owned in broker.owners.held]
    if bundle in first.owners.held:
        await first.unload_bundle(bundle, second.broker_id)
    consumer = await opened(sockets)
    message = await received(consumer)
    await acknowledge(consumer, message)
    await second.stop()
    producer = await sockets.open("producer/persistent/public/default/orders-a")
    await publish(producer, "moved")
    assert (await received(consumer))["payload"] == "moved"
    await publish(await sockets.open("producer/persistent/public/default/orders-b"), "new")
    assert (await received(consumer))["payload"] == "new"


async def test_an_unsubscribed_pattern_has_no_subscription_in_any_topic(sockets: Sockets) -> None:
    for name in ("orders-a", "orders-b"):
        await published(sockets, name, name)
    consumer = await opened(sockets)
    await consumer.send_json({"type": "unsubscribe"})
    while (await consumer.receive(timeout=20)).type is not WSMsgType.CLOSE:
        pass
    assert consumer.close_code == 1000
    topics = [topic for broker in sockets.world.brokers for topic in broker.topics.loaded]
    assert len(topics) == 2 and not any(topic.subscriptions for topic in topics)


async def test_more_topics_than_a_session_serves_are_refused_and_end_a_session(sockets: Sockets) -> None:
    consumer = await opened(sockets)
    await admin(sockets, "PUT", "orders-many/partitions", WEBSOCKET_PARTITIONS_MAX + 1)
    frame = await consumer.receive(timeout=20)
    assert frame.type is WSMsgType.CLOSE and consumer.close_code == 1011
    assert f"{WEBSOCKET_PARTITIONS_MAX + 1} topics and partitions" in str(frame.extra)
    with pytest.raises(aiohttp.WSServerHandshakeError, match="400"):
        await opened(sockets)
    status, reason = await refusal(sockets, topicsPattern=ORDERS)
    assert status == 400 and f"serves {WEBSOCKET_PARTITIONS_MAX}" in reason

    async def free() -> bool:
        return not len(sockets.world.brokers[0].parts.topic_lists)

    await until(free)


async def refusal(sockets: Sockets, **query: str) -> tuple[int, str]:
    """The status and the reason of a refused request."""
    prefix = sockets.url("").removesuffix("/ws/v2/")
    return await sockets.refusal("../v3" + address(sockets, **query).removeprefix(f"{prefix}/ws/v3"))


@pytest.mark.parametrize(
    ("query", "status", "reason"),
    [
        ({}, 400, "either topics=A,B or topicsPattern="),
        ({"topics": "a", "topicsPattern": ORDERS}, 400, "either topics=A,B or topicsPattern="),
        ({"topicsPattern": "non-persistent://public/default/a.*"}, 400, "persistent topics only"),
        ({"topicsPattern": "public/default/(?!a)"}, 412, "RE2 does not accept it"),
        ({"topicsPattern": "public/default/" + "a" * 60}, 412, "subscriptionPatternMaxLength"),
        ({"topicsPattern": "a/b/c/d"}, 412, "Invalid short topic name"),
        ({"topicsPattern": "public/none/a.*"}, 404, "Namespace not found"),
        ({"topicsPattern": ORDERS, "maxRedeliverCount": "2"}, 400, "needs deadLetterTopic"),
    ],
)
async def test_a_pattern_that_cannot_be_served_is_refused_with_the_reason(
    sockets: Sockets, query: dict[str, str], status: int, reason: str
) -> None:
    found, text = await refusal(sockets, **query)
    assert found == status and reason in text


async def test_messages_of_a_pattern_go_to_the_dead_letter_topic(sockets: Sockets) -> None:
    await published(sockets, "orders-a", "bad")
    letters = await sockets.open("consumer/persistent/public/default/letters/s")
    limits = {"maxRedeliverCount": "1", "deadLetterTopic": "public/default/letters"}
    consumer = await opened(sockets, subscriptionType="Shared", negativeAckRedeliveryDelay="10", **limits)
    for _ in range(2):
        message = await received(consumer)
        await consumer.send_json({"type": "negativeAcknowledge", "messageId": message["messageId"]})
    letter = await received(letters)
    assert letter["payload"] == "bad"
    assert letter["properties"]["REAL_TOPIC"] == "persistent://public/default/orders-a"


async def test_a_pattern_needs_the_permission_to_consume_in_the_namespace(secured: Sockets) -> None:
    for role in ("", "stranger"):
        with pytest.raises(aiohttp.WSServerHandshakeError, match="403" if role else "401"):
            await opened(secured, role=role)
    producer = await secured.open(
        "producer/persistent/public/default/orders-a", headers={BEARER: f"Bearer {token('app')}"}
    )
    await publish(producer, "allowed")
    consumer = await opened(secured, role="reader")
    assert (await received(consumer))["payload"] == "allowed"


async def test_many_topics_that_come_at_once_all_join(sockets: Sockets) -> None:
    consumer = await opened(sockets)
    names = [f"orders-{letter}" for letter in "abcdefgh"]
    await asyncio.gather(*(published(sockets, name, name) for name in names))
    assert {(await received(consumer))["payload"] for _ in names} == set(names)


async def test_a_role_without_permission_creates_no_partitioned_topic(secured: Sockets) -> None:
    """Looking up the partitions of a topic may create it."""
    http = f"http://127.0.0.1:{secured.world.brokers[0].http_port}"
    root = {BEARER: f"Bearer {token('root')}"}
    policy = {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 3}
    url = f"{http}/admin/v2/namespaces/public/default/autoTopicCreation"
    async with secured.session.post(url, json=policy, headers=root) as answer:
        assert answer.status == 204
    with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
        await secured.session.ws_connect(
            f"ws{http[4:]}/ws/v3/consumer/s?topics=public/default/sneaky",
            headers={BEARER: f"Bearer {token('stranger')}"},
        )
    async with secured.session.get(f"{http}/admin/v2/persistent/public/default/partitioned", headers=root) as answer:
        assert await answer.json() == []
