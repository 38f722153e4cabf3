"""One producer at the owner of a topic or a partition, for a session.

send      the entry waits for its receipt; while the producer is not attached, it waits to be sent
attached  everything that waits is sent again, in order: it may be stored twice, unless the topic deduplicates
too late  after `send_timeout_s` the client gets an error; the message may still be stored
"""

import asyncio
from collections import deque
from collections.abc import Callable

from quire_bookie.dataclass import dataclass
from quire_broker.errors import ServerError
from quire_broker.names import TopicName
from quire_broker.server.broker_link import BrokerLink
from quire_broker.websocket.attachment import Attachment, Links
from quire_broker.websocket.message_ids import MessageId
from quire_broker.websocket.parameters import ProducerParameters
from quire_broker.wire.entry import seal
from quire_broker.wire.hot import encode_send
from quire_broker.wire.kinds import Kind
from quire_broker.wire.proto import pulsar_pb2 as pb

_REPEATED = (ServerError.PERSISTENCE, ServerError.SERVICE_NOT_READY, ServerError.METADATA)
"""Refusals of a send that pass: the entry is sent again."""


@dataclass(slots=True)
class Sent:
    """A message without receipt. `late_s`: the loop time from which it is too late."""

    sequence_id: int
    entry: bytes
    context: str | None
    late_s: float


Done = Callable[[Sent, MessageId | None, str], None]


class TopicProducer(Attachment):
    """Sends entries and matches their receipts."""

    def __init__(self, links: Links, topic: TopicName, wanted: ProducerParameters, done: Done) -> None:
        """`done`: called once for each message, with its id or the reason why it has none."""
        super().__init__(links, topic)
        self._wanted = wanted
        self._done = done
        self._name = wanted.name
        self._sequence_id = 0 if wanted.initial_sequence is None else wanted.initial_sequence + 1
        self._waiting: deque[Sent] = deque()

    async def _open(self, link: BrokerLink) -> None:
        body = pb.CommandProducer(topic=str(self.topic), producer_id=self.number)
        if self._name:
            body.producer_name = self._name
            body.user_provided_producer_name = bool(self._wanted.name)
        made = (await link.ask(pb.BaseCommand(type=Kind.PRODUCER, producer=body), "producer")).producer_success
        if not self._name and self._wanted.initial_sequence is None:
            self._sequence_id = made.last_sequence_id + 1
        elif self._wanted.initial_sequence is None and not self._waiting:
            self._sequence_id = max(self._sequence_id, made.last_sequence_id + 1)
        self._name = made.producer_name
        for one in self._waiting:
            link.connection.write(encode_send(self.number, one.sequence_id, one.entry))

    def publish(self, metadata: pb.MessageMetadata, payload: bytes, context: str | None) -> Sent:
        """Send a message; `metadata` has no producer and no sequence id yet."""
        metadata.producer_name, metadata.sequence_id = self._name, self._sequence_id
        self._sequence_id += 1
        late_s = asyncio.get_running_loop().time() + self._wanted.send_timeout_s
        sent = Sent(metadata.sequence_id, seal(metadata, payload), context, late_s)
        self._waiting.append(sent)
        if self.link is not None:
            self.link.connection.write(encode_send(self.number, sent.sequence_id, sent.entry))
        return sent

    def answered(self, frame: pb.BaseCommand) -> None:
        """Take a receipt or a refusal. Both come in the order of the sends."""
        if frame.type == Kind.SEND_RECEIPT:
            receipt = frame.send_receipt
            found = self._take(receipt.sequence_id)
            if found is not None:
                place = receipt.message_id
                self._done(found, MessageId(place.ledgerId, place.entryId, self.topic.partition), "")
            return
        refused = frame.send_error
        if refused.error in _REPEATED:
            self.detach()
            return
        found = self._take(refused.sequence_id)
        if found is not None:
            self._done(found, None, refused.message)

    def _take(self, sequence_id: int) -> Sent | None:
        """Remove a message from those that wait; None if it was too late."""
        if self._waiting and self._waiting[0].sequence_id == sequence_id:
            return self._waiting.popleft()
        return None

    @property
    def late_s(self) -> float:
        """The loop time from which the oldest message is too late."""
        return self._waiting[0].late_s if self._waiting else float("inf")

    def drop_late(self, now_s: float) -> None:
        """Give the messages up that are too late."""
        while self._waiting and self._waiting[0].late_s <= now_s:
            one = self._waiting.popleft()
            reason = f"not stored in {self._wanted.send_timeout_s:g} s (sendTimeoutMillis); it may still be"
            self._done(one, None, reason)
