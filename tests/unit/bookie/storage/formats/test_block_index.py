"""The block index compared with a dict: a lookup finds the copy that was flushed last."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire_bookie.errors import DamagedError
from quire_bookie.model import LedgerId
from quire_bookie.storage.formats.block_index import (
    BlockSegment,
    Place,
    decode_block,
    encode_block,
    known_top,
    look_up,
    merge_block,
    tail_from,
)
from quire_bookie.storage.formats.index_keys import block_key
from quire_bookie.storage.formats.log_format import RECORD_HEADER_BYTES

KEY = block_key(LedgerId(5), 3)

patterns = st.one_of(
    st.builds(range, st.integers(0, 255), st.just(256), st.integers(1, 4)).map(list),  # dense and striped
    st.sets(st.integers(0, 255), min_size=1, max_size=256).map(sorted),  # Qw = 2 of 3, late and single ids
    st.integers(0, 2).map(lambda skip: [low for low in range(256) if low % 3 != skip]),
)
lengths = st.one_of(st.just(100), st.integers(0, 70_000), st.integers(0, 65_535))


@st.composite
def stretches(draw: st.DrawFn) -> BlockSegment:
    lows = draw(patterns)
    uniform = draw(st.booleans())
    one = draw(lengths)
    sizes = [one] * len(lows) if uniform else draw(st.lists(lengths, min_size=len(lows), max_size=len(lows)))
    return BlockSegment(draw(st.integers(1, 2**32 - 1)), draw(st.integers(4096, 2**30)), lows, sizes)


def note(model: dict[int, Place], segment: BlockSegment) -> None:
    offset = segment.base
    for low, size in zip(segment.lows, segment.sizes, strict=True):
        model[low] = Place(segment.log, offset, size)
        offset += size + RECORD_HEADER_BYTES


@settings(deadline=None)
@given(st.lists(st.lists(stretches(), min_size=1, max_size=2), min_size=1, max_size=4))
def test_a_lookup_finds_only_the_copy_merged_last(flushes: list[list[BlockSegment]]) -> None:
    value: bytes | None = None
    model: dict[int, Place] = {}
    for flush in flushes:
        value = merge_block(KEY, value, flush)
        for segment in flush:
            note(model, segment)
    assert value is not None
    assert {low: look_up(KEY, value, low) for low in range(256)} == {low: model.get(low) for low in range(256)}
    assert known_top(KEY, value) == (max(model), False)
    held = [low for segment in decode_block(KEY, value).segments for low in segment.lows]
    assert sorted(held) == sorted(model), "no id in two segments"
    assert encode_block(KEY, decode_block(KEY, value)) == value


@settings(deadline=None)
@given(stretches(), st.data())
def test_the_tail_of_a_stretch_starts_at_the_requested_entry(segment: BlockSegment, data: st.DataObject) -> None:
    value = merge_block(KEY, None, [segment])
    low = data.draw(st.sampled_from(list(segment.lows)))
    tail = tail_from(KEY, value, low)
    assert tail is not None and list(tail.lows) == [one for one in segment.lows if one >= low]
    assert Place(tail.log, tail.base, tail.sizes[0]) == look_up(KEY, value, low)


@settings(deadline=None)
@given(stretches(), st.data())
def test_any_flipped_bit_or_truncation_is_damage_and_never_absence(segment: BlockSegment, data: st.DataObject) -> None:
    value = bytearray(merge_block(KEY, None, [segment]))
    at = data.draw(st.integers(0, len(value) - 1))
    value[at] ^= 1 << data.draw(st.integers(0, 7))
    cut = merge_block(KEY, None, [segment])[:at]
    for low in (0, segment.lows[0], 255):
        for wrong in (bytes(value), cut):
            with pytest.raises(DamagedError):
                look_up(KEY, wrong, low)


def test_a_value_under_another_key_is_damage() -> None:
    value = merge_block(KEY, None, [BlockSegment(1, 4096, [0], [10])])
    with pytest.raises(DamagedError):
        look_up(block_key(LedgerId(5), 4), value, 0)


@pytest.mark.parametrize("how", ["flipped", "unreadable"])
def test_absence_in_a_damaged_block_stays_unprovable_after_a_merge(how: str) -> None:
    old = bytearray(merge_block(KEY, None, [BlockSegment(1, 4096, [0, 1], [10, 10])]))
    old[-1] ^= 1
    fresh = [BlockSegment(2, 4096, [7], [10])]
    value = merge_block(KEY, bytes(old), fresh) if how == "flipped" else merge_block(KEY, None, fresh, lost=True)
    value = merge_block(KEY, value, [BlockSegment(3, 4096, [9], [10])])
    assert look_up(KEY, value, 7) == Place(2, 4096, 10)
    assert look_up(KEY, value, 9) == Place(3, 4096, 10)
    for low in (0, 1, 200):
        with pytest.raises(DamagedError):
            look_up(KEY, value, low)
    assert known_top(KEY, value) == (9, True)


def test_a_missing_value_is_absence() -> None:
    assert look_up(KEY, None, 3) is None
    assert tail_from(KEY, None, 3) is None


@pytest.mark.parametrize(
    ("lows", "sizes", "bytes_max"),
    [
        (range(256), [1056] * 256, 24),
        (range(0, 256, 3), [1056] * 86, 24),
        ([low for low in range(256) if low % 3], [1056] * 170, 56),
        (range(256), list(range(256)), 6 + 12 + 512),
    ],
)
def test_the_size_of_a_block_depends_on_its_pattern_of_ids(lows: list[int], sizes: list[int], bytes_max: int) -> None:
    assert len(merge_block(KEY, None, [BlockSegment(1, 4096, lows, sizes)])) <= bytes_max
