"""The session of a consumer or a reader.

    to the client      {"messageId", "payload": base64, "properties", "publishTime", "redeliveryCount",
                        "eventTime", "key"}
    from a consumer    {"messageId"}                                  acknowledges
                       {"type": "negativeAcknowledge", "messageId"}   delivers again later
                       {"type": "permit", "permitMessages": n}        with pullMode=true: asks for n more
                       {"type": "isEndOfTopic"}                       is answered {"endOfTopic": bool}
                       {"type": "unsubscribe"}                        deletes the subscription, ends the session
    from a reader      {"type": "isEndOfTopic"}; every other object: permits one more

With maxRedeliverCount the client does not get messages of further redeliveries: see `dead_letters`.
Without pullMode the client holds at most `receiverQueueSize` messages that it has not acknowledged.
"""

import asyncio
import base64
from collections import OrderedDict
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final

from quire_bookie.errors import PeerProtocolError
from quire_broker.errors import BrokerError
from quire_broker.limits import WEBSOCKET_LEDGERS_MAX
from quire_broker.names import TopicName
from quire_broker.server.budget import PublishBudget
from quire_broker.settings.websocket import WebSocketSettings
from quire_broker.websocket.attachment import Attachment, Links
from quire_broker.websocket.chunks import Chunks
from quire_broker.websocket.dead_letters import DeadLetters
from quire_broker.websocket.inbox import Arrived, Inbox, Incoming
from quire_broker.websocket.message_ids import MessageId, message_id_of
from quire_broker.websocket.parameters import ConsumerParameters
from quire_broker.websocket.session import FAILED, NORMAL, EndedError, Session, object_in
from quire_broker.websocket.stats import SessionStats
from quire_broker.websocket.topic_consumer import TopicConsumer
from quire_broker.websocket.unacknowledged import Entry, Unacknowledged
from quire_broker.wire.times import time_text

PERMITS_MAX: Final = 2**31 - 1


