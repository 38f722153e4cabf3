"""Builds the entry of one SEND from messages. Pure: has no clock and no socket."""

import struct
from collections.abc import Callable, Mapping
from functools import lru_cache

from quire_bookie.dataclass import dataclass
from quire_bookie.model import Buffer
from quire_broker.compression import Codec, compress
from quire_broker.wire.entry import entry_head
from quire_broker.wire.hot import send_head
from quire_broker.wire.proto.pulsar_pb2 import MessageMetadata, SingleMessageMetadata
from quire_client.errors import BrokerRefusedError
from quire_client.message import MessageId

OnDone = Callable[[MessageId | BrokerRefusedError], None]
_U32 = struct.Struct(">I")
_MESSAGE_BYTES = 64
"""What a message takes in memory beside its payload and its metadata."""


@dataclass(frozen=True, slots=True)
class Extra:
    """What a message has beside its payload."""

    key: str | None = None
    properties: Mapping[str, str] | None = None
    event_time_ms: int | None = None
    ordering_key: bytes | None = None
    deliver_at_ms: int | None = None
    sequence_id: int | None = None
    """None: the one after that of the message before."""

    @property
    def size_bytes(self) -> int:
        """About the bytes that it takes."""
        texts = [self.key or "", self.ordering_key or b""]
        for name, value in (self.properties or {}).items():
            texts += [name, value]
        return 20 + sum(map(len, texts))

    def write_to(self, metadata: MessageMetadata | SingleMessageMetadata) -> None:
        """Set the fields that both kinds of metadata have."""
        if self.key is not None:
            metadata.partition_key = self.key
        if self.ordering_key is not None:
            metadata.ordering_key = self.ordering_key
        if self.event_time_ms is not None:
            metadata.event_time = self.event_time_ms
        for name, value in (self.properties or {}).items():
            metadata.properties.add(key=name, value=value)

    def head(self, size_bytes: int) -> bytes:
        """Return what precedes a payload of this size in a batch. ValueError or TypeError."""
        single = SingleMessageMetadata(payload_size=size_bytes)
        self.write_to(single)
        if self.sequence_id is not None:
            single.sequence_id = self.sequence_id
        if self.deliver_at_ms is not None:
            MessageMetadata(deliver_at_time=self.deliver_at_ms)  # refused here, not when the entry is built
        encoded = single.SerializeToString()
        return _U32.pack(len(encoded)) + encoded


PLAIN = Extra()


@lru_cache(1024)
def _plain_head(size_bytes: int) -> bytes:
    """Return what precedes the payload of a message without metadata in a batch."""
    return PLAIN.head(size_bytes)


class Batch:
    """The messages of one entry, in order."""

    __slots__ = ("callbacks", "count", "extra", "first", "highest", "parts", "size_bytes")

    def __init__(self, extra: Extra) -> None:
        """`extra`: that of the first message."""
        self.extra = extra
        self.first = self.highest = -1
        self.count = 0
        self.parts: list[Buffer] = []
        self.size_bytes = 0
        """About the bytes of payloads and metadata, and what holds them."""
        self.callbacks: list[tuple[int, OnDone]] = []
        """By the index of their message."""

    def add(self, payload: bytes, sequence_id: int, extra: Extra, on_done: OnDone | None) -> int:
        """Add a message, whose sequence id is above that of the one before. Return `size_bytes`.

        ValueError or TypeError, without a change, for what has no form in the metadata.
        """
        count = self.count
        size = len(payload)
        head = _plain_head(size) if extra is PLAIN else extra.head(size)
        if not count:
            self.first = sequence_id
        self.parts += (head, payload)
        if on_done is not None:
            self.callbacks.append((count, on_done))
        self.highest = sequence_id
        self.count = count + 1
        self.size_bytes = total = self.size_bytes + size + len(head) + _MESSAGE_BYTES
        return total

    def takes(self, extra: Extra, *, one_key: bool) -> bool:
        """Return whether a message may follow: a delayed one, and with `one_key` one of another key, may not."""
        if extra.deliver_at_ms is not None or self.extra.deliver_at_ms is not None:
            return False
        return not one_key or (extra.key == self.extra.key and extra.ordering_key == self.extra.ordering_key)

    def entry(
        self, producer_name: str, publish_time_ms: int, codec: Codec, schema_version: bytes
    ) -> tuple[bytes, bytes]:
        """Return what precedes the payload in the entry, and the payload."""
        metadata = MessageMetadata(producer_name=producer_name, sequence_id=self.first, publish_time=publish_time_ms)
        if schema_version:
            metadata.schema_version = schema_version
        if self.count == 1:
            payload = bytes(self.parts[1])
            self.extra.write_to(metadata)
            if self.extra.deliver_at_ms is not None:
                metadata.deliver_at_time = self.extra.deliver_at_ms
        else:
            payload = b"".join(self.parts)
            metadata.num_messages_in_batch = self.count
            metadata.highest_sequence_id = self.highest
            if self.extra.key is not None:
                metadata.partition_key = self.extra.key  # Key_Shared reads no further
            if self.extra.ordering_key is not None:
                metadata.ordering_key = self.extra.ordering_key
        if codec is not Codec.NONE:
            metadata.compression, metadata.uncompressed_size = codec, len(payload)
            payload = compress(payload, codec)
        return entry_head(metadata, payload), payload


class Sent:
    """A built entry without a receipt. Its bytes stay the same whenever it is sent again."""

    __slots__ = ("callbacks", "count", "expires_at_s", "head", "highest", "payload", "sequence_id", "size_bytes")

    def __init__(self, batch: Batch, head: bytes, payload: bytes, expires_at_s: float) -> None:
        self.sequence_id = batch.first
        self.highest = batch.highest
        self.count = batch.count
        self.callbacks = batch.callbacks
        self.size_bytes = batch.size_bytes
        self.head = head
        self.payload = payload
        self.expires_at_s = expires_at_s

    @property
    def entry_bytes(self) -> int:
        """The size of the entry."""
        return len(self.head) + len(self.payload)

    def frame(self, producer_id: int) -> tuple[bytes, bytes]:
        """Return the frame of its SEND in two parts."""
        highest = self.highest if self.count > 1 else None
        return send_head(producer_id, self.sequence_id, self.entry_bytes, self.count, highest) + self.head, self.payload

    def done(self, ledger_id: int, entry_id: int, partition: int) -> None:
        """Pass the ids to the callbacks of the messages."""
        for index, call in self.callbacks:
            call(MessageId(ledger_id, entry_id, index if self.count > 1 else -1, partition))

    def fail(self, error: BrokerRefusedError) -> bool:
        """Pass an error to the callbacks; return whether every message has one."""
        for _, call in self.callbacks:
            call(error)
        return len(self.callbacks) == self.count
