"""Varints against protobuf itself."""

from google.protobuf.wrappers_pb2 import Int64Value, UInt64Value
from hypothesis import example, given
from hypothesis import strategies as st

from quire_bookie.varints import encode_varint

FIELD = b"\x08"


@given(st.one_of(st.integers(1, 300), st.integers(1, (1 << 64) - 1)))
def test_numbers_are_encoded_as_protobuf_does(number: int) -> None:
    assert FIELD + encode_varint(number) == UInt64Value(value=number).SerializeToString()


@given(st.integers(-(1 << 63), -1))
@example(-1)
def test_negative_numbers_are_encoded_as_protobuf_does(number: int) -> None:
    assert FIELD + encode_varint(number) == Int64Value(value=number).SerializeToString()


def test_zero_is_one_byte() -> None:
    assert encode_varint(0) == b"\0"
