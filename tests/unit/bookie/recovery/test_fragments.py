"""Tests which entries a replica must hold and which it lacks: tables, and a comparison with a naive model."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire_bookie.limits import LACKING_RANGES_MAX
from quire_bookie.model import BookieId, EntryId, LedgerMetadata, LedgerState, Segment
from quire_bookie.quorum.write_set import write_set
from quire_bookie.recovery.fragments import Fragment, closed_fragments, lacking, merged, same_instance, union
from quire_bookie.wire import availability
from quire_bookie.wire.availability import Availability

A, B, C, D = (BookieId(name) for name in "abcd")


def ledger(*segments: tuple[int, str], state: LedgerState = LedgerState.OPEN, last: int = -1) -> LedgerMetadata:
    return LedgerMetadata(
        ensemble_size=3,
        write_quorum=3,
        ack_quorum=2,
        segments=tuple(Segment(EntryId(first), tuple(map(BookieId, names))) for first, names in segments),
        state=state,
        last_entry=EntryId(last),
    )


def spans(metadata: LedgerMetadata) -> list[tuple[int, int, str]]:
    return [(f.first, f.last, "".join(f.ensemble)) for f in closed_fragments(metadata)]


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        (ledger((0, "abc")), []),
        (ledger((0, "abc"), state=LedgerState.IN_RECOVERY), []),
        (ledger((0, "abc"), (7, "abd")), [(0, 6, "abc")]),
        (ledger((0, "abc"), state=LedgerState.CLOSED), []),
        (ledger((0, "abc"), state=LedgerState.CLOSED, last=4), [(0, 4, "abc")]),
        (ledger((0, "abc"), (5, "abd"), state=LedgerState.CLOSED, last=4), [(0, 4, "abc")]),
        (ledger((0, "abc"), (5, "abd"), state=LedgerState.CLOSED, last=5), [(0, 4, "abc"), (5, 5, "abd")]),
    ],
)
def test_only_settled_entries_form_fragments(metadata: LedgerMetadata, expected: list[tuple[int, int, str]]) -> None:
    assert spans(metadata) == expected


@st.composite
def fragments(draw: st.DrawFn) -> Fragment:
    size = draw(st.integers(1, 6))
    quorum = draw(st.integers(1, size))
    first = draw(st.integers(0, 50))
    last = first + draw(st.integers(0, 60))
    return Fragment(EntryId(first), EntryId(last), tuple(BookieId(f"b{n}") for n in range(size)), quorum)


def must_hold(fragment: Fragment, position: int) -> set[int]:
    size = len(fragment.ensemble)
    return {
        entry
        for entry in range(fragment.first, fragment.last + 1)
        if position in write_set(EntryId(entry), size, fragment.write_quorum)
    }


def ids(ranges: object) -> list[int]:
    return [entry for first, last in ranges for entry in range(first, last + 1)]  # type: ignore[attr-defined]


@given(fragments(), st.data())
def test_stored_runs_and_ends_are_those_of_the_write_sets(fragment: Fragment, data: st.DataObject) -> None:
    position = data.draw(st.integers(0, len(fragment.ensemble) - 1))
    expected = sorted(must_hold(fragment, position))
    assert ids(fragment.stored(position)) == expected
    assert fragment.ends(position) == ((expected[0], expected[-1]) if expected else None)
    assert all(fragment.holds(position, EntryId(entry)) for entry in expected)


@given(fragments(), st.data(), st.booleans())
def test_lacking_entries_are_the_required_ones_minus_the_held_ones(
    fragment: Fragment, data: st.DataObject, grouped: bool
) -> None:
    position = data.draw(st.integers(0, len(fragment.ensemble) - 1))
    held = data.draw(st.sets(st.integers(0, 120)))
    runs = list(union((EntryId(entry), EntryId(entry)) for entry in held))
    encoded = availability.encode(runs, 64 + 24 * (2 if grouped else 1000))
    named = Availability(()) if encoded is None else availability.decode(encoded)
    known = held if encoded is not None else set()
    assert ids(lacking(fragment, position, named)) == sorted(must_hold(fragment, position) - known)


def test_very_many_ranges_become_one_that_spans_them() -> None:
    ranges = [(EntryId(2 * n), EntryId(2 * n)) for n in range(LACKING_RANGES_MAX + 5)]
    found = merged(ranges)
    assert len(found) <= LACKING_RANGES_MAX
    assert set(ids(ranges)) <= set(ids(found))
    assert merged(ranges[:3]) == tuple(ranges[:3])


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 5))))
def test_a_union_has_the_same_ids_once(parts: list[tuple[int, int]]) -> None:
    ranges = [(EntryId(first), EntryId(first + more)) for first, more in parts]
    found = union(ranges)
    assert ids(found) == sorted(set(ids(ranges)))
    assert all(after[0] > before[1] + 1 for before, after in pairwise(found))


def test_another_ledger_under_the_same_id_is_another_instance() -> None:
    one = replace(ledger((0, "abc")), c_token=5)
    assert same_instance(one, replace(one, state=LedgerState.CLOSED, last_entry=EntryId(3)))
    assert not same_instance(one, replace(one, c_token=6))
    assert same_instance(one, replace(one, c_token=0)), "BookKeeper's own client drops the token with each update"
    assert not same_instance(one, replace(one, password=b"x"))
    assert not same_instance(one, replace(one, custom={"a": b"b"}))
    assert same_instance(one, replace(one, ensemble_size=4, write_quorum=4)), "raised to more copies"
    assert not same_instance(one, replace(one, ensemble_size=4, write_quorum=2))
