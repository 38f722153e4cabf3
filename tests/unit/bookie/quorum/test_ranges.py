"""Tests disjoint ranges of ids against a plain set."""

from hypothesis import given
from hypothesis import strategies as st

from quire_bookie.quorum.ranges import IdRanges

_range = st.tuples(st.integers(0, 60), st.integers(1, 12))


@given(st.lists(_range, max_size=30), st.integers(0, 80))
def test_ranges_contain_the_same_ids_as_a_set(added: list[tuple[int, int]], probe: int) -> None:
    ranges = IdRanges()
    expected: set[int] = set()
    for start, size in added:
        ranges.add(start, start + size)
        expected.update(range(start, start + size))
    end = probe
    while end in expected:
        end += 1
    assert ranges.end_of(probe) == end
    holes = len([entry for entry in expected if entry - 1 not in expected])
    assert len(ranges) == holes, "adjacent ranges are merged"


def test_dropping_keeps_a_range_that_extends_beyond() -> None:
    ranges = IdRanges()
    ranges.add(0, 5)
    ranges.add(10, 20)
    ranges.drop_below(12)
    assert len(ranges) == 1
    assert ranges.end_of(3) == 3
    assert ranges.end_of(15) == 20


def test_cleared_ranges_are_empty() -> None:
    ranges = IdRanges()
    ranges.add(1, 3)
    ranges.clear()
    assert ranges.end_of(1) == 1
    assert len(ranges) == 0
