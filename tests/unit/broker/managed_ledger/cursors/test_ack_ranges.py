"""Ack ranges against a plain set of entries."""

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from quire_broker.managed_ledger.cursors.ack_ranges import CHUNK_ENTRIES, AckRange, AckRanges

_NEAR_EDGES = st.sampled_from([0, CHUNK_ENTRIES, 2 * CHUNK_ENTRIES, 4 * CHUNK_ENTRIES])
"""Entries near the edges of chunks, some chunks apart."""
_ENTRY = st.one_of(st.integers(0, 40), st.builds(lambda edge, off: max(0, edge + off), _NEAR_EDGES, st.integers(-9, 9)))
_EXTRA = st.one_of(st.integers(0, 6), st.integers(0, 40), st.just(CHUNK_ENTRIES))
_RANGE = st.tuples(st.integers(0, 2), _ENTRY, _EXTRA)
_SHORT_RANGE = st.tuples(st.integers(0, 2), _ENTRY, st.integers(0, 6))


def _model(ranges: list[tuple[int, int, int]]) -> set[tuple[int, int]]:
    return {(ledger, entry) for ledger, first, extra in ranges for entry in range(first, first + extra + 1)}


def _ranges(added: list[tuple[int, int, int]]) -> AckRanges:
    ranges = AckRanges()
    for ledger, first, extra in added:
        ranges.add(ledger, first, first + extra)
    return ranges


def _entries(ranges: AckRanges) -> set[tuple[int, int]]:
    return {(ledger, entry) for ledger, first, last in ranges for entry in range(first, last + 1)}


@given(st.lists(_RANGE, max_size=12))
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


@given(st.lists(_RANGE, max_size=12), st.integers(0, 3), st.one_of(st.just(-1), _ENTRY))
def test_dropping_through_a_position_keeps_exactly_the_later_entries(
    added: list[tuple[int, int, int]], ledger: int, entry: int
) -> None:
    ranges = _ranges(added)
    ranges.drop_through(ledger, entry)
    assert _entries(ranges) == {position for position in _model(added) if position > (ledger, entry)}
    assert ranges.entries == len(_entries(ranges))


@given(st.lists(_SHORT_RANGE, max_size=12), st.lists(st.tuples(st.integers(0, 2), _ENTRY), max_size=40))
def test_removing_entries_leaves_the_others(added: list[tuple[int, int, int]], removed: list[tuple[int, int]]) -> None:
    ranges, model = _ranges(added), _model(added)
    for ledger, entry in [*removed, *sorted(model)[::2], *sorted(model)[1::4]]:
        assert ranges.remove(ledger, entry) == ((ledger, entry) in model)
        model.discard((ledger, entry))
    assert _entries(ranges) == model and ranges.entries == len(model)
    assert bool(ranges) == bool(model)
    left = sorted(model)
    for (ledger, entry), (following, later) in zip(left, [*left[1:], (-1, -1)], strict=False):
        assert ranges.entry_after(ledger, entry - 1) == entry
        assert ranges.entry_after(ledger, entry) == (later if following == ledger else None)
        assert ranges.remove(ledger, entry)
    assert not ranges and ranges.entries == 0


@given(st.lists(_SHORT_RANGE, max_size=12), st.lists(_SHORT_RANGE, max_size=12))
def test_chunks_of_a_set_add_its_entries_to_another(
    added: list[tuple[int, int, int]], others: list[tuple[int, int, int]]
) -> None:
    ranges, into = _ranges(added), _ranges(others)
    for ledger in ranges.ledgers():
        for number, bits in ranges.chunks(ledger):
            into.add_chunk(ledger, number, bits)
    assert _entries(into) == _model(added) | _model(others) and into.entries == len(_entries(into))


@given(st.lists(_RANGE, max_size=12), st.integers(0, 2), _ENTRY)
def test_lookups_agree_with_membership(added: list[tuple[int, int, int]], ledger: int, entry: int) -> None:
    ranges = _ranges(added)
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
    assert start == min(
        (e for known, e in model if known == ledger and e > entry and (known, e - 1) not in model), default=None
    )
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


