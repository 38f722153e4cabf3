"""Tests how long bookies count as absent, and when they are given up."""

import math

from quire_bookie.model import BookieId
from quire_bookie.recovery.bookie_absences import BookieAbsences

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
