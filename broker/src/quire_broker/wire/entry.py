"""Reads the metadata of stored entries. Never unpacks the payload.

    entry = [0x0e02 size(4) BrokerEntryMetadata] [0x0e01 crc32c(4)] metadataSize(4) MessageMetadata payload

The checksum covers everything after it. Source: spec pulsar-wire, sections 1 and 4.

This runs once per entry at publish and once per delivery. Metadata with only producer, times and counts is therefore
recognised by a regular expression, at a third of the cost of parsing; everything else is parsed.
"""

import re
import struct
from base64 import b64decode
from typing import Final

from google.protobuf.message import DecodeError

from quire_bookie.crc import crc32c
from quire_bookie.errors import PeerProtocolError
from quire_bookie.model import Buffer
from quire_broker.limits import BATCH_MESSAGES_MAX
from quire_broker.wire.proto.pulsar_pb2 import BrokerEntryMetadata, MessageMetadata
from quire_broker.wire.varint import varint

_MAGIC_CHECKSUM = b"\x0e\x01"
MAGIC_BROKER_METADATA: Final = b"\x0e\x02"
"""The first bytes of an entry with metadata of the broker."""
_U32 = struct.Struct(">I")
_HEAD = struct.Struct(">HII")  # magic, checksum, size of the metadata
_HEAD_MAGIC = int.from_bytes(_MAGIC_CHECKSUM)
_BROKER_METADATA_MAGIC = int.from_bytes(MAGIC_BROKER_METADATA)
_TIMESTAMP_TAG = b"\x08"
_INDEX_TAG = b"\x10"
_VARINT = rb"[\x80-\xff]{0,9}[\x00-\x7f]"
_PLAIN = re.compile(
    rb"\x0a[\x01-\x7f]([\x20-\x7e]+)"  # producer name of one length byte; the length is compared by hand
    rb"\x10" + _VARINT + rb"\x18" + _VARINT + rb"(?:\x40[\x00-\x04])?"  # sequence id, publish time, compression
    rb"(?:\x48[\x80-\xff]{0,4}[\x00-\x7f])?"  # uncompressed size
    rb"(?:\x58([\x01-\x7f]|[\x80-\xff][\x01-\x7f]))?"  # messages in the batch, below 16384
)
NO_KEY = b"NONE_KEY"


