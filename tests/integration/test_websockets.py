"""WebSocket producers, consumers and readers of running brokers, with aiohttp's client and with `websocket-client`."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import jwt
import pytest
import websocket
from aiohttp import ClientWebSocketResponse, WSMsgType

from quire_bookie.settings.tokens import TokenSettings
from quire_broker.names import parse_topic
from quire_broker.security.settings import AccessSettings, AuthenticationSettings
from quire_broker.server.broker import RunningBroker
from quire_broker.settings.websocket import WebSocketSettings
from quire_client import Client
from tests.support.broker_world import BrokerWorld, running_brokers
from tests.support.raw_client import Producer

TOPIC = "persistent/public/default/orders"
SERVED = WebSocketSettings(enabled=True, text_bytes_max=64 * 1024)


class Sockets:
    """Opens WebSockets at one broker or another."""

    def __init__(self, world: BrokerWorld, session: aiohttp.ClientSession) -> None:
        self.world = world
        self.session = session

    def url(self, path: str, number: int = 0) -> str:
        """The address of a path at one broker."""
        return f"ws://127.0.0.1:{self.world.brokers[number].http_port}/ws/v2/{path}"

    async def open(self, path: str, number: int = 0, headers: dict[str, str] | None = None) -> ClientWebSocketResponse:
        """Open one."""
        return await self.session.ws_connect(self.url(path, number), headers=headers or {}, max_msg_size=0)

    async def refusal(self, path: str, headers: dict[str, str] | None = None) -> tuple[int, str]:
        """The status and the reason of a refused one."""
        upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
        upgrade["Sec-WebSocket-Key"] = base64.b64encode(b"k" * 16).decode()
        url = self.url(path).replace("ws://", "http://")
        async with self.session.get(url, headers=upgrade | (headers or {})) as answer:
            return answer.status, (await answer.json())["reason"] if answer.status >= 400 else ""


@pytest.fixture
async def sockets(tmp_path: Path) -> AsyncIterator[Sockets]:
    async with running_brokers(tmp_path, 2, websocket=SERVED) as world, aiohttp.ClientSession() as session:
        yield Sockets(world, session)


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


async def publish(producer: ClientWebSocketResponse, text: str, **fields: Any) -> dict[str, Any]:
    """Send a message and return its answer."""
    await producer.send_json({"payload": encoded(text)} | fields)
    async with asyncio.timeout(20):
        found: dict[str, Any] = await producer.receive_json()
        return found


async def received(consumer: ClientWebSocketResponse) -> dict[str, Any]:
    """Return the next message, with its payload as a text."""
    async with asyncio.timeout(20):
        found: dict[str, Any] = await consumer.receive_json()
    return found | {"payload": base64.b64decode(found["payload"]).decode()}


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until it holds."""
    async with asyncio.timeout(20):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def acknowledged(world: BrokerWorld, subscription: str) -> None:
    """Wait until a subscription has no backlog in any loaded topic."""
    topics = [topic for broker in world.brokers for topic in broker.topics.loaded]

    async def done() -> bool:
        return all(topic.subscriptions[subscription].backlog == 0 for topic in topics)

    await until(done)


async def acknowledge(consumer: ClientWebSocketResponse, message: dict[str, Any]) -> None:
    await consumer.send_json({"messageId": message["messageId"]})


async def test_a_message_has_all_fields_that_its_producer_gave(sockets: Sockets) -> None:
    consumer = await sockets.open(f"consumer/{TOPIC}/s")
    producer = await sockets.open(f"producer/{TOPIC}")
    given = {"key": "k", "properties": {"a": "b"}, "context": "7", "eventTime": "2026-11-27T14:00:00.123+01:00"}
    answer = await publish(producer, "hello", **given)
    assert answer["result"] == "ok" and answer["context"] == "7"
    message = await received(consumer)
    assert message["messageId"] == answer["messageId"]
    assert (message["payload"], message["key"], message["properties"]) == ("hello", "k", {"a": "b"})
    assert message["eventTime"] == "2026-11-27T13:00:00.123Z" and message["redeliveryCount"] == 0
    assert message["publishTime"].endswith("Z")


async def test_a_broker_serves_the_topics_of_another_broker(sockets: Sockets) -> None:
    owner = await sockets.world.brokers[1].parts.lookups.find(parse_topic("public/default/orders"))
    assert owner is not None and owner.ours
    consumer = await sockets.open(f"consumer/{TOPIC}/s", 0)
    producer = await sockets.open(f"producer/{TOPIC}", 0)
    assert (await publish(producer, "over there"))["result"] == "ok"
    assert (await received(consumer))["payload"] == "over there"
    assert [str(topic.name) for topic in sockets.world.brokers[1].topics.loaded] == [
        "persistent://public/default/orders"
    ]


