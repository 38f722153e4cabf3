"""The value of a managed ledger's node: its ledgers, its properties, and where it was terminated. Pure.

The ledger being written is stored with only its id and an explicit timestamp 0. Fields that this module does not
interpret (of newer versions) are preserved byte for byte. The plain form is written. The compressed one is read too,
of cursors as well:

    magic 0x4778, int32 BE length of the head, head (compression type, uncompressed size), compressed body

Compression types have the numbers of `quire_broker.compression`.
"""

import struct
from collections.abc import Mapping
from dataclasses import field
from typing import Final

from google.protobuf.message import DecodeError

from quire_bookie.dataclass import dataclass
from quire_bookie.errors import MetadataFormatError
from quire_broker.compression import CompressionError, decompress
from quire_broker.managed_ledger.nodes.ledger_list import LedgerRecord
from quire_broker.managed_ledger.nodes.offload_context import decode_context, encode_context
from quire_broker.managed_ledger.nodes.proto import managed_ledger_pb2 as pb
from quire_broker.managed_ledger.position import Position

MAGIC = b"\x47\x78"
SOURCE_PROPERTY: Final = "PULSAR.SHADOW_SOURCE"
"""Property of a shadow topic: the full name of the topic whose ledgers it reads. Pulsar's name."""
_HEAD = struct.Struct(">2si")


def plain_value(value: bytes) -> bytes:
    """Return the plain form of a node's value; an uncompressed value is returned unchanged. MetadataFormatError."""
    if not value.startswith(MAGIC):
        return value
    if len(value) < _HEAD.size:
        raise MetadataFormatError("a compressed node ends within its head")
    _, head_bytes = _HEAD.unpack_from(value)
    body_at = _HEAD.size + head_bytes
    if head_bytes < 0 or body_at > len(value):
        raise MetadataFormatError(f"a compressed node of {len(value)} bytes has a head of {head_bytes} bytes")
    head = pb.CompressedValueMetadata()
    try:
        head.ParseFromString(value[_HEAD.size : body_at])
    except DecodeError as error:
        raise MetadataFormatError(f"head of a compressed node: {error}") from error
    try:
        plain = decompress(value[body_at:], head.compressionType, head.uncompressedSize)
    except CompressionError as error:
        raise MetadataFormatError(f"body of a compressed node: {error}") from error
    if len(plain) != head.uncompressedSize:
        raise MetadataFormatError(
            f"a compressed node of {head.uncompressedSize} bytes was decompressed to {len(plain)}"
        )
    return plain


@dataclass(frozen=True, slots=True)
class LedgerListNode:
    """The value of a managed ledger's node. `extra`: fields of a newer version, preserved as read."""

    ledgers: tuple[LedgerRecord, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    terminated: Position | None = None
    extra: bytes = b""


def encode_list(node: LedgerListNode) -> bytes:
    """Return the plain value."""
    message = pb.ManagedLedgerInfo()
    for record in node.ledgers:
        info = message.ledgerInfo.add(ledgerId=record.ledger_id, timestamp=record.closed_ms)
        if record.closed_ms:
            info.entries = record.entries
            info.size = record.size_bytes
        if record.offload is not None:
            info.offloadContext = encode_context(record.offload)
        if record.extra:
            info.MergeFromString(record.extra)
    if node.terminated is not None:
        message.terminatedPosition.ledgerId = node.terminated.ledger_id
        message.terminatedPosition.entryId = node.terminated.entry_id
    for key, value in node.properties.items():
        message.properties.add(key=key, value=value)
    if node.extra:
        message.MergeFromString(node.extra)
    return message.SerializeToString()


def decode_list(value: bytes) -> LedgerListNode:
    """Decode a node's value, compressed or not; empty bytes are an empty list. MetadataFormatError."""
    message = pb.ManagedLedgerInfo()
    try:
        message.ParseFromString(plain_value(value))
    except DecodeError as error:
        raise MetadataFormatError(f"not a managed ledger: {error}") from error
    if not message.IsInitialized():
        raise MetadataFormatError("not a managed ledger: a required field is missing")
    ledgers = tuple(sorted((_record_of(info) for info in message.ledgerInfo), key=lambda known: known.ledger_id))
    terminated = None
    if message.HasField("terminatedPosition"):
        terminated = Position(message.terminatedPosition.ledgerId, message.terminatedPosition.entryId)
    properties = {known.key: known.value for known in message.properties}
    for name in ("ledgerInfo", "terminatedPosition", "properties"):
        message.ClearField(name)
    return LedgerListNode(ledgers, properties, terminated, message.SerializeToString())


def _record_of(info: "pb.ManagedLedgerInfo.LedgerInfo") -> LedgerRecord:
    rest = pb.ManagedLedgerInfo.LedgerInfo()
    rest.CopyFrom(info)
    for name in ("ledgerId", "entries", "size", "timestamp", "offloadContext"):
        rest.ClearField(name)
    offload = decode_context(info.offloadContext) if info.HasField("offloadContext") else None
    extra = rest.SerializePartialToString()
    return LedgerRecord(info.ledgerId, info.entries, info.size, info.timestamp, extra, offload)
