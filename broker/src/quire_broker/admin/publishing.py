"""Publishes one message over HTTP, for the web console and for tests by hand.

POST /admin/quire/topics/T/messages   {"payload": base64, "key": text, "properties": {text: text}, "schemaVersion": n}
                                      {"ledgerId", "entryId"}

The response is sent when the message is durable. `schemaVersion` names a registered schema; the broker does not check
the payload against it, as it does not for other clients. A body has at most 1 MiB, and `PUBLISHED_BY_HTTP_MAX` requests
wait at once. A partitioned topic stores nothing itself: name one of its partitions.
"""

import asyncio
import base64
import binascii
from collections.abc import Iterator
from typing import Any

from aiohttp import web

from quire_bookie.admin.answers import RefusedError
from quire_broker.admin.answers import answer, object_of
from quire_broker.admin.context import broker_of, require_owner, require_plain, topic_here, topic_name_of
from quire_broker.admin.descriptions import INTEGER, MESSAGE_ID, TEXT, TEXTS, described, fields
from quire_broker.admin.routes import Need, Route
from quire_broker.errors import NotAllowedError, ServiceNotReadyError
from quire_broker.limits import PUBLISH_BY_HTTP_S, PUBLISHED_BY_HTTP_MAX
from quire_broker.schemas.stored import schema_id
from quire_broker.server.broker import RunningBroker
from quire_broker.topic.producers import Producer, Receipt, Refusal
from quire_broker.topic.topic import Topic
from quire_broker.wire.entry import seal
from quire_broker.wire.frames import Send
from quire_broker.wire.kinds import Moved
from quire_broker.wire.proto.pulsar_pb2 import MessageMetadata

PUBLISHING: web.AppKey[asyncio.Semaphore] = web.AppKey("publishing by HTTP", asyncio.Semaphore)


def routes() -> Iterator[Route]:
    """Yield the routes of this module."""
    topic = "/admin/quire/topics/{domain:persistent}/{tenant}/{namespace}/{topic}"
    yield Route("POST", topic + "/messages", publish, Need.PRODUCE)


class _Link:
    """Receives the answer to the one send of a request."""

    client_version = "HTTP"

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.answered: asyncio.Future[Receipt | Refusal] = asyncio.get_running_loop().create_future()

    def answers_ready(self, producer: Producer) -> None:
        """Take the answer a turn later, when the producer has added it."""
        asyncio.get_running_loop().call_soon(self._take, producer)

    def _take(self, producer: Producer) -> None:
        if producer.answers and not self.answered.done():
            self.answered.set_result(producer.answers.pop())

    def publish_done(self, count: int, size_bytes: int) -> None:
        """Return nothing: a request takes no budget of a connection."""

    def close_producer(self, producer: Producer, moved: Moved | None = None) -> None:
        """Fail the request: the topic is closed."""
        if not self.answered.done():
            self.answered.set_exception(ServiceNotReadyError("the topic was closed meanwhile; try again"))
            self.answered.exception()  # the request may be gone

    def producer_ready(self, producer: Producer) -> None:
        """Return nothing: a shared producer does not wait."""

    def producer_refused(self, producer: Producer, error: Exception) -> None:
        """Return nothing: a shared producer does not wait."""

    async def alive(self) -> bool:
        """Return whether the request waits."""
        return not self.answered.done()


@described(body=fields(payload=TEXT, key=TEXT, properties=TEXTS, schemaVersion=INTEGER), returns=MESSAGE_ID)
async def publish(request: web.Request) -> web.Response:
    """Publish the message of the body. 429 if too many requests wait."""
    gate = request.app[PUBLISHING]
    if gate.locked():
        raise RefusedError(429, f"{PUBLISHED_BY_HTTP_MAX} messages are being published by HTTP; try again")
    async with gate:
        name, broker = topic_name_of(request), broker_of(request)
        await require_plain(request, name, "publish to one of its partitions")
        await require_owner(request, name)
        metadata, payload = _message(await object_of(request), broker)
        topic = await topic_here(broker, name)
        await _set_schema(broker, topic, metadata)
        return answer(await _publish(topic, metadata, payload, request.remote or ""))


