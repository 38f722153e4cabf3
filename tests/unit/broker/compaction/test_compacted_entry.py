"""Entries of compacted ledgers: what we write is read again, in the form of stock brokers; damage is recognised."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire_bookie.errors import PeerProtocolError
from quire_broker.compaction.compacted_entry import HEAD_BYTES_MAX, decode, encode
from quire_broker.managed_ledger.position import Position

STOCK = bytes.fromhex("00000008080510071802200100000003") + b"abc"
"""Written by hand after RawMessageImpl.serialize: ledger 5, entry 7, partition 2, and a batch index."""


@given(st.integers(0, 2**62), st.integers(0, 2**40), st.integers(-1, 100), st.binary(max_size=50))
def test_an_entry_is_read_as_it_was_written(ledger: int, entry: int, partition: int, data: bytes) -> None:
    stored = b"".join(map(bytes, encode(Position(ledger, entry), partition, data)))
    found = decode(stored)
    assert (found.position, bytes(found.data), found.live) == (Position(ledger, entry), data, None)
    assert len(stored) - len(data) <= HEAD_BYTES_MAX


def test_the_messages_left_of_a_batch_are_in_its_id() -> None:
    stored = b"".join(map(bytes, encode(Position(1, 2), -1, b"data", (5, -1))))
    assert decode(stored).live == (5, -1)


def test_an_entry_of_a_stock_broker_is_read() -> None:
    found = decode(STOCK)
    assert (found.position, bytes(found.data), found.live) == (Position(5, 7), b"abc", None)


@pytest.mark.parametrize(
    "data",
    [b"", STOCK[:3], STOCK[:10], STOCK[:-1], STOCK + b"x", b"\x00\x00\x00\x02\x08\x05\x00\x00\x00\x00", bytes(99)],
)
def test_damage_is_recognised(data: bytes) -> None:
    with pytest.raises(PeerProtocolError, match="compacted ledger"):
        decode(data)
