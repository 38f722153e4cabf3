"""Tests when an open ledger may be taken over from its writer."""

from dataclasses import replace

import pytest

from quire_bookie.metadata.under_replication import Mark
from quire_bookie.model import BookieId, EntryId, LedgerId, Segment
from quire_bookie.recovery.open_ledgers import OpenTails, TailAdvice, TailObservation

A, B, C, D = (BookieId(name) for name in "abcd")
LEDGER = LedgerId(1)
GONE = TailObservation(Segment(EntryId(0), (A, B, C)), frozenset({C}), frozenset(), False, EntryId(5))
LAGS = replace(GONE, gone=frozenset(), named=frozenset({C}), lags=True)


def test_a_whole_ledger_is_fine() -> None:
    tails = OpenTails(30)
    seen = replace(GONE, gone=frozenset())
    assert tails.advise(LEDGER, seen, {A, B, C}, 0) is TailAdvice.FINE
    assert len(tails) == 0


def test_a_marked_bookie_keeps_the_mark_of_an_open_ledger() -> None:
    tails = OpenTails(30)
    assert tails.advise(LEDGER, replace(LAGS, lags=False), {A, B, C}, 0) is TailAdvice.WAIT
    assert tails.advise(LEDGER, replace(LAGS, lags=False), {A, B, C}, 1000) is TailAdvice.WAIT


def test_a_marked_bookie_that_is_written_to_keeps_no_mark() -> None:
    tails = OpenTails(30)
    mark = Mark(LEDGER, (C,), 1000, 0)
    tails.note_extent(LEDGER, GONE.segment, mark, EntryId(7))
    assert tails.extent(LEDGER, GONE.segment, mark) == 7
    assert tails.extent(LEDGER, GONE.segment, replace(mark, version=1)) is None  # marked again
    # another mark, whose versions start again
    assert tails.extent(LEDGER, GONE.segment, replace(mark, marked_ms=2000)) is None
    later = Segment(EntryId(6), (A, B, C))
    assert tails.extent(LEDGER, later, mark) is None
    assert tails.note_extent(LEDGER, later, mark, EntryId(3)) == tails.extent(LEDGER, later, mark) == 5
    assert tails.advise(LEDGER, replace(LAGS, lags=False, served=True), {A, B, C}, 0) is TailAdvice.FINE
    assert tails.advise(LEDGER, replace(LAGS, served=True), {A, B, C}, 0) is TailAdvice.WAIT
    tails.forget(LEDGER)
    assert tails.extent(LEDGER, later, mark) is None


def test_a_ledger_without_a_bookie_is_taken_over_after_the_grace_period_and_not_before() -> None:
    tails = OpenTails(30)
    assert tails.advise(LEDGER, GONE, {A, B, D}, 0) is TailAdvice.WAIT
    assert tails.advise(LEDGER, GONE, {A, B, D}, 29.9) is TailAdvice.WAIT
    assert tails.advise(LEDGER, GONE, {A, B, D}, 30) is TailAdvice.RECOVER


def test_an_idle_ledger_with_too_few_copies_is_closed_once_a_bookie_can_take_one_more() -> None:
    tails = OpenTails(30)
    narrow = replace(GONE, segment=Segment(EntryId(0), (A, B)), gone=frozenset(), narrow=True)
    assert tails.advise(LEDGER, narrow, {A, B}, 0) is TailAdvice.WAIT
    assert tails.advise(LEDGER, narrow, {A, B}, 30) is TailAdvice.NO_BOOKIE
    assert tails.advise(LEDGER, narrow, {A, B, C}, 31) is TailAdvice.RECOVER
    grown = replace(narrow, lac=EntryId(6))
    assert tails.advise(LEDGER, grown, {A, B, C}, 32) is TailAdvice.WAIT, (
        "its writer is active and begins another segment"
    )


def test_no_ledger_is_fenced_if_closing_would_not_help() -> None:
    tails = OpenTails(30)
    tails.advise(LEDGER, GONE, {A, B}, 0)
    assert tails.advise(LEDGER, GONE, {A, B}, 100) is TailAdvice.NO_BOOKIE
    assert tails.advise(LEDGER, GONE, {A, B, D}, 101) is TailAdvice.RECOVER


def test_a_writer_that_changed_its_ensemble_is_left_alone() -> None:
    tails = OpenTails(30)
    tails.advise(LEDGER, GONE, {A, B, D}, 0)
    moved = replace(GONE, segment=Segment(EntryId(6), (A, B, C)))
    assert tails.advise(LEDGER, moved, {A, B, D}, 40) is TailAdvice.WAIT
    assert tails.advise(LEDGER, moved, {A, B, D}, 71) is TailAdvice.RECOVER


def test_a_replica_that_lags_is_left_to_a_writer_that_goes_on() -> None:
    tails = OpenTails(30)
    for step in range(10):
        seen = replace(LAGS, lac=EntryId(5 + step))
        assert tails.advise(LEDGER, seen, {A, B, C}, 40.0 * step) is TailAdvice.WAIT
    assert tails.advise(LEDGER, replace(LAGS, lac=EntryId(14)), {A, B, C}, 1000) is TailAdvice.RECOVER


def test_a_forgotten_ledger_starts_its_grace_period_again() -> None:
    tails = OpenTails(30)
    tails.advise(LEDGER, GONE, {A, B, D}, 0)
    tails.forget(LEDGER)
    assert tails.advise(LEDGER, GONE, {A, B, D}, 100) is TailAdvice.WAIT


def test_a_growing_ledger_is_checked_soon_and_an_idle_one_later_each_time() -> None:
    tails = OpenTails(30.0)
    waits = []
    for step in range(8):
        tails.advise(LEDGER, replace(LAGS, lac=EntryId(min(step, 4))), {A, B, C}, 5.0 * step)
        waits.append(tails.wait_s(LEDGER))
    assert waits == [5, 5, 5, 5, 5, 10, 20, 40]
    tails.forget(LEDGER)
    tails.advise(LEDGER, LAGS, {A, B, C}, 100)
    assert tails.wait_s(LEDGER) == 5


def test_ledgers_that_another_process_ended_are_not_remembered_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire_bookie.recovery.open_ledgers.REPLICATION_REMEMBERED_MAX", 3)
    tails = OpenTails(30)
    for number in range(10):
        assert tails.advise(LedgerId(number), GONE, {A, B, D}, number) is TailAdvice.WAIT
    assert len(tails) == 3
    assert tails.advise(LedgerId(9), GONE, {A, B, D}, 39) is TailAdvice.RECOVER
    assert tails.advise(LedgerId(0), GONE, {A, B, D}, 39) is TailAdvice.WAIT, (
        "it was forgotten: its grace period starts again"
    )
