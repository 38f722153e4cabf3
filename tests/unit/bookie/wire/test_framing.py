"""Tests that a frame that straddles buffers is assembled for any split, without keeping more than its bytes."""

import sys
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from quire_bookie.wire.framing import Straddler


@given(st.binary(min_size=1, max_size=64), st.lists(st.integers(0, 67), max_size=5))
def test_a_frame_is_assembled_from_any_parts(body: bytes, cuts: list[int]) -> None:
    frame = len(body).to_bytes(4, "big") + body
    straddler = Straddler(64)
    whole: bytes | None = None
    places = sorted({min(each, len(frame)) for each in cuts} | {0, len(frame)})
    for start, stop in pairwise(places):
        assert whole is None
        position, whole = straddler.take(frame[start:stop], 0)
        assert position == stop - start
    assert whole == frame
    assert not straddler.pending


def test_the_beginning_of_a_frame_does_not_keep_its_buffer_alive() -> None:
    buffer = bytes(200_000) + (1000).to_bytes(4, "big") + b"begun"
    references = sys.getrefcount(buffer)
    straddler = Straddler(5000)
    straddler.take(buffer, 200_000)
    assert straddler.pending
    assert sys.getrefcount(buffer) == references


def test_a_large_part_of_a_frame_is_not_copied() -> None:
    buffer = (400_000).to_bytes(4, "big") + bytes(200_000)
    references = sys.getrefcount(buffer)
    straddler = Straddler(500_000)
    straddler.take(buffer, 0)
    assert sys.getrefcount(buffer) > references
