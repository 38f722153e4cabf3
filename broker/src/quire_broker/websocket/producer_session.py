"""The session of a producer.

    from the client    {"payload": base64, "properties", "key", "context", "eventTime", "deliverAt", "deliverAfterMs",
                        "replicationClusters"}
    to the client      {"result": "ok", "messageId", "context"}, or {"result": "send-error:N", "errorMsg", "context"}

Answers are in the order in which the brokers store. While `maxPendingMessages` messages, or the bytes of all sessions,
wait for receipts, no text is read. Payloads are compressed as `compressionType` says; batches are not formed.
"""

import asyncio
import base64
from collections.abc import Coroutine, Sequence
from typing import Any, Final

from quire_bookie.env.chance import Chance
from quire_bookie.env.clock import WallClock
from quire_bookie.errors import PeerProtocolError
from quire_broker.compression import Codec, compress
from quire_broker.names import TopicName
from quire_broker.server.budget import PublishBudget
from quire_broker.settings.websocket import WebSocketSettings
from quire_broker.websocket.attachment import Links
from quire_broker.websocket.message_ids import MessageId
from quire_broker.websocket.parameters import ProducerParameters
from quire_broker.websocket.session import Session, object_in
from quire_broker.websocket.stats import SessionStats
from quire_broker.websocket.topic_producer import Sent, TopicProducer
from quire_broker.wire.java_hash import java_hash
from quire_broker.wire.murmur import key_hash
from quire_broker.wire.proto.pulsar_pb2 import MessageMetadata
from quire_broker.wire.times import time_of

NOT_JSON: Final = 3
NOT_ENCODED: Final = 7
UNKNOWN: Final = 8
"""Pulsar's codes of errors."""
_TIME_MAX_MS: Final = 2**62