class EntrySummary:
    """The metadata of one entry. A thin view: read what you need, keep none of it.

    Times are milliseconds since the epoch. `num_messages`, at least 1, is the unit of permits and backlog. `is_batch`:
    a batch size is present, so ids of its messages carry a batch index; a batch of one is a batch. `is_plain`: there
    is nothing but producer, sequence id, publish time, compression and batch size.
    """

    __slots__ = ("_entry", "_metadata_offset", "_parsed", "is_batch", "is_plain", "num_messages", "payload_offset")

    def __init__(
        self,
        entry: Buffer,
        parsed: MessageMetadata | None,
        payload_offset: int,
        num_messages: int,
        is_batch: bool,
        metadata_offset: int = _HEAD.size,
    ) -> None:
        self._entry = entry
        self._metadata_offset = metadata_offset
        self._parsed = parsed
        self.payload_offset = payload_offset
        self.num_messages = num_messages
        self.is_batch = is_batch
        self.is_plain = parsed is None

    @property
    def metadata(self) -> MessageMetadata:
        """The whole metadata, parsed on first use."""
        if self._parsed is None:
            self._parsed = MessageMetadata.FromString(bytes(self._entry[self._metadata_offset : self.payload_offset]))
        return self._parsed

    @property
    def _metadata(self) -> MessageMetadata:
        return self._parsed if self._parsed is not None else self.metadata

    @property
    def publish_time_ms(self) -> int:
        """The publish time set by the client."""
        return self._metadata.publish_time

    @property
    def event_time_ms(self) -> int | None:
        """The application's time, if given."""
        return self._metadata.event_time or None

    @property
    def producer_name(self) -> str:
        """The name of the producer."""
        return self._metadata.producer_name

    @property
    def sequence_id(self) -> int:
        """The sequence id of the first message (the highest, for Java's batches by key)."""
        return self._metadata.sequence_id

    @property
    def highest_sequence_id(self) -> int:
        """The higher of the two sequence ids, which deduplication records."""
        return max(self._metadata.sequence_id, self._metadata.highest_sequence_id)

    @property
    def partition_key(self) -> str | None:
        """The key as sent (base64 text when `partition_key_is_base64`)."""
        return self._metadata.partition_key if self._metadata.HasField("partition_key") else None

    @property
    def partition_key_is_base64(self) -> bool:
        """Whether the key text encodes bytes."""
        return self._metadata.partition_key_b64_encoded

    @property
    def ordering_key(self) -> bytes | None:
        """The ordering key, if given."""
        return self._metadata.ordering_key if self._metadata.HasField("ordering_key") else None

    @property
    def deliver_at_ms(self) -> int | None:
        """The earliest delivery time, on Shared and Key_Shared."""
        return self._metadata.deliver_at_time if self._metadata.HasField("deliver_at_time") else None

    @property
    def marker(self) -> int | None:
        """The type of a server-only marker; None for messages."""
        if self.is_plain:
            return None
        return self._metadata.marker_type if self._metadata.HasField("marker_type") else None

    @property
    def in_transaction(self) -> bool:
        """Whether the entry belongs to a transaction."""
        return self._metadata.HasField("txnid_least_bits") and self._metadata.HasField("txnid_most_bits")

    @property
    def uuid(self) -> str | None:
        """The id of the chunked message that this entry is a chunk of."""
        return self._metadata.uuid if self._metadata.HasField("uuid") else None

    @property
    def chunk_id(self) -> int:
        """The index of the chunk; 0 if not chunked."""
        return self._metadata.chunk_id

    @property
    def num_chunks(self) -> int:
        """The number of chunks of the whole message; 0 if not chunked."""
        return self._metadata.num_chunks_from_msg

    @property
    def is_last_chunk(self) -> bool:
        """Whether no chunk of this message follows (true for unchunked messages)."""
        if self.is_plain:
            return True
        return self._metadata.chunk_id >= self._metadata.num_chunks_from_msg - 1

    def sticky_key(self) -> bytes:
        """The input of Key_Shared's hash: ordering key, decoded key, producer and sequence, or a constant."""
        metadata = self._metadata
        if metadata.HasField("ordering_key"):
            return metadata.ordering_key
        if metadata.HasField("partition_key"):
            if metadata.partition_key_b64_encoded:
                try:
                    return b64decode(metadata.partition_key, validate=True)
                except ValueError:  # not base64, or not even ASCII; the entry may already be stored
                    return metadata.partition_key.encode()
            return metadata.partition_key.encode()
        if metadata.producer_name:
            return f"{metadata.producer_name}-{metadata.sequence_id}".encode()
        return NO_KEY


def _message_part(data: Buffer) -> int:
    """Return the offset after the broker entry metadata, which is usually absent."""
    if bytes(data[:2]) == MAGIC_BROKER_METADATA and len(data) >= 6:
        return 6 + int(_U32.unpack_from(data, 2)[0])
    return 0


def flaw_of(data: memoryview) -> str | None:
    """Return why an entry must not be stored: a wrong checksum, or metadata that every consumer would fail on."""
    if len(data) >= _HEAD.size:
        magic, checksum, size = _HEAD.unpack_from(data)
        if magic == _HEAD_MAGIC:
            if crc32c(data[6:]) != checksum:
                return "Checksum failed on the broker"
            match = _PLAIN.fullmatch(data, 10, 10 + size)
            if match is not None and match.end(1) == 12 + data[11] and 10 + size <= len(data):
                return None
    if bytes(data[:2]) == MAGIC_BROKER_METADATA:
        return "the entry begins with broker entry metadata, which only brokers add"
    if not checksum_matches(data):
        return "Checksum failed on the broker"
    try:
        summary = peek(data)
    except PeerProtocolError as error:
        return str(error)
    if summary.metadata.num_messages_in_batch > BATCH_MESSAGES_MAX:
        return f"a batch of {summary.metadata.num_messages_in_batch} messages; the limit is {BATCH_MESSAGES_MAX}"
    return None


def peek(data: Buffer) -> EntrySummary:
    """Return the summary of a stored entry; PeerProtocolError if its metadata does not parse."""
    if len(data) >= _HEAD.size:
        start = _HEAD.size
        magic, _, size = _HEAD.unpack_from(data)
        if magic == _BROKER_METADATA_MAGIC and len(data) >= (start := start + _message_part(data)):
            magic, _, size = _HEAD.unpack_from(data, start - _HEAD.size)
        if magic == _HEAD_MAGIC:
            end = start + size
            match = _PLAIN.fullmatch(data, start, end)
            if match is not None and match.end(1) == start + 2 + data[start + 1] and end <= len(data):
                batch = match.group(2)
                if batch is None:
                    return EntrySummary(data, None, end, 1, False, start)
                messages = batch[0] if len(batch) == 1 else (batch[0] & 0x7F) | batch[1] << 7
                return EntrySummary(data, None, end, messages, True, start)
    return _parse(data)