@given(st.lists(_RANGE, max_size=12), st.integers(0, 3), _ENTRY)
def test_keeping_what_is_below_a_count_removes_the_higher_entries_of_that_ledger(
    added: list[tuple[int, int, int]], ledger: int, count: int
) -> None:
    ranges = _ranges(added)
    whole = ranges.copy()
    ranges.keep_below(ledger, count)
    assert _entries(ranges) == {(known, e) for known, e in _model(added) if known != ledger or e < count}
    assert ranges.entries == len(_entries(ranges))
    assert ledger not in ranges.ledgers() or ranges.ranges_of(ledger)
    assert _entries(whole) == _model(added), "a copy is independent"


@given(st.lists(_RANGE, min_size=1, max_size=12), st.lists(_RANGE, max_size=5), _ENTRY)
def test_stored_chunks_are_those_of_the_present_entries(
    added: list[tuple[int, int, int]], later: list[tuple[int, int, int]], dropped: int
) -> None:
    ranges = _ranges(added)
    for ledger in ranges.ledgers():
        list(ranges.chunk_bytes(ledger, bytes))
    for ledger, first, extra in later:
        ranges.add(ledger, first, first + extra)
    ranges.drop_through(ranges.ledgers()[0], dropped)
    back = AckRanges()
    begun = 0
    for ledger in ranges.ledgers():
        stored = list(ranges.chunk_bytes(ledger, bytes))
        begun += sum(count for count, _ in stored)
        back.add_bits(ledger, b"".join(chunk for _, chunk in stored))
        last = stored[-1][1]
        assert any(last[-8:]) and {len(chunk) for _, chunk in stored[:-1]} <= {CHUNK_ENTRIES // 8}
        assert ranges.last_of(ledger) == ranges.ranges_of(ledger)[-1][1]
    assert back == ranges and back.entries == ranges.entries and begun == len(ranges) == len(list(ranges))


def test_only_changed_chunks_are_encoded_again() -> None:
    ranges = AckRanges()
    for chunk in range(10):
        ranges.add(3, chunk * CHUNK_ENTRIES + 7, chunk * CHUNK_ENTRIES + 7)
    encoded: list[bytes] = []

    def encode(bits: bytes) -> bytes:
        encoded.append(bits)
        return bits

    list(ranges.chunk_bytes(3, encode))
    assert len(encoded) == 10
    encoded.clear()
    ranges.add(3, 4 * CHUNK_ENTRIES, 4 * CHUNK_ENTRIES)
    ranges.add(3, 5 * CHUNK_ENTRIES + 7, 5 * CHUNK_ENTRIES + 7)
    list(ranges.chunk_bytes(3, encode))
    assert len(encoded) == 2, "the changed one, and the last"


@given(st.lists(_RANGE, max_size=12), _ENTRY, st.integers(1, 60), st.integers(1, 9))
def test_a_span_bridges_short_ranges_and_ends_before_long_ones(
    added: list[tuple[int, int, int]], first: int, others_max: int, bridged_max: int
) -> None:
    ranges = _ranges(added)
    model = {entry for ledger, entry in _model(added) if ledger == 0}
    while first in model:
        first += 1
    last, others, run = first - 1, 0, 0
    entry = first
    while others < others_max:
        if entry in model:
            run += 1
            if run > bridged_max:
                break
        else:
            others, run, last = others + 1, 0, entry
        entry += 1
    assert ranges.span(0, first, others_max, bridged_max) == last


def test_a_million_holes_take_a_byte_each() -> None:
    tracemalloc.start()
    try:
        ranges = AckRanges()
        ranges.add_bits(3, b"\x55" * 250_000)
        for entry in range(1, 2_000_000, CHUNK_ENTRIES):
            ranges.add(3, entry, entry)
        list(ranges.chunk_bytes(3, lambda bits: bytes(len(bits) * 11 // 8)))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert ranges.entries == 1_000_000 + 489 and len(ranges) == 1_000_000 - 489
    assert held < 1_200_000
