"""Decompresses data of clients and stock brokers: payloads of messages, nodes of the metadata. Compresses only batches
that compaction writes again.

LZ4 and Snappy are their raw block formats, zlib and zstd whole streams. The plain size comes from the writer: it is
bounded before anything is allocated for it, and decompression never produces more.
"""

import zlib
from collections.abc import Callable
from enum import IntEnum

import cramjam

PLAIN_BYTES_MAX = 64 * 1024 * 1024


class Codec(IntEnum):
    """Codecs with their numbers in the wire protocol and the managed ledger."""

    NONE = 0
    LZ4 = 1
    ZLIB = 2
    ZSTD = 3
    SNAPPY = 4


class CompressionError(ValueError):
    """The bytes cannot be decompressed as declared. Trying again does not help."""


def decompress(body: bytes, codec: int, size: int) -> bytes:
    """Return the plain bytes, which must be `size` bytes. CompressionError if not, or for an unknown codec."""
    if codec == Codec.NONE:
        return body
    if not 0 <= size <= PLAIN_BYTES_MAX:
        raise CompressionError(f"{size} bytes when decompressed; the limit is {PLAIN_BYTES_MAX}")
    try:
        plain = _DECOMPRESS[codec](body, size)
    except KeyError as error:
        raise CompressionError(f"compression {codec} is not one of {', '.join(each.name for each in Codec)}") from error
    except (cramjam.DecompressionError, zlib.error, ValueError) as error:
        raise CompressionError(f"not {Codec(codec).name}: {error}") from error
    if len(plain) != size:
        raise CompressionError(f"{Codec(codec).name} gave {len(plain)} bytes instead of {size}")
    return plain


def compress(plain: bytes, codec: int) -> bytes:
    """Return the bytes in the form that `decompress` takes. `codec` is one of `Codec`."""
    return _COMPRESS[Codec(codec)](plain)


def _lz4(body: bytes, size: int) -> bytes:
    output = bytearray(size)  # decompress_block would pad short output with zeros
    written = cramjam.lz4.decompress_block_into(body, output)
    return bytes(output[:written])


def _zlib(body: bytes, size: int) -> bytes:
    stream = zlib.decompressobj()
    plain = stream.decompress(body, size + 1)
    if not stream.eof:
        raise CompressionError("the stream does not end where it should")
    return plain


def _zstd(body: bytes, size: int) -> bytes:
    output = bytearray(size)
    written = cramjam.zstd.decompress_into(body, output)
    return bytes(output[:written])


def _snappy(body: bytes, size: int) -> bytes:
    length = cramjam.snappy.decompress_raw_len(body)
    if length != size:
        raise CompressionError(f"the Snappy header declares {length} bytes instead of {size}")
    return bytes(cramjam.snappy.decompress_raw(body))


_DECOMPRESS: dict[int, Callable[[bytes, int], bytes]] = {
    Codec.LZ4: _lz4,
    Codec.ZLIB: _zlib,
    Codec.ZSTD: _zstd,
    Codec.SNAPPY: _snappy,
}
_COMPRESS: dict[Codec, Callable[[bytes], bytes]] = {
    Codec.NONE: lambda plain: plain,
    Codec.LZ4: lambda plain: bytes(cramjam.lz4.compress_block(plain, store_size=False)),
    Codec.ZLIB: zlib.compress,
    Codec.ZSTD: lambda plain: bytes(cramjam.zstd.compress(plain)),
    Codec.SNAPPY: lambda plain: bytes(cramjam.snappy.compress_raw(plain)),
}