class ConsumerSession(Session):
    """Consumers of one subscription to all given topics, or their readers."""

    def __init__(
        self,
        settings: WebSocketSettings,
        links: Links,
        topics: Sequence[TopicName],
        subscription: str,
        wanted: ConsumerParameters,
        budget: PublishBudget,
        stats: SessionStats,
        dead_letters: DeadLetters | None = None,
    ) -> None:
        super().__init__(settings, links, stats)
        self._wanted = wanted
        self._dead_letters = dead_letters
        self._inbox = Inbox(budget, links.hold, links.release, self._overflowed)
        self._chunks = Chunks(budget)
        self._unacked = Unacknowledged(wanted.ack_timeout_s, wanted.nack_delay_s)
        self._asked = 0
        """Messages that a pulling client, or a reader, may still get."""
        if wanted.start is not None:
            self._asked = wanted.unacked_max
        self._wake = asyncio.Event()
        self._due_changed = asyncio.Event()
        self._ledgers: OrderedDict[int, TopicConsumer] = OrderedDict()
        """The consumers by the ledgers whose messages they delivered."""
        self._subscription = subscription
        self._consumers = [self._new_consumer(topic, creates=True, creates_again=True) for topic in topics]

    @property
    def attachments(self) -> Sequence[Attachment]:
        """The consumers."""
        return self._consumers

    def _new_consumer(self, topic: TopicName, *, creates: bool, creates_again: bool) -> TopicConsumer:
        """Return a consumer that is not attached."""
        return TopicConsumer(
            self._links,
            topic,
            self._subscription,
            self._wanted,
            self._permit,
            self._arrived,
            self._detached,
            self._failed,
            (creates, creates_again),
        )

    def close(self) -> None:
        """Leave the brokers."""
        self._inbox.close()
        self._chunks.close()
        super().close()

    def _works(self) -> Sequence[Coroutine[Any, Any, None]]:
        works = [self._deliver()] if self._reads else [self._deliver(), self._redeliver()]
        return works if self._dead_letters is None else [*works, self._dead_letters.keep()]

    @property
    def _reads(self) -> bool:
        return self._wanted.start is not None

    # permits

    @property
    def _window(self) -> int:
        """The number of messages that the client may still take."""
        if self._wanted.pulls or self._reads:
            return self._asked
        return max(0, self._wanted.unacked_max - self._unacked.held)

    def _permit(self) -> None:
        """Let the brokers send what the client may take."""
        window = self._window
        self._inbox.is_flowing = window > 0
        if window > 0:
            share = max(1, min(window, self._wanted.unacked_max) // max(1, len(self._consumers)))
            for consumer in self._consumers:
                consumer.permit(share)
            self._wake.set()

    # called by the consumers

    def _arrived(self, consumer: TopicConsumer, arrived: Arrived) -> None:
        if arrived.chunk is not None:
            try:
                whole = self._chunks.add(arrived, arrived.chunk)
            except PeerProtocolError as error:
                self._failed(error)
                return
            if whole is not None:
                arrived, entries = whole
                if not consumer.joined(arrived.messages[0].message_id, entries):
                    arrived.messages.clear()
        for one in arrived.messages[:1]:
            self._ledgers[one.message_id.ledger_id] = consumer
            self._ledgers.move_to_end(one.message_id.ledger_id)
            if arrived.mask and not self._reads:
                self._unacked.received(one.message_id.entry, arrived.mask)
        if len(self._ledgers) > WEBSOCKET_LEDGERS_MAX:
            self._ledgers.popitem(last=False)
        self._inbox.put(arrived)
        self._wake.set()
        if not arrived.messages:
            self._permit()

    def _detached(self, consumer: TopicConsumer) -> None:
        """Drop what the broker delivers again."""
        begun = (self._chunks.oldest(consumer), self._inbox.oldest(consumer))
        consumer.begun = min((first for first in begun if first is not None), default=consumer.begun)
        self._inbox.drop(consumer)
        self._chunks.drop(consumer)
        self._unacked.forget({ledger for ledger, one in self._ledgers.items() if one is consumer})
        self._wake.set()

    def _failed(self, error: PeerProtocolError) -> None:
        self.end(FAILED, str(error))

    def _overflowed(self) -> None:
        self.end(FAILED, "the clients of all WebSocket sessions read too slowly")

    # works

    async def _deliver(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            while not self._inbox or self._window <= 0:
                if self._window <= 0:
                    self._inbox.stop()
                else:
                    self._permit()  # consumers may have attached again
                self._wake.clear()
                await self._wake.wait()
            incoming = self._inbox.take()
            if self._dead_letters is not None and self._dead_letters.takes(incoming):
                incoming.consumer.delivered(incoming.message_id)
                await self._dead_letters.publish(incoming)
                self._stats.dead_letters += 1
                self._settle(incoming.message_id, refused=False)
                self._permit()
                continue
            if self._wanted.pulls or self._reads:
                self._asked -= 1
            if not self._reads and (not self._wanted.pulls or self._wanted.ack_timeout_s):
                self._unacked.delivered(incoming.message_id, loop.time())
                if self._wanted.ack_timeout_s:
                    self._due_changed.set()
            incoming.consumer.delivered(incoming.message_id)
            self._permit()
            await self._send(shown(incoming))
            self._stats.delivered += 1
            self._stats.delivered_bytes += len(incoming.message.payload)

    async def _redeliver(self) -> None:
        """Let brokers deliver messages again that were not acknowledged in time."""
        loop = asyncio.get_running_loop()
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(self._unacked.next_s()):
                    await self._due_changed.wait()
            self._due_changed.clear()
            by_consumer: dict[TopicConsumer, list[Entry]] = {}
            for entry in self._unacked.due(loop.time()):
                if (consumer := self._ledgers.get(entry[0])) is not None:
                    by_consumer.setdefault(consumer, []).append(entry)
            for consumer, entries in by_consumer.items():
                consumer.redeliver(entries)
            if by_consumer:
                self._permit()

    async def _received(self, text: str) -> None:
        command = object_in(text)
        kind = command.get("type")
        if kind == "isEndOfTopic":
            at_end = bool(self._consumers) and all(consumer.at_end for consumer in self._consumers)
            await self._send({"endOfTopic": at_end})
        elif self._reads:
            self._asked = min(self._asked + 1, self._wanted.unacked_max)
        elif kind == "permit":
            self._permitted(command.get("permitMessages"))
        elif kind == "unsubscribe":
            await self._unsubscribe()
        else:
            refused = kind == "negativeAcknowledge"
            self._settle(message_id_of(command.get("messageId")), refused=refused)
            self._stats.acknowledged += not refused
        self._permit()

    def _permitted(self, count: object) -> None:
        if type(count) is not int or not 0 <= count <= PERMITS_MAX:
            raise PeerProtocolError(f"permitMessages must be a number from 0 to {PERMITS_MAX}")
        if self._wanted.pulls:
            self._asked = min(self._asked + count, PERMITS_MAX)

    def _settle(self, message_id: MessageId, *, refused: bool) -> None:
        """Acknowledge a message, or let it be delivered again later."""
        consumer = self._consumer_of(message_id)
        if refused:
            self._ledgers.setdefault(message_id.ledger_id, consumer)
            self._unacked.refused(message_id, asyncio.get_running_loop().time())
            self._due_changed.set()
        else:
            consumer.acknowledge(message_id, self._unacked.acknowledged(message_id))

    def _consumer_of(self, message_id: MessageId) -> TopicConsumer:
        found = self._ledgers.get(message_id.ledger_id)
        if found is not None:
            return found
        same = [one for one in self._consumers if one.partition == message_id.partition]
        if len(same) != 1:
            raise PeerProtocolError("messageId names no message that this session has delivered")
        return same[0]

    async def _unsubscribe(self) -> None:
        for consumer in list(self._consumers):
            try:
                await consumer.unsubscribe()
            except BrokerError as error:
                raise EndedError(FAILED, f"not unsubscribed: {error}") from error
        raise EndedError(NORMAL, "unsubscribed")


def shown(incoming: Incoming) -> dict[str, Any]:
    """Return a message as clients get it."""
    message = incoming.message
    found: dict[str, Any] = {
        "messageId": incoming.message_id.text(),
        "payload": base64.b64encode(message.payload).decode(),
        "properties": message.properties,
        "publishTime": time_text(message.publish_time_ms),
        "redeliveryCount": incoming.redeliveries,
    }
    if message.event_time_ms is not None:
        found["eventTime"] = time_text(message.event_time_ms)
    if message.key is not None:
        found["key"] = message.key
    return found
