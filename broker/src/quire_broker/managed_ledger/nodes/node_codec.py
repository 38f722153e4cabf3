"""The value of a managed ledger's node: its ledgers, its properties, and where it was terminated. Pure.

The ledger being written is stored with only its id and an explicit timestamp 0. Fields that this module does not
interpret (of newer versions) are preserved byte for byte. The plain form is written; the compressed one is read too.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from google.protobuf.message import DecodeError

from quire_bookie.errors import MetadataFormatError
from quire_broker.managed_ledger.nodes.compressed_value import plain_value
from quire_broker.managed_ledger.nodes.ledger_list import LedgerRecord
from quire_broker.managed_ledger.nodes.offload_context import decode_context, encode_context
from quire_broker.managed_ledger.nodes.proto import managed_ledger_pb2 as pb
from quire_broker.managed_ledger.position import Position


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
