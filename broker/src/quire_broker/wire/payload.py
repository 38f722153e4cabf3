"""Packs and unpacks the messages of an entry: decompresses it, splits batches. For clients and for compaction.

    batch payload = { singleMetadataSize(4) SingleMessageMetadata payload(payload_size) } ...

Source: spec pulsar-wire, section 4. Encrypted payloads stay encrypted: only their owner has the key.
"""

import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from google.protobuf.message import DecodeError

from quire_bookie.dataclass import dataclass
from quire_bookie.errors import PeerProtocolError
from quire_bookie.model import Buffer
from quire_broker.compression import CompressionError, decompress
from quire_broker.wire.entry import EntrySummary, peek
from quire_broker.wire.proto.pulsar_pb2 import MessageMetadata, SingleMessageMetadata
from quire_broker.wire.varint import varint

_U32 = struct.Struct(">I")
_SIZE_TAG = b"\x18"
_SEQUENCE_ID = re.compile(rb"\x40[\x80-\xff]{0,9}[\x00-\x7f]")
"""The sequence id in the metadata of a message of a batch."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message. `batch_index` is -1 outside a batch; times are ms since the epoch."""

    batch_index: int
    key: str | None
    properties: dict[str, str]
    payload: bytes
    publish_time_ms: int
    event_time_ms: int | None
    producer_name: str
    sequence_id: int
    chunk_id: int
    num_chunks: int
    uuid: str | None


class Part(NamedTuple):
    """One message inside the plain payload of a batch: `start` of its size, `body` of its payload, and its `end`."""

    number: int
    single: SingleMessageMetadata
    start: int
    body: int
    end: int


def messages_of(entry: Buffer, summary: EntrySummary | None = None) -> list[Message]:
    """Return every message of a stored entry, in order. PeerProtocolError if it cannot be unpacked.

    `summary`: of the entry, if the caller has it.
    """
    summary = summary or peek(entry)
    metadata = summary.metadata
    if len(metadata.encryption_keys) == 0:
        payload = plain_payload(entry, summary)
        if summary.is_batch:
            return list(_unpack(payload, summary))
    else:
        payload = bytes(memoryview(entry)[summary.payload_offset :])
    return [_single(summary, payload)]


def message_of_chunks(last: EntrySummary, payload: bytes) -> Message:
    """Return the message whose chunks have this payload together; `last`: of its last chunk. PeerProtocolError."""
    metadata = last.metadata
    return _single(last, payload if metadata.encryption_keys else _decompressed(payload, metadata))


def _single(summary: EntrySummary, payload: bytes) -> Message:
    return Message(
        -1,
        summary.partition_key,
        {each.key: each.value for each in summary.metadata.properties},
        payload,
        summary.publish_time_ms,
        summary.event_time_ms,
        summary.producer_name,
        summary.sequence_id,
        summary.chunk_id,
        summary.num_chunks,
        summary.uuid,
    )


def plain_payload(entry: Buffer, summary: EntrySummary) -> bytes:
    """Return the decompressed payload of an entry that is not encrypted. PeerProtocolError."""
    return _decompressed(bytes(memoryview(entry)[summary.payload_offset :]), summary.metadata)


def _decompressed(payload: bytes, metadata: MessageMetadata) -> bytes:
    try:
        return decompress(payload, metadata.compression, metadata.uncompressed_size)
    except CompressionError as error:
        raise PeerProtocolError(f"a payload that cannot be decompressed: {error}") from error


def batch_of(payloads: Sequence[bytes], *, key: str | None, properties: Mapping[str, str]) -> bytes:
    """Return the payload of a batch of messages that have the same key and properties."""
    single = SingleMessageMetadata(payload_size=0)
    if key is not None:
        single.partition_key = key
    for name, value in properties.items():
        single.properties.add(key=name, value=value)
    parts = []
    for payload in payloads:
        single.payload_size = len(payload)
        encoded = single.SerializeToString()
        parts += [_U32.pack(len(encoded)), encoded, payload]
    return b"".join(parts)


def last_index(entry: Buffer) -> int:
    """Return the index of the last message of a batch that compaction did not remove; -1 if it is not a batch."""
    try:
        summary = peek(entry)
        if not summary.is_batch:
            return -1
        if summary.metadata.encryption_keys:
            return summary.num_messages - 1
        parts = parts_of(plain_payload(entry, summary), summary.num_messages)
        return max((part.number for part in parts if not part.single.compacted_out), default=-1)
    except PeerProtocolError:
        return -1  # not stored by a Pulsar producer


def parts_of(payload: bytes, count: int) -> Iterator[Part]:
    """Yield the messages of a batch of `count`, also those that compaction removed. PeerProtocolError."""
    position = 0
    for index in range(count):
        part = _part(payload, position, index, count)
        yield part
        position = part.end


def _part(payload: bytes, position: int, index: int, count: int) -> Part:
    """Return the message of a batch that begins at `position`. PeerProtocolError."""
    try:
        start = position + 4
        body = start + _U32.unpack_from(payload, position)[0]
        single = SingleMessageMetadata.FromString(payload[start:body])
    except (struct.error, DecodeError) as error:
        raise PeerProtocolError(f"message {index} of a batch of {count} is unreadable") from error
    end = body + single.payload_size
    if single.payload_size < 0:
        raise PeerProtocolError(f"message {index} of a batch has a payload of {single.payload_size} bytes")
    if end > len(payload):
        raise PeerProtocolError(f"message {index} of a batch ends {end - len(payload)} bytes after the batch")
    return Part(index, single, position, body, end)


Single: TypeAlias = SingleMessageMetadata | bytes | None
"""The metadata of a message of a batch: None if it is a payload size alone, unparsed if there is a sequence id, too."""


def singles_of(payload: bytes, count: int) -> list[tuple[Single, int, int]]:
    """Return (metadata, start, end) of the messages of a batch, also of those that compaction removed.

    Messages of equal metadata share one object. PeerProtocolError.
    """
    found: list[tuple[Single, int, int]] = []
    of_head: SingleMessageMetadata | None = None
    head = size_field = b"-"
    position = size = 0
    available = len(payload)
    for index in range(count):
        # Batches of one producer mostly hold messages of one size: their heads are the same bytes, or begin so.
        single: Single = of_head
        if payload.startswith(head, position):
            body = position + len(head)
            end = body + size
        elif payload.startswith(size_field, position + 4):
            body = position + 4 + int.from_bytes(payload[position : position + 4], "big")
            end = body + size
            if _SEQUENCE_ID.fullmatch(payload, position + 4 + len(size_field), body) is None:
                end = available + 1  # read it the slow way
            single = payload[position + 4 : body]
        else:
            end = available + 1
        if end > available:
            part = _part(payload, position, index, count)
            body, end = part.body, part.end
            size = end - body
            size_field = _SIZE_TAG + varint(size)
            head = payload[position:body]
            single = of_head = None if head[4:] == size_field else part.single
        found.append((single, body, end))
        position = end
    return found


def _unpack(payload: bytes, summary: EntrySummary) -> Iterator[Message]:
    for index, single, _, body, end in parts_of(payload, summary.num_messages):
        if single.compacted_out:
            continue
        yield Message(
            index,
            single.partition_key if single.HasField("partition_key") else None,
            {each.key: each.value for each in single.properties},
            payload[body:end],
            summary.publish_time_ms,
            single.event_time or None,
            summary.producer_name,
            single.sequence_id if single.HasField("sequence_id") else summary.sequence_id + index,
            0,
            0,
            None,
        )
