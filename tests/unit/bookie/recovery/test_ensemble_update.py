"""Tests which metadata may name a new replica (pure part). The compare-and-set itself is tested with the repair."""

from dataclasses import replace

from quire_bookie.model import BookieId, EntryId, LedgerMetadata, LedgerState, Segment
from quire_bookie.recovery.ensemble_update import with_replaced
from quire_bookie.recovery.fragments import closed_fragments

A, B, C, D, E = (BookieId(name) for name in "abcde")
LEDGER = LedgerMetadata(
    ensemble_size=3,
    write_quorum=3,
    ack_quorum=2,
    segments=(Segment(EntryId(0), (A, B, C)), Segment(EntryId(5), (A, B, D))),
    state=LedgerState.CLOSED,
    last_entry=EntryId(9),
)
FIRST, SECOND = closed_fragments(LEDGER)


def test_only_the_fragment_that_was_copied_changes() -> None:
    changed = with_replaced(LEDGER, FIRST, {2: E})
    assert changed is not None
    assert changed.segments == (Segment(EntryId(0), (A, B, E)), LEDGER.segments[1])
    assert replace(changed, segments=LEDGER.segments) == LEDGER, "nothing else does"


def test_a_bookie_never_counts_as_two_replicas() -> None:
    assert with_replaced(LEDGER, FIRST, {2: A}) is None
    assert with_replaced(LEDGER, FIRST, {1: E, 2: E}) is None


def test_a_fragment_that_is_another_by_now_is_left_alone() -> None:
    others = [
        replace(LEDGER, segments=(Segment(EntryId(0), (A, B, D)), LEDGER.segments[1])),
        replace(LEDGER, segments=(LEDGER.segments[0], Segment(EntryId(4), (A, B, D)))),
        replace(LEDGER, segments=LEDGER.segments[:1]),
    ]
    for other in others:
        assert with_replaced(other, FIRST, {2: E}) is None


def test_the_last_segment_of_an_open_ledger_is_not_changed() -> None:
    for state in (LedgerState.OPEN, LedgerState.IN_RECOVERY):
        opened = replace(LEDGER, state=state)
        assert with_replaced(opened, SECOND, {2: E}) is None
        assert with_replaced(opened, FIRST, {2: E}) is not None