async def test_unacknowledged_messages_come_again_after_the_client_left(sockets: Sockets) -> None:
    producer = await sockets.open(f"producer/{TOPIC}")
    consumer = await sockets.open(f"consumer/{TOPIC}/s?subscriptionType=Shared&subscriptionInitialPosition=Earliest")
    for text in ("one", "two", "three"):
        await publish(producer, text)
    first, second = await received(consumer), await received(consumer)
    assert (first["payload"], second["payload"]) == ("one", "two")
    await acknowledge(consumer, first)
    await consumer.close()
    again = await sockets.open(f"consumer/{TOPIC}/s?subscriptionType=Shared")
    texts = {(await received(again))["payload"] for _ in range(2)}
    assert texts == {"two", "three"}


async def test_a_negative_acknowledgement_delivers_again(sockets: Sockets) -> None:
    producer = await sockets.open(f"producer/{TOPIC}")
    consumer = await sockets.open(f"consumer/{TOPIC}/s?subscriptionType=Shared&negativeAckRedeliveryDelay=10")
    await publish(producer, "again")
    first = await received(consumer)
    await consumer.send_json({"type": "negativeAcknowledge", "messageId": first["messageId"]})
    second = await received(consumer)
    assert second["payload"] == "again" and second["redeliveryCount"] == 1


async def test_messages_without_answer_come_again_after_the_ack_timeout(sockets: Sockets) -> None:
    producer = await sockets.open(f"producer/{TOPIC}")
    consumer = await sockets.open(f"consumer/{TOPIC}/s?subscriptionType=Shared&ackTimeoutMillis=50")
    await publish(producer, "late")
    await received(consumer)
    assert (await received(consumer))["redeliveryCount"] == 1


async def test_a_pulling_consumer_gets_what_it_asks_for(sockets: Sockets) -> None:
    producer = await sockets.open(f"producer/{TOPIC}")
    consumer = await sockets.open(f"consumer/{TOPIC}/s?pullMode=true")
    for number in range(4):
        await publish(producer, str(number))
    await consumer.send_json({"type": "permit", "permitMessages": 2})
    assert [(await received(consumer))["payload"] for _ in range(2)] == ["0", "1"]
    await consumer.send_json({"type": "isEndOfTopic"})
    async with asyncio.timeout(20):
        assert await consumer.receive_json() == {"endOfTopic": False}, "no third message came before it"
    await consumer.send_json({"type": "permit", "permitMessages": 1})
    assert (await received(consumer))["payload"] == "2"


async def test_a_consumer_holds_no_more_than_its_queue(sockets: Sockets) -> None:
    producer = await sockets.open(f"producer/{TOPIC}")
    consumer = await sockets.open(f"consumer/{TOPIC}/s?receiverQueueSize=2")
    for number in range(4):
        await publish(producer, str(number))
    first = await received(consumer)
    assert (await received(consumer))["payload"] == "1"
    await consumer.send_json({"type": "isEndOfTopic"})
    async with asyncio.timeout(20):
        assert await consumer.receive_json() == {"endOfTopic": False}
    await acknowledge(consumer, first)
    assert (await received(consumer))["payload"] == "2"


async def test_the_end_of_a_terminated_topic_is_told(sockets: Sockets) -> None:
    producer = await sockets.open(f"producer/{TOPIC}")
    consumer = await sockets.open(f"consumer/{TOPIC}/s")
    await publish(producer, "last")
    message = await received(consumer)
    await acknowledge(consumer, message)
    url = f"http://127.0.0.1:{sockets.world.brokers[0].http_port}/admin/v2/{TOPIC}/terminate"
    async with sockets.session.post(url) as answer:
        assert answer.status == 200

    async def at_end() -> bool:
        await consumer.send_json({"type": "isEndOfTopic"})
        return bool((await consumer.receive_json())["endOfTopic"])

    await until(at_end)
    assert (await sockets.refusal(f"producer/{TOPIC}"))[0] == 503


