"""Every codec, and bytes with a wrong declared size."""

import zlib

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire_broker.compression import PLAIN_BYTES_MAX, Codec, CompressionError, decompress


def compressed(codec: Codec, plain: bytes) -> bytes:
    match codec:
        case Codec.LZ4:
            return bytes(cramjam.lz4.compress_block(plain, store_size=False))
        case Codec.ZLIB:
            return zlib.compress(plain)
        case Codec.ZSTD:
            return bytes(cramjam.zstd.compress(plain))
        case Codec.SNAPPY:
            return bytes(cramjam.snappy.compress_raw(plain))
        case _:
            return plain


@given(st.sampled_from(Codec), st.binary(min_size=1, max_size=300))
def test_compressed_bytes_are_restored(codec: Codec, plain: bytes) -> None:
    assert decompress(compressed(codec, plain), codec, len(plain)) == plain


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec])
@pytest.mark.parametrize("size", [0, 999, 1001, -1, PLAIN_BYTES_MAX + 1])
def test_a_size_other_than_declared_is_refused(codec: Codec, size: int) -> None:
    with pytest.raises(CompressionError):
        decompress(compressed(codec, bytes(1000)), codec, size)


@pytest.mark.parametrize("codec", [Codec.ZLIB, Codec.ZSTD, Codec.SNAPPY])
def test_a_decompression_bomb_is_refused_before_it_is_expanded(codec: Codec) -> None:
    bomb = compressed(codec, bytes(32 << 20))
    with pytest.raises(CompressionError):
        decompress(bomb, codec, 100)


@given(st.sampled_from([codec for codec in Codec if codec]), st.binary(max_size=60), st.integers(0, 200))
def test_garbage_is_refused_or_has_the_declared_size(codec: Codec, body: bytes, size: int) -> None:
    try:
        plain = decompress(body, codec, size)
    except CompressionError:
        return
    assert len(plain) == size


def test_an_unknown_codec_is_refused() -> None:
    with pytest.raises(CompressionError, match="compression 9"):
        decompress(b"x", 9, 1)
