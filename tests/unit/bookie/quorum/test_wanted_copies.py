"""Tests the wanted copies of ledgers, and the metadata of ledgers with more copies."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire_bookie.limits import ENSEMBLE_SIZE_MAX
from quire_bookie.metadata.ledger_metadata import decode_ledger_metadata, encode_ledger_metadata
from quire_bookie.model import BookieId, EntryId, LedgerMetadata, LedgerState, Segment
from quire_bookie.quorum.wanted_copies import (
    WANTED_WRITE_QUORUM,
    missing_copies,
    narrowed,
    wanted_copies,
    wanted_mark,
    with_more_copies,
)
from quire_bookie.quorum.write_set import write_set

A, B, C, D, E = (BookieId(name) for name in "abcde")
NARROW = LedgerMetadata(
    ensemble_size=2,
    write_quorum=2,
    ack_quorum=2,
    segments=(Segment(EntryId(0), (A, B)), Segment(EntryId(5), (B, C)), Segment(EntryId(10), (A, C))),
    state=LedgerState.CLOSED,
    last_entry=EntryId(9),
    custom={"component": b"managed-ledger", **wanted_mark(3)},
)


@given(st.integers(1, 9), st.integers(0, 8), st.integers(0, 8), st.integers(0, 12))
def test_a_narrow_ledger_keeps_its_ack_quorum_and_is_never_striped_below_its_write_quorum(
    ensemble: int, less: int, lesser: int, writable: int
) -> None:
    write = max(1, ensemble - less)
    ack = max(1, write - lesser)
    size, copies = narrowed(ensemble, write, ack, writable)
    assert ack <= copies <= size <= ensemble and copies <= write
    assert (size, copies) == (ensemble, write) if writable >= ensemble else size == max(ack, writable)
    assert copies in (write, size), "fewer copies than configured: every bookie has every entry"


@pytest.mark.parametrize(
    ("metadata", "unmarked", "wanted"),
    [
        (NARROW, 0, 3),
        (replace(NARROW, custom={}), 0, 2),
        (replace(NARROW, custom={}), 3, 2),
        (replace(NARROW, custom={"component": b"managed-ledger"}), 0, 2),
        (replace(NARROW, custom={"component": b"managed-ledger"}), 3, 3),
        (replace(NARROW, custom={"component": b"schema"}), 3, 3),
        (replace(NARROW, custom={WANTED_WRITE_QUORUM: b"1"}), 0, 2),
        (replace(NARROW, custom={WANTED_WRITE_QUORUM: b"three"}), 0, 2),
        (replace(NARROW, custom={WANTED_WRITE_QUORUM: b"9" * 100}), 0, 2),
        (replace(NARROW, custom={WANTED_WRITE_QUORUM: b"999"}), 0, 64),
        (replace(NARROW, ensemble_size=4), 0, 2),
        (replace(NARROW, ensemble_size=3, write_quorum=3), 0, 3),
    ],
)
def test_the_wanted_copies_are_found_in_the_metadata(metadata: LedgerMetadata, unmarked: int, wanted: int) -> None:
    assert wanted_copies(metadata, unmarked) == wanted
    assert missing_copies(metadata, unmarked) == wanted - metadata.write_quorum


def test_raising_adds_a_bookie_to_each_segment_and_changes_nothing_else() -> None:
    plan = {EntryId(0): (C,), EntryId(5): (D,), EntryId(10): (B,)}
    raised = with_more_copies(NARROW, plan)
    assert raised is not None
    assert (raised.ensemble_size, raised.write_quorum, raised.ack_quorum) == (3, 3, 2)
    assert [segment.ensemble for segment in raised.segments] == [(A, B, C), (B, C, D), (A, C, B)]
    assert missing_copies(raised) == 0
    same = replace(raised, segments=NARROW.segments, ensemble_size=2, write_quorum=2)
    assert same == NARROW
    assert decode_ledger_metadata(encode_ledger_metadata(raised)) == raised


@given(st.integers(0, 14))
def test_a_reader_with_the_old_metadata_finds_every_entry(number: int) -> None:
    raised = with_more_copies(NARROW, {EntryId(0): (C,), EntryId(5): (D,), EntryId(10): (B,)})
    assert raised is not None
    entry = EntryId(number)
    before, after = NARROW.ensemble_of(entry), raised.ensemble_of(entry)
    has_it = {after[position] for position in write_set(entry, 3, 3)}
    # With the old ensemble or the new one, under the old quorums.
    assert {before[position] for position in write_set(entry, 2, 2)} <= has_it
    assert {after[position] for position in write_set(entry, 2, 2)} <= has_it


@pytest.mark.parametrize(
    ("metadata", "plan"),
    [
        (replace(NARROW, state=LedgerState.OPEN), {EntryId(0): (D,), EntryId(5): (D,), EntryId(10): (D,)}),
        (replace(NARROW, state=LedgerState.IN_RECOVERY), {EntryId(0): (D,), EntryId(5): (D,), EntryId(10): (D,)}),
        (replace(NARROW, ensemble_size=3), {EntryId(0): (D,), EntryId(5): (D,), EntryId(10): (D,)}),
        (NARROW, {EntryId(0): (D,), EntryId(5): (D,)}),
        (NARROW, {EntryId(0): (D,), EntryId(5): (D,), EntryId(9): (D,)}),
        (NARROW, {EntryId(0): (D,), EntryId(5): (D, E), EntryId(10): (D,)}),
        (NARROW, {EntryId(0): (A,), EntryId(5): (D,), EntryId(10): (D,)}),
        (NARROW, {EntryId(0): (D, D), EntryId(5): (D, E), EntryId(10): (D, E)}),
    ],
)
def test_a_ledger_that_may_not_be_raised_is_unchanged(
    metadata: LedgerMetadata, plan: dict[EntryId, tuple[BookieId, ...]]
) -> None:
    assert with_more_copies(metadata, plan) is None


@pytest.mark.parametrize(
    ("marked", "copies"), [(ENSEMBLE_SIZE_MAX, ENSEMBLE_SIZE_MAX), (ENSEMBLE_SIZE_MAX + 1, ENSEMBLE_SIZE_MAX)]
)
def test_no_mark_wants_more_copies_than_an_ensemble_may_have(marked: int, copies: int) -> None:
    assert wanted_copies(replace(NARROW, custom=wanted_mark(marked))) == copies