async def test_a_reader_begins_where_it_says(sockets: Sockets) -> None:
    producer = await sockets.open(f"producer/{TOPIC}")
    ids = [(await publish(producer, str(number)))["messageId"] for number in range(3)]
    reader = await sockets.open(f"reader/{TOPIC}?messageId=earliest")
    assert [(await received(reader))["payload"] for _ in range(3)] == ["0", "1", "2"]
    after = await sockets.open(f"reader/{TOPIC}?messageId={ids[0]}&receiverQueueSize=1")
    assert (await received(after))["payload"] == "1"
    await after.send_json({"messageId": ids[1]})
    assert (await received(after))["payload"] == "2"
    latest = await sockets.open(f"reader/{TOPIC}")
    await publish(producer, "new")
    assert (await received(latest))["payload"] == "new"


async def batch(broker: RunningBroker, texts: list[str]) -> None:
    """Publish messages as one entry."""
    async with Client(f"pulsar://127.0.0.1:{broker.port}") as client:
        topic = "persistent://public/default/orders"
        producer = Producer(await client.brokers.owner(topic))
        await producer.open(topic)
        await producer.send([text.encode() for text in texts], key=None, properties={}, now_ms=1)
        await producer.flush()


async def test_the_messages_of_a_batch_are_acknowledged_one_by_one(sockets: Sockets) -> None:
    path = f"consumer/{TOPIC}/s?subscriptionType=Shared&receiverQueueSize=1"
    consumer = await sockets.open(path)
    await batch(sockets.world.brokers[0], ["a", "b", "c"])
    for text in ("a", "b", "c"):
        message = await received(consumer)
        assert message["payload"] == text
        await acknowledge(consumer, message)
    await acknowledged(sockets.world, "s")
    reader = await sockets.open(f"reader/{TOPIC}?messageId=earliest")
    messages = [await received(reader) for _ in range(3)]
    after = await sockets.open(f"reader/{TOPIC}?messageId={messages[1]['messageId']}")
    assert (await received(after))["payload"] == "c"


async def test_a_partitioned_topic_is_served_as_one(sockets: Sockets) -> None:
    url = f"http://127.0.0.1:{sockets.world.brokers[0].http_port}/admin/v2/{TOPIC}/partitions"
    async with sockets.session.put(url, json=3) as answer:
        assert answer.status == 204
    consumer = await sockets.open(f"consumer/{TOPIC}/s")
    producer = await sockets.open(f"producer/{TOPIC}?messageRoutingMode=RoundRobinPartition")
    for number in range(6):
        await publish(producer, str(number))
    messages = [await received(consumer) for _ in range(6)]
    assert {message["payload"] for message in messages} == set("012345")
    for message in messages:
        await acknowledge(consumer, message)
    assert len(sockets.world.brokers[0].topics.loaded) == 3
    await acknowledged(sockets.world, "s")


async def test_several_topics_are_consumed_together(sockets: Sockets) -> None:
    broker = sockets.world.brokers[0]
    consumer = await sockets.session.ws_connect(
        f"ws://127.0.0.1:{broker.http_port}/ws/v3/consumer/s?topics=public/default/a,public/default/b"
    )
    for name in ("a", "b"):
        producer = await sockets.open(f"producer/persistent/public/default/{name}")
        await publish(producer, name)
        message = await received(consumer)
        assert message["payload"] == name
        await acknowledge(consumer, message)
    assert len(broker.topics.loaded) == 2
    await acknowledged(sockets.world, "s")


async def test_sessions_continue_when_their_topic_moves(sockets: Sockets) -> None:
    first, second = sockets.world.brokers
    consumer = await sockets.open(f"consumer/{TOPIC}/s")
    producer = await sockets.open(f"producer/{TOPIC}")
    await publish(producer, "before")
    await acknowledge(consumer, await received(consumer))
    (bundle,) = {owned for owned in first.owners.held if first.topics.loaded}
    await first.unload_bundle(bundle, second.broker_id)
    assert (await publish(producer, "after"))["result"] == "ok"
    assert (await received(consumer))["payload"] == "after"
    assert len(second.topics.loaded) == 1


