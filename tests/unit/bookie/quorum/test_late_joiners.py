"""Tests the search for bookies that a dead writer put into the metadata, but may have sent nothing."""

from dataclasses import replace

from quire_bookie.model import BookieId, EntryId, LedgerMetadata, LedgerState, Segment
from quire_bookie.quorum.late_joiners import behind, late_joiners

A, B, C, D = (BookieId(name) for name in "abcd")


def ledger(*segments: tuple[int, tuple[BookieId, ...]]) -> LedgerMetadata:
    return LedgerMetadata(
        ensemble_size=3,
        write_quorum=3,
        ack_quorum=2,
        segments=tuple(Segment(EntryId(first), ensemble) for first, ensemble in segments),
        state=LedgerState.OPEN,
    )


def test_only_bookies_of_the_last_change_that_must_hold_confirmed_entries_are_late_joiners() -> None:
    changed = ledger((0, (A, B, C)), (10, (A, D, C)))
    assert late_joiners(changed, EntryId(10)) == [D]
    assert late_joiners(changed, EntryId(9)) == [], "a recovery sends it all entries of the segment"
    assert late_joiners(ledger((0, (A, B, C))), EntryId(5)) == []
    assert late_joiners(ledger((0, (A, B, D)), (4, (A, B, C)), (10, (D, B, C))), EntryId(20)) == [D]


def test_if_a_bookie_took_its_own_position_again_all_are_late_joiners() -> None:
    back = ledger((0, (A, B, C)), (10, (A, B, C)))
    assert late_joiners(back, EntryId(10)) == [A, B, C]
    assert late_joiners(back, EntryId(9)) == []


def test_a_bookie_that_reports_fewer_entries_than_its_share_is_behind() -> None:
    one = ledger((0, (A, B, C)))
    held = {A: EntryId(7), B: EntryId(4), C: EntryId(-1)}
    assert behind(one, EntryId(5), held) == [B, C]
    assert behind(one, EntryId(4), held) == [C]
    assert behind(one, EntryId(-1), held) == []
    assert behind(one, EntryId(5), {A: EntryId(7)}) == [], "a bookie without a response may hold all"
    striped = replace(one, write_quorum=2)
    assert behind(striped, EntryId(4), {C: EntryId(2)}) == [C], "4 belongs to B and C"
    assert behind(striped, EntryId(3), {C: EntryId(2)}) == [], "3 belongs to A and B"
    assert behind(ledger((0, (A, B, D)), (4, (A, B, C))), EntryId(3), {C: EntryId(-1)}) == []