def _parse(data: Buffer) -> EntrySummary:
    try:
        offset = _message_part(data)
        if bytes(data[offset : offset + 2]) == _MAGIC_CHECKSUM:
            offset += 6
        start = offset + 4
        end = start + _U32.unpack_from(data, offset)[0]
        if end > len(data):
            raise PeerProtocolError(f"metadata of {end - start} bytes in an entry of {len(data)}")
        metadata = MessageMetadata.FromString(bytes(data[start:end]))
    except (DecodeError, struct.error) as error:
        raise PeerProtocolError(f"entry without readable metadata: {error}") from error
    if not metadata.IsInitialized():
        raise PeerProtocolError("entry whose metadata lacks producer name, sequence id or publish time")
    # The parser returns bytes for text that is not UTF-8; code that expects text would fail on every read.
    for text in (metadata.producer_name, metadata.partition_key, metadata.uuid):
        if not isinstance(text, str):
            raise PeerProtocolError(f"entry whose metadata has text that is not UTF-8: {text[:100]!r}")
    messages = min(max(1, metadata.num_messages_in_batch), BATCH_MESSAGES_MAX)
    return EntrySummary(data, metadata, end, messages, metadata.HasField("num_messages_in_batch"))


def broker_metadata(timestamp_ms: int | None, index: int | None) -> bytes:
    """Return what a broker adds before the message part: its time, in ms since the epoch, and the index."""
    added = b"" if timestamp_ms is None else _TIMESTAMP_TAG + varint(timestamp_ms)
    if index is not None:
        added += _INDEX_TAG + varint(index)
    return MAGIC_BROKER_METADATA + _U32.pack(len(added)) + added


def broker_metadata_of(data: Buffer) -> Buffer:
    """Return the bytes that a broker added before the message part; usually none."""
    return memoryview(data)[: _message_part(data)]


def peek_broker_metadata(data: Buffer) -> BrokerEntryMetadata | None:
    """Return the metadata that a broker added before the message part (index, its own timestamp), if any."""
    offset = _message_part(data)
    if not offset or offset > len(data):
        return None
    try:
        return BrokerEntryMetadata.FromString(bytes(data[6:offset]))
    except DecodeError as error:
        raise PeerProtocolError(f"unreadable broker entry metadata: {error}") from error


def entry_time_ms(data: Buffer) -> int:
    """Return when a broker took an entry, if it noted that; else the publish time that its client set.

    In ms since the epoch. PeerProtocolError for an entry without readable metadata.
    """
    added = peek_broker_metadata(data)
    if added is not None and added.HasField("broker_timestamp"):
        return added.broker_timestamp
    return peek(data).publish_time_ms


def checksum_matches(data: Buffer) -> bool:
    """Return whether the entry matches its own checksum; an entry without one always does."""
    offset = _message_part(data)
    if bytes(data[offset : offset + 2]) != _MAGIC_CHECKSUM:
        return True
    if len(data) < offset + 6:
        return False
    expected = _U32.unpack_from(data, offset + 2)[0]
    return bool(crc32c(memoryview(data)[offset + 6 :]) == expected)


def deliverable(data: Buffer, *, broker_metadata: bool, checksum: bool) -> Buffer:
    """Return the part of a stored entry that an older client understands. Usually all of it, uncopied."""
    offset = _message_part(data)
    start = 0 if broker_metadata else offset
    if not checksum and bytes(data[offset : offset + 2]) == _MAGIC_CHECKSUM:
        start = offset + 6  # below v11 neither checksum nor broker metadata is understood
    return memoryview(data)[start:] if start else data


def seal(metadata: MessageMetadata, payload: Buffer) -> bytes:
    """Return a complete entry with checksum, as a client would publish it."""
    return entry_head(metadata, payload) + bytes(payload)


def entry_head(metadata: MessageMetadata, payload: Buffer) -> bytes:
    """Return what precedes the payload in an entry with checksum."""
    encoded = metadata.SerializeToString()
    rest = _U32.pack(len(encoded)) + encoded
    return _MAGIC_CHECKSUM + _U32.pack(crc32c(payload, crc32c(rest))) + rest
