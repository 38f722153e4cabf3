"""Producers and consumers of one connection, for tests that look at single entries, frames and losses of connections.

They never reconnect, and repeat nothing: what `quire_client` does itself is here the business of the test.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from quire_bookie.errors import PeerProtocolError, QuireError
from quire_bookie.model import Buffer
from quire_broker.errors import ServerError
from quire_broker.managed_ledger.cursors.ack_set import unacked_mask
from quire_broker.wire.entry import peek, seal
from quire_broker.wire.frames import MessageFrame, encode
from quire_broker.wire.hot import encode_send
from quire_broker.wire.kinds import InitialPosition, Kind, SubscriptionType
from quire_broker.wire.payload import Message, batch_of, messages_of
from quire_broker.wire.proto import pulsar_pb2 as pb
from quire_client.connection import Connection
from quire_client.errors import BrokerRefusedError, ConnectionLostError

WINDOW_ENTRIES = 1000
WINDOW_BYTES = 16 * 1024 * 1024
_AFTER_ALL = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Received:
    """A message with its position. `ends_entry`: no message of the same batch follows."""

    ledger_id: int
    entry_id: int
    partition: int
    message: Message
    ends_entry: bool


def received_of(ledger_id: int, entry_id: int, partition: int, entry: Buffer, ack_set: Sequence[int]) -> list[Received]:
    """Unpack the messages of an entry. `ack_set`: of a batch only those whose bits are set; empty: all.

    PeerProtocolError if the entry cannot be unpacked.
    """
    left = unacked_mask(ack_set) if ack_set else -1
    messages = [each for each in messages_of(entry) if each.batch_index < 0 or left >> each.batch_index & 1]
    return [Received(ledger_id, entry_id, partition, each, each is messages[-1]) for each in messages]


class Producer:
    """Sends to one topic, with at most `WINDOW_ENTRIES` of together `WINDOW_BYTES` unanswered."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._id = connection.next_id()
        self._name = ""
        self._sequence = 0
        self._pending: deque[tuple[int, int]] = deque()
        self._pending_bytes = 0
        self._window_open = asyncio.Event()
        self._error: QuireError | None = None
        self.on_receipt: Callable[[], None] | None = None
        """Called for each stored entry, in the order of the sends."""
        connection.on_frame[(Kind.SEND_RECEIPT, self._id)] = self._on_receipt
        connection.on_frame[(Kind.SEND_ERROR, self._id)] = self._on_error
        connection.on_frame[(Kind.CLOSE_PRODUCER, self._id)] = lambda _: connection.fail(
            ConnectionLostError("the broker closed the producer")
        )
        connection.on_lost[self._id] = self._stop

    async def open(self, topic: str) -> None:
        """Register with the broker."""
        body = pb.CommandProducer(topic=topic, producer_id=self._id)
        reply = await self._connection.ask(Kind.PRODUCER, "producer", body)
        self._name, self._sequence = reply.producer_name, reply.last_sequence_id + 1

    async def send(
        self, payloads: Sequence[bytes], *, key: str | None, properties: dict[str, str], now_ms: int
    ) -> None:
        """Send messages as one entry, a batch if they are several; waits while the window is full, not for a receipt.

        Key and properties are those of each message.
        """
        while self._is_full and self._error is None:
            self._window_open.clear()
            await self._window_open.wait()
        if self._error is not None:
            raise self._error
        metadata = pb.MessageMetadata(producer_name=self._name, sequence_id=self._sequence, publish_time=now_ms)
        if key is not None:
            metadata.partition_key = key  # of a batch, too: Key_Shared reads no further
        if len(payloads) == 1:
            for name, value in properties.items():
                metadata.properties.add(key=name, value=value)
            entry = seal(metadata, payloads[0])
        else:
            metadata.num_messages_in_batch = len(payloads)
            metadata.highest_sequence_id = self._sequence + len(payloads) - 1
            entry = seal(metadata, batch_of(payloads, key=key, properties=properties))
        self._pending.append((self._sequence, len(entry)))
        self._pending_bytes += len(entry)
        self._connection.write(encode_send(self._id, self._sequence, entry, len(payloads)))
        self._sequence += len(payloads)

    @property
    def _is_full(self) -> bool:
        return len(self._pending) >= WINDOW_ENTRIES or self._pending_bytes >= WINDOW_BYTES

    async def flush(self) -> None:
        """Wait until every send has its receipt; raise an error of the broker."""
        while self._pending and self._error is None:
            self._window_open.clear()
            await self._window_open.wait()
        if self._error is not None:
            raise self._error

    def _on_receipt(self, receipt: pb.CommandSendReceipt) -> None:
        if self._pending and self._pending[0][0] == receipt.sequence_id:
            self._pending_bytes -= self._pending.popleft()[1]
            if self.on_receipt is not None:
                self.on_receipt()
        self._window_open.set()

    def _on_error(self, error: pb.CommandSendError) -> None:
        self._stop(BrokerRefusedError(f"{ServerError(error.error).name}: {error.message}"))

    def _stop(self, error: QuireError) -> None:
        self._error = self._error or error
        self._window_open.set()


