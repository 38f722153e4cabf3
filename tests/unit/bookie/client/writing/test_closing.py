"""Tests the consequences of a lost compare-and-set for a close."""

from dataclasses import replace

import pytest

from quire_bookie.client.writing.closing import AfterConflict, recovery_conflict, writer_conflict
from quire_bookie.model import BookieId, EntryId, LedgerMetadata, LedgerState, Segment

_A = Segment(EntryId(0), (BookieId("a"),))
_B = Segment(EntryId(0), (BookieId("b"),))
_OURS = LedgerMetadata(1, 1, 1, (_A,))
_RECOVERING = replace(_OURS, state=LedgerState.IN_RECOVERY)


def _closed(last: int, length: int) -> LedgerMetadata:
    return replace(_OURS, state=LedgerState.CLOSED, last_entry=EntryId(last), length=length)


@pytest.mark.parametrize(
    ("theirs", "outcome"),
    [
        (_closed(5, 50), AfterConflict.CLOSED_ALREADY),
        (_closed(4, 50), AfterConflict.CLOSED_OTHERWISE),
        (_closed(5, 49), AfterConflict.CLOSED_OTHERWISE),
        (_RECOVERING, AfterConflict.LOST_TO_RECOVERY),
        (replace(_OURS, custom={"new": b""}), AfterConflict.TRY_AGAIN),
        (replace(_OURS, segments=(_B,)), AfterConflict.START_OVER),
    ],
)
def test_a_writer_accepts_only_its_own_end(theirs: LedgerMetadata, outcome: AfterConflict) -> None:
    assert writer_conflict(_OURS, theirs, EntryId(5), 50) is outcome


@pytest.mark.parametrize(
    ("theirs", "outcome"),
    [
        (_closed(5, 50), AfterConflict.CLOSED_ALREADY),
        (_closed(9, 90), AfterConflict.CLOSED_ALREADY),
        (replace(_RECOVERING, custom={"new": b""}), AfterConflict.TRY_AGAIN),
        (replace(_RECOVERING, segments=(_B,)), AfterConflict.START_OVER),
    ],
)
def test_a_recovery_accepts_the_close_of_another_one(theirs: LedgerMetadata, outcome: AfterConflict) -> None:
    assert recovery_conflict(_RECOVERING, theirs, EntryId(5), 50) is outcome
