"""Received messages and their ids. Unpacks entries; must never do I/O.

The messages of one entry share an `Arrival`, which knows what of the entry is not acknowledged. Fields are read from
the stored bytes when they are asked for: most programs read the payload and little else.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from quire_bookie.errors import PeerProtocolError
from quire_bookie.model import Buffer
from quire_broker.managed_ledger.cursors.ack_set import full_mask, unacked_mask
from quire_broker.wire.entry import EntrySummary, peek
from quire_broker.wire.payload import Single, plain_payload, singles_of
from quire_broker.wire.proto.pulsar_pb2 import MessageIdData, MessageMetadata, SingleMessageMetadata


class MessageId(NamedTuple):
    """The place of a message in its topic. `batch_index` is -1 outside a batch, `partition` -1 of a plain topic."""

    ledger_id: int
    entry_id: int
    batch_index: int = -1
    partition: int = -1

    def to_bytes(self) -> bytes:
        """Return the id in the form that Pulsar's clients use, too."""
        found = MessageIdData(ledgerId=self.ledger_id, entryId=self.entry_id)
        if self.batch_index >= 0:
            found.batch_index = self.batch_index
        if self.partition >= 0:
            found.partition = self.partition
        return found.SerializeToString()

    @classmethod
    def from_bytes(cls, data: bytes) -> "MessageId":
        """Return the id of `to_bytes`. PeerProtocolError for other bytes."""
        try:
            found = MessageIdData.FromString(data)
        except DecodeError as error:
            raise PeerProtocolError(f"{data[:40]!r} is not the id of a message: {error}") from error
        if not found.IsInitialized():
            raise PeerProtocolError(f"{data[:40]!r} is not the id of a message: it names no ledger and entry")
        return cls(found.ledgerId, found.entryId, found.batch_index, found.partition)

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.entry_id}:{self.batch_index}"


class Arrival:
    """One delivery of an entry: its place, its metadata, and which of its messages are not acknowledged."""

    __slots__ = (
        "entry",
        "last_index",
        "partition",
        "place",
        "places",
        "redeliveries",
        "source",
        "summary",
        "topic",
        "unacked",
    )

    def __init__(
        self,
        place: tuple[int, int],
        entry: Buffer,
        summary: EntrySummary,
        *,
        partition: int = -1,
        topic: str = "",
        redeliveries: int = 0,
        source: Any = None,
    ) -> None:
        """`place`: ledger and entry. `source`: the consumer of the topic or partition that received it."""
        self.place = place
        self.places = [place]
        """The entries to acknowledge: of a chunked message those of all its chunks."""
        self.entry = entry
        self.summary = summary
        self.partition = partition
        self.topic = topic
        self.redeliveries = redeliveries
        self.source = source
        self.unacked = 1
        """Bit `i`: message `i` of the batch is not acknowledged."""
        self.last_index = -1
        """Of the last message that is delivered."""


class Message:
    """One received message."""

    __slots__ = ("_single", "arrival", "batch_index", "payload")

    def __init__(self, payload: bytes, batch_index: int, single: Single, arrival: Arrival) -> None:
        self.payload = payload
        self.batch_index = batch_index
        """-1 outside a batch."""
        self._single = single
        self.arrival = arrival
        """The delivery of its entry."""

    @property
    def _own(self) -> SingleMessageMetadata | MessageMetadata:
        if isinstance(self._single, bytes):
            self._single = SingleMessageMetadata.FromString(self._single)
        return self.arrival.summary.metadata if self._single is None else self._single

    @property
    def id(self) -> MessageId:
        """Its place in the topic."""
        ledger_id, entry_id = self.arrival.place
        return MessageId(ledger_id, entry_id, self.batch_index, self.arrival.partition)

    @property
    def topic(self) -> str:
        """The topic, or the partition, that it comes from."""
        return self.arrival.topic

    @property
    def key(self) -> str | None:
        """The key, if it has one."""
        return self._own.partition_key if self._own.HasField("partition_key") else None

    @property
    def ordering_key(self) -> bytes | None:
        """The ordering key, if it has one."""
        return self._own.ordering_key if self._own.HasField("ordering_key") else None

    @property
    def properties(self) -> dict[str, str]:
        """The properties that its producer set."""
        return {each.key: each.value for each in self._own.properties}

    @property
    def event_time_ms(self) -> int | None:
        """The time that its producer set, in ms since the epoch."""
        return self._own.event_time or None

    @property
    def publish_time_ms(self) -> int:
        """The clock of its producer when it was sent, in ms since the epoch."""
        return self.arrival.summary.publish_time_ms

    @property
    def producer_name(self) -> str:
        """The name of its producer."""
        return self.arrival.summary.producer_name

    @property
    def sequence_id(self) -> int:
        """The number that its producer gave it."""
        if self._single is not None and self._own.HasField("sequence_id"):
            return self._own.sequence_id
        return self.arrival.summary.sequence_id + max(0, self.batch_index)

    @property
    def schema_version(self) -> bytes:
        """The version of the schema of its payload, as the broker named it to its producer; empty without one."""
        return self.arrival.summary.metadata.schema_version

    @property
    def ends_entry(self) -> bool:
        """Whether no message of the same batch follows."""
        return self.batch_index == self.arrival.last_index

    @property
    def redeliveries(self) -> int:
        """How often its entry was delivered before."""
        return self.arrival.redeliveries


_PLAIN = SingleMessageMetadata(payload_size=0)
"""Of a message of a batch that has nothing but a payload."""


def messages_of(arrival: Arrival, ack_set: Sequence[int] = ()) -> list[Message]:
    """Unpack the messages of an entry. `ack_set`: of a batch only those whose bits are set; empty: all.

    PeerProtocolError if the entry cannot be unpacked.
    """
    summary, entry = arrival.summary, arrival.entry
    if not summary.is_plain and summary.metadata.encryption_keys:  # only their owner has the key
        return [Message(bytes(memoryview(entry)[summary.payload_offset :]), -1, None, arrival)]
    payload = plain_payload(entry, summary)
    if not summary.is_batch:
        return [Message(payload, -1, None, arrival)]
    singles = singles_of(payload, summary.num_messages)
    left = full_mask(summary.num_messages)
    if ack_set:
        left &= unacked_mask(ack_set)
    for index, (single, _, _) in enumerate(singles):
        if isinstance(single, SingleMessageMetadata) and single.compacted_out:
            left &= ~(1 << index)
    arrival.unacked = left
    arrival.last_index = left.bit_length() - 1
    return [
        Message(payload[body:end], index, _PLAIN if single is None else single, arrival)
        for index, (single, body, end) in enumerate(singles)
        if left >> index & 1
    ]


def arrival_of(
    place: tuple[int, int], entry: Buffer, *, partition: int = -1, topic: str = "", redeliveries: int = 0
) -> Arrival:
    """Return the delivery of an entry that did not come through a consumer. PeerProtocolError."""
    return Arrival(place, entry, peek(entry), partition=partition, topic=topic, redeliveries=redeliveries)