async def test_an_unsubscribed_subscription_is_gone(sockets: Sockets) -> None:
    consumer = await sockets.open(f"consumer/{TOPIC}/s")
    await consumer.send_json({"type": "unsubscribe"})
    async with asyncio.timeout(20):
        assert (await consumer.receive()).type is WSMsgType.CLOSE
    assert consumer.close_code == 1000
    assert not sockets.world.brokers[0].topics.loaded[0].subscriptions


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("no json", "send-error:3"),
        ("[1]", "send-error:3"),
        ('{"payload": "###"}', "send-error:7"),
        ("{}", "send-error:7"),
        ('{"payload": "", "eventTime": "yesterday"}', "send-error:7"),
        ('{"payload": "", "properties": {"a": 1}}', "send-error:7"),
        ('{"payload": "", "key": "\\ud800"}', "send-error:7"),
        ('{"payload": "", "deliverAt": "soon"}', "send-error:7"),
        ('{"payload": "", "replicationClusters": "a"}', "send-error:7"),
    ],
)
async def test_a_wrong_text_of_a_producer_is_answered_and_the_session_goes_on(
    sockets: Sockets, text: str, result: str
) -> None:
    producer = await sockets.open(f"producer/{TOPIC}")
    await producer.send_str(text)
    async with asyncio.timeout(20):
        answer = await producer.receive_json()
    assert answer["result"] == result and answer["errorMsg"]
    assert "eventTime" not in text or answer["errorMsg"].startswith("eventTime is 'yesterday': ")
    assert "deliverAt" not in text or answer["errorMsg"].startswith("deliverAt is 'soon': it must be an integer of ")
    assert (await publish(producer, "right"))["result"] == "ok"


@pytest.mark.parametrize(
    "text",
    [
        "no json",
        "7",
        "{}",
        '{"messageId": "###"}',
        '{"messageId": "AAAA"}',
        '{"messageId": 7}',
        '{"type": "permit"}',
        '{"type": "permit", "permitMessages": -1}',
        "[" * 20_000,
    ],
)
async def test_a_wrong_text_of_a_consumer_ends_its_session(sockets: Sockets, text: str) -> None:
    consumer = await sockets.open(f"consumer/{TOPIC}/s")
    await consumer.send_str(text)
    async with asyncio.timeout(20):
        assert (await consumer.receive()).type is WSMsgType.CLOSE
    assert consumer.close_code == 1007


async def test_frames_that_are_too_large_or_binary_end_the_session(sockets: Sockets) -> None:
    for kind in ("producer", "reader"):
        for size in (SERVED.text_bytes_max + 1, 64 * SERVED.text_bytes_max):
            socket = await sockets.open(f"{kind}/{TOPIC}")
            await socket.send_str("x" * size)
            async with asyncio.timeout(20):
                frame = await socket.receive()
            assert socket.close_code == 1009
            assert f"a text of more than {SERVED.text_bytes_max} bytes (webSocketMaxTextFrameSize)" in str(frame.extra)
        socket = await sockets.open(f"{kind}/{TOPIC}")
        await socket.send_bytes(b"x")
        async with asyncio.timeout(20):
            await socket.receive()
        assert socket.close_code == 1003


@pytest.mark.parametrize(
    ("path", "status"),
    [
        (f"consumer/{TOPIC}/s?subscriptionType=Some", 400),
        (f"consumer/{TOPIC}/s?receiverQueueSize=x", 400),
        (f"consumer/{TOPIC}/s?ackTimeoutMillis=-1", 400),
        (f"consumer/{TOPIC}/s?maxRedeliverCount=0", 400),
        (f"consumer/{TOPIC}/s?deadLetterTopic=t", 400),
        (f"consumer/{TOPIC}/s?maxRedeliverCount=1&deadLetterTopic=a/b", 412),
        (f"reader/{TOPIC}?messageId=x", 400),
        (f"producer/{TOPIC}?compressionType=RAR", 400),
        (f"producer/{TOPIC}?encryptionKeys=a", 400),
        ("producer/persistent/public/none/orders", 404),
        (f"consumer/{TOPIC}/{'s' * 2000}", 412),
    ],
)
async def test_a_request_that_cannot_be_served_is_refused_with_the_reason(
    sockets: Sockets, path: str, status: int
) -> None:
    found, reason = await sockets.refusal(path)
    assert found == status and reason


async def test_a_path_without_sockets_is_refused_with_those_that_there_are(sockets: Sockets) -> None:
    url = sockets.url(f"reader/{TOPIC}").replace("ws://", "http://")
    for path in ("/ws/v2/readers/a", "/ws/producer/persistent/a/b/c/d", "/ws/"):
        async with sockets.session.get(url.partition("/ws/")[0] + path) as answer:
            assert answer.status == 404
            assert f"{path} serves no WebSockets; the paths are /ws/v2/producer/" in (await answer.json())["reason"]


