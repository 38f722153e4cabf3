"""Ack ranges against a plain set of entries."""

from hypothesis import given
from hypothesis import strategies as st

from quire_broker.managed_ledger.cursors.ack_ranges import AckRange, AckRanges

_RANGE = st.tuples(st.integers(0, 2), st.integers(0, 40), st.integers(0, 6))


def _model(ranges: list[tuple[int, int, int]]) -> set[tuple[int, int]]:
    return {(ledger, entry) for ledger, first, extra in ranges for entry in range(first, first + extra + 1)}


def _entries(ranges: AckRanges) -> set[tuple[int, int]]:
    return {(ledger, entry) for ledger, first, last in ranges for entry in range(first, last + 1)}


@given(st.lists(_RANGE, max_size=40))
def test_adding_ranges_is_the_union_of_their_entries(added: list[tuple[int, int, int]]) -> None:
    ranges = AckRanges()
    model: set[tuple[int, int]] = set()
    for ledger, first, extra in added:
        fresh = {(ledger, entry) for entry in range(first, first + extra + 1)} - model
        assert ranges.add(ledger, first, first + extra) == len(fresh)
        model |= fresh
    assert _entries(ranges) == model
    assert ranges.entries == len(model)
    assert bool(ranges) == bool(model)
    for before, after in zip(list(ranges), list(ranges)[1:], strict=False):
        assert before.ledger_id < after.ledger_id or before.last + 1 < after.first, "touching ranges are one"


@given(st.lists(_RANGE, max_size=25), st.integers(0, 3), st.integers(-1, 50))
def test_dropping_through_a_position_keeps_exactly_the_later_entries(
    added: list[tuple[int, int, int]], ledger: int, entry: int
) -> None:
    ranges = AckRanges()
    for known, first, extra in added:
        ranges.add(known, first, first + extra)
    ranges.drop_through(ledger, entry)
    assert _entries(ranges) == {position for position in _model(added) if position > (ledger, entry)}
    assert ranges.entries == len(_entries(ranges))


@given(st.lists(_RANGE, max_size=25), st.integers(0, 2), st.integers(0, 50))
def test_lookups_agree_with_membership(added: list[tuple[int, int, int]], ledger: int, entry: int) -> None:
    ranges = AckRanges()
    for known, first, extra in added:
        ranges.add(known, first, first + extra)
    model = _model(added)
    assert ((ledger, entry) in ranges) == ((ledger, entry) in model)
    end = ranges.end_of(ledger, entry)
    if end is not None:
        assert (ledger, end) in model
        assert (ledger, end + 1) not in model
    start = ranges.next_start(ledger, entry)
    if start is not None:
        assert start > entry
        assert (ledger, start) in model
        assert (ledger, start - 1) not in model
    if end is None:
        assert start == min((e for known, e in model if known == ledger and e > entry), default=None)


def test_ranges_of_different_ledgers_are_not_joined_and_clear_removes_all() -> None:
    ranges = AckRanges()
    ranges.add(5, 0, 3)
    ranges.add(4, 7, 9)
    assert list(ranges) == [AckRange(4, 7, 9), AckRange(5, 0, 3)]
    assert ranges.ledgers() == [4, 5]
    assert ranges.ranges_of(5) == [(0, 3)]
    assert len(ranges) == 2
    ranges.clear()
    assert not ranges
    assert ranges.entries == 0
