"""Tests the new segment of an ensemble change, and the consequences of another client's change of the metadata."""

from dataclasses import replace

import pytest

from quire_bookie.model import BookieId, EntryId, LedgerMetadata, LedgerState, Segment
from quire_bookie.quorum.ensemble_change import AfterLostChange, after_lost_change, with_replacements

_A, _B, _C, _D, _E = (BookieId(name) for name in "abcde")


def _metadata(*segments: tuple[int, tuple[BookieId, ...]]) -> LedgerMetadata:
    return LedgerMetadata(3, 3, 2, tuple(Segment(EntryId(first), ensemble) for first, ensemble in segments))


def test_a_change_appends_a_segment_with_the_new_bookie_at_the_position_of_the_lost_one() -> None:
    changed = with_replacements(_metadata((0, (_A, _B, _C))), EntryId(7), {1: _D})
    assert changed == _metadata((0, (_A, _B, _C)), (7, (_A, _D, _C)))


def test_a_change_at_the_start_of_the_last_segment_replaces_it() -> None:
    changed = with_replacements(_metadata((0, (_A, _B, _C)), (7, (_A, _D, _C))), EntryId(7), {0: _B, 2: _E})
    assert changed == _metadata((0, (_A, _B, _C)), (7, (_B, _D, _E)))


def test_a_bookie_that_takes_its_own_position_again_begins_a_segment() -> None:
    changed = with_replacements(_metadata((0, (_A, _B, _C))), EntryId(3), {2: _C})
    assert changed == _metadata((0, (_A, _B, _C)), (3, (_A, _B, _C)))


def test_a_bookie_cannot_hold_two_positions() -> None:
    with pytest.raises(AssertionError):
        with_replacements(_metadata((0, (_A, _B, _C))), EntryId(3), {2: _A})


_BASE = _metadata((0, (_A, _B, _C)), (5, (_A, _B, _D)))
_APPENDED = with_replacements(_BASE, EntryId(9), {0: _E})
_REPLACED = with_replacements(_BASE, EntryId(5), {0: _E})


def _repaired(metadata: LedgerMetadata) -> LedgerMetadata:
    """Return metadata in which re-replication put another bookie into the first segment."""
    return replace(metadata, segments=(Segment(EntryId(0), (_A, _E, _C)), *metadata.segments[1:]))


@pytest.mark.parametrize("proposed", [_APPENDED, _REPLACED])
@pytest.mark.parametrize(
    ("found", "meaning"),
    [
        (_BASE, AfterLostChange.PROPOSE_AGAIN),
        (_repaired(_BASE), AfterLostChange.PROPOSE_AGAIN),
        (replace(_BASE, custom={"note": b"x"}), AfterLostChange.PROPOSE_AGAIN),
        (replace(_BASE, state=LedgerState.IN_RECOVERY), AfterLostChange.FENCED),
        (replace(_BASE, state=LedgerState.CLOSED, last_entry=EntryId(6)), AfterLostChange.CLOSED),
        (_metadata((0, (_A, _B, _C)), (5, (_A, _B, _E))), AfterLostChange.LOST),
        (_metadata((0, (_A, _B, _C)), (6, (_A, _B, _D))), AfterLostChange.LOST),
        (_metadata((0, (_A, _B, _C))), AfterLostChange.LOST),
        (_metadata((0, (_A, _B, _C)), (3, (_A, _B, _E)), (5, (_A, _B, _D))), AfterLostChange.LOST),
    ],
)
def test_a_lost_change_is_repeated_only_after_changes_before_the_segment_being_written(
    proposed: LedgerMetadata, found: LedgerMetadata, meaning: AfterLostChange
) -> None:
    assert after_lost_change(_BASE, proposed, found) is meaning


@pytest.mark.parametrize("proposed", [_APPENDED, _REPLACED])
def test_a_change_of_unknown_outcome_is_recognised_even_after_a_later_repair(proposed: LedgerMetadata) -> None:
    assert after_lost_change(_BASE, proposed, proposed) is AfterLostChange.TOOK_EFFECT
    assert after_lost_change(_BASE, proposed, _repaired(proposed)) is AfterLostChange.TOOK_EFFECT


@pytest.mark.parametrize("state", [LedgerState.IN_RECOVERY, LedgerState.CLOSED])
def test_a_change_that_took_effect_before_a_recovery_does_not_save_the_writer(state: LedgerState) -> None:
    assert after_lost_change(_BASE, _APPENDED, replace(_APPENDED, state=state)) in (
        AfterLostChange.FENCED,
        AfterLostChange.CLOSED,
    )