async def test_a_request_without_upgrade_or_from_another_site_opens_no_session(sockets: Sockets) -> None:
    async with sockets.session.get(sockets.url(f"reader/{TOPIC}").replace("ws://", "http://")) as answer:
        assert answer.status == 400 and "WebSocket client" in (await answer.json())["reason"]
    assert (await sockets.refusal(f"reader/{TOPIC}", {"Origin": "http://evil.example"}))[0] == 403
    rebound = {"Host": "evil.example", "Origin": "http://evil.example"}
    assert (await sockets.refusal(f"reader/{TOPIC}", rebound))[0] == 403
    assert not sockets.world.brokers[0].topics.loaded


async def test_a_second_exclusive_consumer_is_refused(sockets: Sockets) -> None:
    for path in (f"consumer/{TOPIC}/s", f"producer/{TOPIC}?producerName=p"):
        kept = await sockets.open(path)
        assert (await sockets.refusal(path))[0] == 409
        assert not kept.closed


async def test_sessions_have_a_bound_and_leave_room_when_they_end(tmp_path: Path) -> None:
    few = replace(SERVED, sessions_max=2)
    async with running_brokers(tmp_path, 1, websocket=few) as world, aiohttp.ClientSession() as session:
        sockets = Sockets(world, session)
        first, _ = [await sockets.open(f"reader/{TOPIC}") for _ in range(2)]
        status, reason = await sockets.refusal(f"reader/{TOPIC}")
        assert status == 503 and "2 WebSocket sessions are open (webSocketMaxSessions)" in reason
        await first.close()

        async def free() -> bool:
            return (await sockets.refusal(f"reader/{TOPIC}"))[0] != 503

        await until(free)


async def test_a_session_that_lasts_is_no_slow_request(tmp_path: Path) -> None:
    async with running_brokers(tmp_path, 1, websocket=SERVED) as world, aiohttp.ClientSession() as session:
        sockets, slow = Sockets(world, session), world.brokers[0].parts.slow
        slow.after_s = 0.0
        await (await sockets.open(f"reader/{TOPIC}")).close()
        assert (await sockets.refusal("reader/persistent/public/none/t"))[0] == 404
        assert slow.counts["admin"] == 1, "only the refused one"


async def test_idle_sessions_end_unless_pings_are_answered(tmp_path: Path) -> None:
    idle = replace(SERVED, idle_s=0.3)
    async with running_brokers(tmp_path, 1, websocket=idle) as world, aiohttp.ClientSession() as session:
        socket = await Sockets(world, session).open(f"reader/{TOPIC}")
        async with asyncio.timeout(20):
            assert (await socket.receive()).type is WSMsgType.CLOSE
        assert socket.close_code == 1001


async def test_a_stopping_broker_ends_its_sessions(tmp_path: Path) -> None:
    async with aiohttp.ClientSession() as session:
        async with running_brokers(tmp_path, 1, websocket=SERVED) as world:
            socket = await Sockets(world, session).open(f"reader/{TOPIC}")
        async with asyncio.timeout(20):
            await socket.receive()
        assert socket.close_code in (1001, 1006)


async def test_a_broker_serves_none_unless_it_is_set(tmp_path: Path) -> None:
    async with running_brokers(tmp_path, 1) as world, aiohttp.ClientSession() as session:
        status, reason = await Sockets(world, session).refusal(f"reader/{TOPIC}")
        assert status == 404 and "webSocketServiceEnabled=false" in reason


async def test_the_client_of_pulsars_python_examples_produces_and_consumes(sockets: Sockets) -> None:
    def example() -> str:
        consumer = websocket.create_connection(sockets.url(f"consumer/{TOPIC}/s"), timeout=20)
        producer = websocket.create_connection(sockets.url(f"producer/{TOPIC}"), timeout=20)
        payload = base64.b64encode(b"Hello World").decode()
        producer.send(json.dumps({"payload": payload, "properties": {"key1": "value1"}, "context": "5"}))
        assert json.loads(producer.recv())["result"] == "ok"
        message = json.loads(consumer.recv())
        consumer.send(json.dumps({"messageId": message["messageId"]}))
        producer.close()
        consumer.close()
        return base64.b64decode(message["payload"]).decode()

    assert await asyncio.to_thread(example) == "Hello World"


SECRET = b"s" * 32
BEARER = "Authorization"


def token(role: str, **claims: Any) -> str:
    return jwt.encode({"sub": role} | claims, SECRET, "HS256")


