"""Tests how long bookies count as absent, when they are given up, and when they count as lost."""

import math

from quire_bookie.model import BookieId
from quire_bookie.recovery.bookie_absences import BookieAbsences, LostBookies

A, B, C = (BookieId(name) for name in "abc")


def test_an_absence_counts_from_its_beginning() -> None:
    absences = BookieAbsences({A, B}, 10.0)
    assert absences.away_s(A, 20.0) == 0.0
    absences.update({A}, 30.0)
    absences.update({A}, 35.0)
    assert absences.away_s(B, 40.0) == 10.0
    absences.update({A, B}, 41.0)
    absences.update({A}, 42.0)
    assert absences.away_s(B, 43.0) == 1.0, "it was registered in between"


def test_a_bookie_that_was_never_seen_counts_from_the_start() -> None:
    absences = BookieAbsences((), 10.0)
    assert absences.away_s(C, 25.0) == 15.0


def test_giving_up_ends_the_wait_until_the_bookie_registers_again() -> None:
    absences = BookieAbsences({A, B}, 0.0)
    absences.update({A}, 1.0)
    absences.give_up({A})
    assert absences.away_s(B, 2.0) == absences.away_s(C, 2.0) == math.inf
    absences.update({A, B}, 3.0)
    absences.update((), 4.0)
    assert absences.away_s(A, 5.0) == absences.away_s(B, 5.0) == 1.0, (
        "lost after bookies were given up, or back since then"
    )
    assert absences.away_s(C, 5.0) == math.inf


def test_a_bookie_is_lost_after_the_delay_and_audited_once() -> None:
    lost = LostBookies()
    lost.update({A, B}, {A, B}, 0.0)
    lost.update({A, B}, {A}, 10.0)
    assert lost.to_audit(600, 609.9) == set()
    assert lost.next_s(600, 20.0) == 590.0
    assert lost.to_audit(600, 610.0) == {B}
    lost.audited({B})
    assert lost.to_audit(600, 700.0) == set()
    assert lost.next_s(600, 20.0) is None
    lost.audit_again()
    assert lost.to_audit(600, 700.0) == {B}


def test_a_returning_bookie_is_not_lost_and_its_delay_restarts() -> None:
    lost = LostBookies()
    lost.update({A}, set(), 0.0)
    lost.update({A}, {A}, 500.0)
    lost.update({A}, set(), 501.0)
    assert lost.lost(600, 1100.0) == set()
    assert lost.lost(600, 1101.0) == {A}
    lost.returned({A})
    assert lost.missing == set()


def test_giving_up_needs_no_delay() -> None:
    lost = LostBookies()
    lost.update({A, B}, {A}, 5.0)
    assert lost.lost(600, 5.0, at_once=True) == {B}
    assert lost.lost(0, 5.0) == {B}


def test_a_bookie_without_ledgers_and_cookie_is_not_missing() -> None:
    lost = LostBookies()
    lost.update({A}, set(), 0.0)
    lost.update(set(), set(), 1.0)
    assert lost.lost(0, 2.0) == set()
