"""Entries that brokers have sent to one session, until its client takes their messages.

Bounds: above `WEBSOCKET_INBOX_BYTES`, or while all sessions together exceed their budget, a session whose client is
slow reads no broker. A session that waits for its client's permits reads on, or brokers would treat it as stalled:
they send it no more than one entry beyond its permits. A session that makes the total exceed twice the budget is ended.
"""

from collections import deque
from collections.abc import Callable
from typing import Protocol

from quire_bookie.dataclass import dataclass
from quire_broker.dispatch.permits import entry_cost
from quire_broker.limits import WEBSOCKET_BUFFER_BYTES, WEBSOCKET_INBOX_BYTES
from quire_broker.managed_ledger.cursors.ack_set import full_mask, unacked_mask
from quire_broker.names import TopicName
from quire_broker.server.budget import PublishBudget
from quire_broker.websocket.message_ids import MessageId
from quire_broker.wire.entry import EntrySummary, peek
from quire_broker.wire.frames import MessageFrame
from quire_broker.wire.payload import Message, messages_of


class Receiver(Protocol):
    """The consumer of a message, as the inbox and its readers know it."""

    topic: TopicName

    @property
    def partition(self) -> int:
        """The index of its partition, or -1."""
        ...

    def delivered(self, message_id: MessageId) -> None:
        """Note that the client gets a message."""
        ...


@dataclass(frozen=True, slots=True)
class Incoming:
    """A message for the client."""

    consumer: Receiver
    message_id: MessageId
    message: Message
    redeliveries: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a message: number `index` of `count`, which have `total_bytes` together."""

    uuid: str
    index: int
    count: int
    total_bytes: int
    payload: bytes
    message_id: MessageId
    summary: EntrySummary
    redeliveries: int


@dataclass(frozen=True, slots=True)
class Arrived:
    """An entry that a broker has sent: `messages` are delivered; it cost `permits`."""

    consumer: Receiver
    size_bytes: int
    permits: int
    mask: int
    """The unacknowledged messages of a batch; 0 if it is none."""
    messages: list[Incoming]
    chunk: Chunk | None = None
    """Instead of messages."""


def arrived_of(consumer: Receiver, frame: MessageFrame) -> Arrived:
    """Unpack an entry. PeerProtocolError if it cannot be unpacked."""
    head = frame.command.message
    place = head.message_id
    summary = peek(frame.entry)
    words = list(head.ack_set)
    mask = (unacked_mask(words) if words else -1) & full_mask(summary.num_messages) if summary.is_batch else 0
    permits = entry_cost(summary.num_messages, words or None)
    if summary.num_chunks > 1:
        metadata = summary.metadata
        chunk = Chunk(
            metadata.uuid,
            summary.chunk_id,
            summary.num_chunks,
            max(metadata.total_chunk_msg_size, metadata.uncompressed_size),
            bytes(memoryview(frame.entry)[summary.payload_offset :]),
            MessageId(place.ledgerId, place.entryId, consumer.partition),
            summary,
            head.redelivery_count,
        )
        return Arrived(consumer, len(frame.entry), permits, 0, [], chunk)
    found = []
    size = summary.num_messages if summary.is_batch else 0
    for message in messages_of(frame.entry, summary):
        if message.batch_index >= 0 and not mask >> message.batch_index & 1:
            continue
        ids = MessageId(place.ledgerId, place.entryId, consumer.partition, message.batch_index, size)
        found.append(Incoming(consumer, ids, message, head.redelivery_count))
    return Arrived(consumer, len(frame.entry), permits, mask, found)


class Inbox:
    """Owns the waiting messages of one session. `hold` and `release` stop and resume the reading of brokers."""

    def __init__(
        self,
        budget: PublishBudget,
        hold: Callable[[], None],
        release: Callable[[], None],
        overflow: Callable[[], None],
    ) -> None:
        self._budget = budget
        self._hold, self._release = hold, release
        self._overflow = overflow
        self._waiting: deque[tuple[Incoming, int]] = deque()
        """Each with the bytes of its entry, if it is the last message of it."""
        self._bytes = 0
        self.is_flowing = True
        """Whether the client may take more."""
        self._held = False
        self._closed = False

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, arrived: Arrived) -> None:
        """Add the messages of an entry."""
        if not arrived.messages or self._closed:
            return
        for one in arrived.messages:
            self._waiting.append((one, arrived.size_bytes if one is arrived.messages[-1] else 0))
        self._bytes += arrived.size_bytes
        self._budget.take(arrived.size_bytes)
        if self._budget.used_bytes > 2 * WEBSOCKET_BUFFER_BYTES:
            self._overflow()
        if not self._held and self.is_flowing and (self._bytes > WEBSOCKET_INBOX_BYTES or self._budget.exhausted):
            self._held = True
            self._hold()

    def take(self) -> Incoming:
        """Return the next message. The caller knows that there is one."""
        message, size_bytes = self._waiting.popleft()
        self._free(size_bytes)
        return message

    def stop(self) -> None:
        """Note that the client has no permits left."""
        self.is_flowing = False
        self._settle()

    def oldest(self, consumer: Receiver) -> tuple[int, int] | None:
        """Return the first chunk of the chunked messages of a consumer that wait, if there are some."""
        waiting = (one.message_id.first for one, _ in self._waiting if one.consumer is consumer)
        return min((first for first in waiting if first is not None), default=None)

    def drop(self, consumer: Receiver) -> None:
        """Drop the messages of a consumer that the broker delivers again."""
        kept = deque(one for one in self._waiting if one[0].consumer is not consumer)
        freed = sum(size for one, size in self._waiting if one.consumer is consumer)
        self._waiting = kept
        self._free(freed)

    def close(self) -> None:
        """Drop everything."""
        self._closed = True
        self._waiting.clear()
        self._budget.give(self._bytes)
        self._bytes = 0

    def _free(self, size_bytes: int) -> None:
        self._bytes -= size_bytes
        self._budget.give(size_bytes)
        self._settle()

    def _settle(self) -> None:
        """Read brokers again if there is space."""
        if not self._held or self._closed:
            return
        if self.is_flowing and (self._bytes > WEBSOCKET_INBOX_BYTES // 2 or (self._budget.exhausted and self._waiting)):
            return  # its next message frees bytes
        self._held = False
        self._release()
