"""What the broker may read of a stored entry: its metadata. The payload is never unpacked here.

    entry = [0x0e02 size(4) BrokerEntryMetadata] [0x0e01 crc32c(4)] metadataSize(4) MessageMetadata payload

The checksum covers everything behind it. Source: spec pulsar-wire, sections 1 and 4.
"""

import struct
from base64 import b64decode
from binascii import Error as Base64Error

from crc32c import crc32c
from google.protobuf.message import DecodeError

from quire_bookie.errors import PeerProtocolError
from quire_bookie.model import Buffer
from quire_broker.wire.proto.pulsar_pb2 import BrokerEntryMetadata, MessageMetadata

_MAGIC_CHECKSUM = b"\x0e\x01"
_MAGIC_BROKER_METADATA = b"\x0e\x02"
_U32 = struct.Struct(">I")
NO_KEY = b"NONE_KEY"


class EntrySummary:
    """The metadata of one entry. A thin view of the parsed message: read what you need, keep none of it.

    Times are milliseconds since the epoch. `is_batch` is whether a batch size is present; a batch of one is a batch.
    """

    __slots__ = ("_metadata", "payload_offset")

    def __init__(self, metadata: MessageMetadata, payload_offset: int) -> None:
        self._metadata = metadata
        self.payload_offset = payload_offset

    @property
    def metadata(self) -> MessageMetadata:
        """The whole metadata, for the few who need more than what follows."""
        return self._metadata

    @property
    def num_messages(self) -> int:
        """Messages in the entry: permits and backlog count these. At least 1."""
        return max(1, self._metadata.num_messages_in_batch)

    @property
    def is_batch(self) -> bool:
        """Whether ids of its messages carry a batch index."""
        return self._metadata.HasField("num_messages_in_batch")

    @property
    def publish_time_ms(self) -> int:
        """When the client says it published."""
        return self._metadata.publish_time

    @property
    def event_time_ms(self) -> int | None:
        """The application's time, if given."""
        return self._metadata.event_time or None

    @property
    def producer_name(self) -> str:
        """Name of the producer."""
        return self._metadata.producer_name

    @property
    def sequence_id(self) -> int:
        """Sequence id of the first message (the highest, for Java's batches by key)."""
        return self._metadata.sequence_id

    @property
    def highest_sequence_id(self) -> int:
        """The higher of the two sequence ids: what deduplication records."""
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
        """Not before this time, on Shared and Key_Shared."""
        return self._metadata.deliver_at_time if self._metadata.HasField("deliver_at_time") else None

    @property
    def marker(self) -> int | None:
        """Type of a server-only marker; None for messages."""
        return self._metadata.marker_type if self._metadata.HasField("marker_type") else None

    @property
    def in_transaction(self) -> bool:
        """Whether the entry belongs to a transaction."""
        return self._metadata.HasField("txnid_least_bits") and self._metadata.HasField("txnid_most_bits")

    @property
    def uuid(self) -> str | None:
        """Identity of the chunked message that this entry is a chunk of."""
        return self._metadata.uuid if self._metadata.HasField("uuid") else None

    @property
    def chunk_id(self) -> int:
        """Index of the chunk; 0 when not chunked."""
        return self._metadata.chunk_id

    @property
    def num_chunks(self) -> int:
        """Chunks of the whole message; 0 when not chunked."""
        return self._metadata.num_chunks_from_msg

    @property
    def is_last_chunk(self) -> bool:
        """Whether no chunk of this message follows (true for what is not chunked)."""
        return self._metadata.chunk_id >= self._metadata.num_chunks_from_msg - 1

    def sticky_key(self) -> bytes:
        """What Key_Shared hashes: ordering key, else key (decoded), else producer and sequence, else a constant."""
        metadata = self._metadata
        if metadata.HasField("ordering_key"):
            return metadata.ordering_key
        if metadata.HasField("partition_key"):
            if metadata.partition_key_b64_encoded:
                try:
                    return b64decode(metadata.partition_key, validate=True)
                except Base64Error:
                    return metadata.partition_key.encode()
            return metadata.partition_key.encode()
        if metadata.producer_name:
            return f"{metadata.producer_name}-{metadata.sequence_id}".encode()
        return NO_KEY


def _message_part(data: Buffer) -> int:
    """Offset behind the broker entry metadata, which is mostly absent."""
    if bytes(data[:2]) == _MAGIC_BROKER_METADATA and len(data) >= 6:
        return 6 + int(_U32.unpack_from(data, 2)[0])
    return 0


def peek(data: Buffer) -> EntrySummary:
    """The summary of a stored entry; PeerProtocolError when its metadata does not parse."""
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
    return EntrySummary(metadata, end)


def peek_broker_metadata(data: Buffer) -> BrokerEntryMetadata | None:
    """What a broker added in front of the message part (index, its own timestamp), if anything."""
    offset = _message_part(data)
    if not offset or offset > len(data):
        return None
    try:
        return BrokerEntryMetadata.FromString(bytes(data[6:offset]))
    except DecodeError as error:
        raise PeerProtocolError(f"unreadable broker entry metadata: {error}") from error


def checksum_matches(data: Buffer) -> bool:
    """Whether the entry agrees with its own checksum; an entry without one agrees with everything."""
    offset = _message_part(data)
    if bytes(data[offset : offset + 2]) != _MAGIC_CHECKSUM:
        return True
    if len(data) < offset + 6:
        return False
    expected = _U32.unpack_from(data, offset + 2)[0]
    return bool(crc32c(memoryview(data)[offset + 6 :]) == expected)


def deliverable(data: Buffer, *, broker_metadata: bool, checksum: bool) -> Buffer:
    """The part of a stored entry that a client of limited abilities may be sent. Mostly all of it, uncopied."""
    offset = _message_part(data)
    start = 0 if broker_metadata else offset
    if not checksum and bytes(data[offset : offset + 2]) == _MAGIC_CHECKSUM:
        start = offset + 6  # below v11 neither checksum nor broker metadata is understood
    return memoryview(data)[start:] if start else data


def seal(metadata: MessageMetadata, payload: Buffer) -> bytes:
    """A complete entry with checksum, as a client would publish it."""
    encoded = metadata.SerializeToString()
    rest = _U32.pack(len(encoded)) + encoded + bytes(payload)
    return _MAGIC_CHECKSUM + _U32.pack(crc32c(rest)) + rest
