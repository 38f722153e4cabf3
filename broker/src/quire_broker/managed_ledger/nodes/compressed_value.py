"""Decodes the compressed form of a managed-ledger or cursor node. Read only: Quire writes plain values.

    magic 0x4778, int32 BE length of the head, head (compression type, uncompressed size), compressed body

Compression types have the numbers of `quire_broker.compression`.
"""

import struct

from google.protobuf.message import DecodeError

from quire_bookie.errors import MetadataFormatError
from quire_broker.compression import CompressionError, decompress
from quire_broker.managed_ledger.nodes.proto import managed_ledger_pb2 as pb

MAGIC = b"\x47\x78"
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