def _message(body: dict[str, Any], broker: RunningBroker) -> tuple[MessageMetadata, bytes]:
    """Return metadata and payload of a request. RefusedError 400."""
    try:
        payload = base64.b64decode(_text(body, "payload"), validate=True)
    except binascii.Error as error:
        raise RefusedError(400, f"payload is not base64: {error}") from error
    properties = body.get("properties") or {}
    if not isinstance(properties, dict) or not all(isinstance(value, str) for value in properties.values()):
        raise RefusedError(400, "properties must be an object of texts")
    version = body.get("schemaVersion")
    if version is not None and (type(version) is not int or not 0 <= version < 1 << 63):
        raise RefusedError(400, f"schemaVersion={version!r}: must be the number of a version")
    metadata = MessageMetadata(producer_name=f"http-{broker.chance.token(8).hex()}", sequence_id=0)
    metadata.publish_time = broker.clock.now_ms()
    if body.get("key") is not None:
        metadata.partition_key = _text(body, "key")
    for key, value in properties.items():
        metadata.properties.add(key=key, value=value)
    if version is not None:
        metadata.schema_version = version.to_bytes(8, "big")
    return metadata, payload


def _text(body: dict[str, Any], name: str) -> str:
    value = body.get(name, "")
    if not isinstance(value, str):
        raise RefusedError(400, f"{name} must be a text")
    return value


async def _set_schema(broker: RunningBroker, topic: Topic, metadata: MessageMetadata) -> None:
    """Refuse a version that is not registered, and none where the policies require one."""
    if metadata.schema_version:
        number = int.from_bytes(metadata.schema_version, "big")
        if await broker.parts.schemas.version(schema_id(topic.name), number) is None:
            raise RefusedError(404, f"{topic.name} has no schema of version {number}")
        return
    rules = await broker.topics.rules(topic)
    latest = await broker.parts.schemas.latest(schema_id(topic.name))
    if rules.get("schema_validation_enforced") and latest is not None:
        raise NotAllowedError(f"{topic.name} requires a schema of each message: give schemaVersion")


def _require_rate(topic: Topic, size_bytes: int) -> None:
    """Raise RefusedError 429 while the rate of publishing of the topic, or of its resource group, is exceeded."""
    limits_in_force = [limit for limit in (topic.publish_limit, topic.group.publish) if limit.active]
    if any(limit.ready_s > asyncio.get_running_loop().time() for limit in limits_in_force):
        raise RefusedError(429, f"{topic.name} is at its publish rate; try again later, or raise the rate")
    for limit in limits_in_force:
        limit.charge(1, size_bytes)


async def _publish(topic: Topic, metadata: MessageMetadata, payload: bytes, peer: str) -> dict[str, Any]:
    """Return the id of the durable message. After a timeout the message may still be stored."""
    link = _Link(peer)
    producer = Producer(0, metadata.producer_name, link, generated_name=True)
    entry = memoryview(seal(metadata, payload))
    _require_rate(topic, len(entry))
    await topic.add_producer(producer, None)
    try:
        topic.publish(producer, [Send(0, None, 1, False, False, entry)])
        async with asyncio.timeout(PUBLISH_BY_HTTP_S):
            found = await link.answered
    except TimeoutError as error:
        raise ServiceNotReadyError(
            f"not stored in {PUBLISH_BY_HTTP_S:.0f} s; it may still be: look before you repeat it"
        ) from error
    finally:
        if not producer.closed:
            topic.remove_producer(producer)
    if isinstance(found, Refusal):
        raise ServiceNotReadyError(f"the message was refused: {found.message}")
    return {"ledgerId": found.ledger_id, "entryId": found.entry_id}