@pytest.fixture
async def secured(tmp_path: Path) -> AsyncIterator[Sockets]:
    """Two brokers that check tokens and permissions; app produces and consumes, reader consumes."""
    key = tmp_path / "secret.key"
    key.write_bytes(SECRET)
    checks = AuthenticationSettings(TokenSettings(secret_key=f"file://{key}"), check_interval_s=0.05)
    access = AccessSettings(
        authentication=checks, authorization=True, super_users=frozenset({"root"}), permissions_check_s=0.05
    )
    async with (
        running_brokers(
            tmp_path / "bookie", 2, websocket=SERVED, of_broker=lambda _, common: replace(common, access=access)
        ) as world,
        aiohttp.ClientSession() as session,
    ):
        namespace = parse_topic("public/default/orders").namespace
        for role, actions in (("app", ["produce", "consume"]), ("reader", ["consume"])):
            await grant(world, session, role, actions)
        assert await world.brokers[1].parts.lookups.find(parse_topic("public/default/orders")) is not None
        assert await world.brokers[1].policies.policies(namespace)
        yield Sockets(world, session)


async def grant(world: BrokerWorld, session: aiohttp.ClientSession, role: str, actions: list[str]) -> None:
    """Give a role permissions in the namespace."""
    path = f"/admin/v2/namespaces/public/default/permissions/{role}"
    url = f"http://127.0.0.1:{world.brokers[0].http_port}{path}"
    async with session.post(url, json=actions, headers={BEARER: f"Bearer {token('root')}"}) as answer:
        assert answer.status == 204


async def test_a_client_needs_a_token_of_a_role_that_may(secured: Sockets) -> None:
    statuses = {
        (kind, role): (await secured.refusal(path, {} if role is None else {BEARER: f"Bearer {token(role)}"}))[0]
        for kind, path in (("producer", f"producer/{TOPIC}"), ("consumer", f"consumer/{TOPIC}/s"))
        for role in (None, "stranger", "reader", "app")
    }
    assert statuses == {
        ("producer", None): 401,
        ("producer", "stranger"): 403,
        ("producer", "reader"): 403,
        ("producer", "app"): 101,
        ("consumer", None): 401,
        ("consumer", "stranger"): 403,
        ("consumer", "reader"): 101,
        ("consumer", "app"): 101,
    }
    wrong = jwt.encode({"sub": "app"}, b"x" * 32, "HS256")
    assert (await secured.refusal(f"producer/{TOPIC}?token={wrong}"))[0] == 401


async def test_the_token_may_be_in_the_query_of_a_websocket_only(
    secured: Sockets, caplog: pytest.LogCaptureFixture
) -> None:
    consumer = await secured.open(f"consumer/{TOPIC}/s?token={token('app')}")
    producer = await secured.open(f"producer/{TOPIC}?token={token('app')}")
    assert (await publish(producer, "by another broker"))["result"] == "ok"
    assert (await received(consumer))["payload"] == "by another broker"
    assert (await secured.refusal(f"producer/{TOPIC}?token={token('stranger')}"))[0] == 403
    url = f"http://127.0.0.1:{secured.world.brokers[0].http_port}/admin/v2/tenants?token={token('root')}"
    async with secured.session.get(url) as answer:
        assert answer.status == 401
    assert token("stranger") not in caplog.text


async def test_every_topic_of_a_consumer_of_several_needs_the_permission(secured: Sockets) -> None:
    host = f"ws://127.0.0.1:{secured.world.brokers[0].http_port}"
    path = "/ws/v3/consumer/s?topics=public/default/a,public/default/b"
    headers = {BEARER: f"Bearer {token('stranger')}"}
    with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
        await secured.session.ws_connect(host + path, headers=headers)
    headers = {BEARER: f"Bearer {token('reader')}"}
    socket = await secured.session.ws_connect(host + path, headers=headers)
    assert not socket.closed


async def test_a_revoked_role_and_an_expired_token_end_the_session(secured: Sockets) -> None:
    consumer = await secured.open(f"consumer/{TOPIC}/s", headers={BEARER: f"Bearer {token('reader')}"})
    await grant(secured.world, secured.session, "reader", [])
    async with asyncio.timeout(20):
        assert (await consumer.receive()).type is WSMsgType.CLOSE
    assert consumer.close_code == 1008
    soon = token("app", exp=secured.world.brokers[0].clock.now_ms() // 1000 + 2)
    producer = await secured.open(f"producer/{TOPIC}", headers={BEARER: f"Bearer {soon}"})
    async with asyncio.timeout(20):
        assert (await producer.receive()).type is WSMsgType.CLOSE
    assert producer.close_code == 1008