class ProducerSession(Session):
    """Producers of a topic's partitions, or of the topic."""

    def __init__(
        self,
        settings: WebSocketSettings,
        links: Links,
        topics: Sequence[TopicName],
        wanted: ProducerParameters,
        budget: PublishBudget,
        stats: SessionStats,
        *,
        clock: WallClock,
        chance: Chance,
        message_bytes_max: int,
    ) -> None:
        super().__init__(settings, links, stats)
        self._wanted = wanted
        self._budget = budget
        self._clock = clock
        self._message_bytes_max = message_bytes_max
        self._producers = [TopicProducer(links, topic, wanted, self._done) for topic in topics]
        self._turn = int.from_bytes(chance.token(4))
        """Chooses the partition of messages without key."""
        self._waiting = 0
        self._waiting_bytes = 0
        self._answers: list[dict[str, Any]] = []
        self._changed = asyncio.Event()
        """Set when there are answers, or messages to watch."""
        self._space = asyncio.Event()
        self._closed = False

    @property
    def attachments(self) -> Sequence[TopicProducer]:
        """The producers."""
        return self._producers

    def close(self) -> None:
        """Leave the brokers."""
        self._closed = True
        self._budget.give(self._waiting_bytes)
        self._waiting_bytes = 0
        super().close()

    def _works(self) -> Sequence[Coroutine[Any, Any, None]]:
        return [self._answer()]

    def _done(self, sent: Sent, message_id: MessageId | None, reason: str) -> None:
        """Take the result of a message."""
        if self._closed:
            return
        self._waiting -= 1
        self._waiting_bytes -= len(sent.entry)
        self._budget.give(len(sent.entry))
        self._space.set()
        if message_id is None:
            self._refuse(UNKNOWN, reason, sent.context)
        else:
            self._stats.published += 1
            self._stats.published_bytes += len(sent.entry)
            found: dict[str, Any] = {"result": "ok", "messageId": message_id.text()}
            self._add(found, sent.context)

    def _refuse(self, code: int, reason: str, context: str | None) -> None:
        self._stats.publish_failures += 1
        self._add({"result": f"send-error:{code}", "errorMsg": reason}, context)

    def _add(self, answer: dict[str, Any], context: str | None) -> None:
        if context is not None:
            answer["context"] = context
        self._answers.append(answer)
        self._changed.set()

    async def _answer(self) -> None:
        """Send the answers; give messages up that are too late."""
        loop = asyncio.get_running_loop()
        while True:
            answers, self._answers = self._answers, []
            for answer in answers:
                await self._send(answer)
            if self._answers:
                continue
            self._space.set()
            late_s = min(producer.late_s for producer in self._producers)
            try:
                async with asyncio.timeout_at(late_s if late_s < float("inf") else None):
                    await self._changed.wait()
            except TimeoutError:
                for producer in self._producers:
                    producer.drop_late(loop.time())
            self._changed.clear()

    async def _received(self, text: str) -> None:
        while self._is_full:
            self._space.clear()
            if self._budget.exhausted:
                self._budget.wait(self._space.set)
            await self._space.wait()
        context: str | None = None
        try:
            request = object_in(text)
            given = request.get("context")
            context = None if given is None else str(given)
            payload, metadata = _payload(request), self._metadata(request)
        except PeerProtocolError as error:
            self._refuse(NOT_JSON, str(error), context)
            return
        except ValueError as error:
            self._refuse(NOT_ENCODED, str(error), context)
            return
        if len(payload) > self._message_bytes_max:
            self._refuse(UNKNOWN, f"a payload of {len(payload)} bytes; the limit is {self._message_bytes_max}", context)
            return
        if self._wanted.codec is not Codec.NONE:
            metadata.compression, metadata.uncompressed_size = int(self._wanted.codec), len(payload)
            payload = compress(payload, self._wanted.codec)
        sent = self._producer_of(request.get("key")).publish(metadata, payload, context)
        self._waiting += 1
        self._waiting_bytes += len(sent.entry)
        self._budget.take(len(sent.entry))
        self._changed.set()

    @property
    def _is_full(self) -> bool:
        if self._waiting + len(self._answers) >= self._wanted.pending_max:
            return True
        return self._budget.exhausted and self._waiting > 0

    def _producer_of(self, key: object) -> TopicProducer:
        count = len(self._producers)
        if isinstance(key, str) and count > 1:
            number = key_hash(key.encode()) if self._wanted.murmur else java_hash(key)
            return self._producers[number % count]
        if self._wanted.round_robin:
            self._turn += 1
        return self._producers[self._turn % count]

    def _metadata(self, request: dict[str, Any]) -> MessageMetadata:
        """Return the metadata of a message. ValueError."""
        now_ms = self._clock.now_ms()
        metadata = MessageMetadata(publish_time=now_ms)
        if (key := request.get("key")) is not None:
            metadata.partition_key = _text("key", key)
        properties = request.get("properties") or {}
        if not isinstance(properties, dict):
            raise ValueError("properties must be an object of texts")
        for name, value in properties.items():
            metadata.properties.add(key=_text("a property", name), value=_text(f"the property {name[:40]}", value))
        if (event_time := request.get("eventTime")) is not None:
            metadata.event_time = max(0, _time("eventTime", event_time))
        if (at_ms := _milliseconds(request, "deliverAt")) > 0:
            metadata.deliver_at_time = at_ms
        if (after_ms := _milliseconds(request, "deliverAfterMs")) > 0:
            metadata.deliver_at_time = now_ms + after_ms
        clusters = request.get("replicationClusters") or []
        if not isinstance(clusters, list):
            raise ValueError("replicationClusters must be an array of texts")
        metadata.replicate_to.extend(_text("a replication cluster", each) for each in clusters)
        return metadata


def _payload(request: dict[str, Any]) -> bytes:
    """Return the payload. ValueError."""
    text = request.get("payload")
    if not isinstance(text, str):
        raise ValueError("payload must be a text in base64")
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise ValueError(f"Invalid Base64 message-payload error={error}") from error


def _text(what: str, value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{what} must be a text")
    value.encode()  # UnicodeEncodeError, a ValueError: half of a surrogate pair is no text of the protocol
    return value


def _time(name: str, value: object) -> int:
    """Return the milliseconds of a time. ValueError."""
    try:
        return time_of(_text(name, value))
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{name} is {str(value)[:40]!r}: {error}; give e.g. 2026-11-27T14:00:00.123Z") from error


def _milliseconds(request: dict[str, Any], name: str) -> int:
    value = request.get(name)
    if value is None:
        return 0
    if type(value) is not int or abs(value) > _TIME_MAX_MS:
        shown = str(value)[:40]
        raise ValueError(f"{name} is {shown!r}: it must be an integer of milliseconds, at most {_TIME_MAX_MS}")
    return value