class Consumer:
    """Reads one topic by a durable subscription, or by a temporary one."""

    PERMITS = 1000

    def __init__(self, connection: Connection, partition: int, queue: "asyncio.Queue[Any]") -> None:
        self._connection = connection
        self._id = connection.next_id()
        self._partition = partition
        self._queue = queue
        self._used = 0
        self._durable = False
        connection.on_frame[(Kind.MESSAGE, self._id)] = self._on_message
        connection.on_frame[(Kind.CLOSE_CONSUMER, self._id)] = lambda _: connection.fail(
            ConnectionLostError("the broker closed the consumer")
        )
        connection.on_lost[self._id] = queue.put_nowait

    async def open(
        self, topic: str, subscription: str | None, *, earliest: bool = False, after: tuple[int, int] | None = None
    ) -> None:
        """Subscribe to a topic that exists, and ask for messages. `after`: a reader begins after this entry."""
        self._durable = subscription is not None
        body = pb.CommandSubscribe(
            topic=topic,
            subscription=subscription or f"reader-quire-cli-{self._id}",
            subType=SubscriptionType.SHARED if self._durable else SubscriptionType.EXCLUSIVE,
            consumer_id=self._id,
            durable=self._durable,
            initialPosition=InitialPosition.EARLIEST if earliest else InitialPosition.LATEST,
            force_topic_creation=False,
        )
        if not self._durable:
            edge = -1 if earliest else _AFTER_ALL
            ledger_id, entry_id = (edge, edge) if after is None else after
            body.start_message_id.ledgerId, body.start_message_id.entryId = ledger_id, entry_id
        await self._connection.ask(Kind.SUBSCRIBE, "subscribe", body)
        self._flow(self.PERMITS)

    async def last_position(self) -> tuple[int, int]:
        """Return (ledger, entry) of the topic's last message; (-1, -1) if it is empty."""
        body = pb.CommandGetLastMessageId(consumer_id=self._id)
        reply = await self._connection.ask(Kind.GET_LAST_MESSAGE_ID, "get_last_message_id", body)
        last = reply.last_message_id
        return last.ledgerId, last.entryId

    def acknowledge(self, received: Received) -> None:
        """Acknowledge the entry of a message, if it is the last one of it; does nothing without a subscription."""
        if self._durable and received.ends_entry:
            body = pb.CommandAck(consumer_id=self._id, ack_type=0)
            body.message_id.add(ledgerId=received.ledger_id, entryId=received.entry_id)
            self._connection.write(encode(pb.BaseCommand(type=Kind.ACK, ack=body)))

    def _on_message(self, frame: MessageFrame) -> None:
        position = frame.command.message.message_id
        try:
            ids = (position.ledgerId, position.entryId, self._partition)
            found = received_of(*ids, frame.entry, frame.command.message.ack_set)
        except PeerProtocolError as error:
            self._queue.put_nowait(error)
            return
        for one in found:
            self._queue.put_nowait(one)
        self._used += peek(frame.entry).num_messages
        if self._used >= self.PERMITS // 2:
            self._flow(self._used)
            self._used = 0

    def _flow(self, permits: int) -> None:
        body = pb.CommandFlow(consumer_id=self._id, messagePermits=permits)
        self._connection.write(encode(pb.BaseCommand(type=Kind.FLOW, flow=body)))
