"""The compressed form of a managed-ledger or cursor node. Read only: we write plain values.

    magic 0x4778, int32 BE length of the head, head (compression type, uncompressed size), compressed body

LZ4 and Snappy are their raw block formats, zlib and zstd whole streams. The uncompressed size comes from the value
and is bounded before anything is allocated for it.
"""

import struct
import zlib

import cramjam
from google.protobuf.message import DecodeError

from quire_bookie.errors import MetadataFormatError
from quire_broker.managed_ledger.proto import managed_ledger_pb2 as pb

MAGIC = b"\x47\x78"
_HEAD = struct.Struct(">2si")
UNCOMPRESSED_BYTES_MAX = 64 * 1024 * 1024


def plain_value(value: bytes) -> bytes:
    """The plain form of a node's value; a value that is not compressed comes back as it is. MetadataFormatError."""
    if not value.startswith(MAGIC):
        return value
    if len(value) < _HEAD.size:
        raise MetadataFormatError("a compressed node ends within its head")
    _, head_bytes = _HEAD.unpack_from(value)
    body_at = _HEAD.size + head_bytes
    if head_bytes < 0 or body_at > len(value):
        raise MetadataFormatError(f"a compressed node with a head of {head_bytes} bytes in {len(value)}")
    head = pb.CompressedValueMetadata()
    try:
        head.ParseFromString(value[_HEAD.size : body_at])
    except DecodeError as error:
        raise MetadataFormatError(f"head of a compressed node: {error}") from error
    if not 0 <= head.uncompressedSize <= UNCOMPRESSED_BYTES_MAX:
        raise MetadataFormatError(f"a compressed node of {head.uncompressedSize} bytes")
    plain = _decompress(head.compressionType, value[body_at:], head.uncompressedSize)
    if len(plain) != head.uncompressedSize:
        raise MetadataFormatError(f"a compressed node of {len(plain)} bytes says {head.uncompressedSize}")
    return plain


def _decompress(kind: int, body: bytes, size: int) -> bytes:
    """`size` bytes at most; cramjam's own errors are wrapped here, at the port."""
    try:
        if kind == pb.LZ4:
            return bytes(cramjam.lz4.decompress_block(body, output_len=size))
        if kind == pb.ZLIB:
            stream = zlib.decompressobj()
            plain = stream.decompress(body, size + 1)
            if not stream.eof:
                raise MetadataFormatError("body of a compressed node: the stream does not end where it should")
            return plain
        if kind == pb.ZSTD:
            return _into(cramjam.zstd.decompress_into, body, size)
        if kind == pb.SNAPPY:
            if cramjam.snappy.decompress_raw_len(body) != size:
                raise MetadataFormatError("a compressed node whose sizes disagree")
            return bytes(cramjam.snappy.decompress_raw(body))
    except (cramjam.DecompressionError, zlib.error, ValueError) as error:
        raise MetadataFormatError(f"body of a compressed node: {error}") from error
    return body


def _into(decompress_into: "object", body: bytes, size: int) -> bytes:
    output = bytearray(size)
    written = decompress_into(body, output)  # type: ignore[operator]
    return bytes(output[:written])
