"""Who is away for a moment, and who for good."""

import math

from quire_bookie.model import BookieId
from quire_bookie.recovery.absences import Absences

A, B, C = (BookieId(name) for name in "abc")


def test_an_absence_counts_from_the_moment_at_which_it_began() -> None:
    absences = Absences({A, B}, 10.0)
    assert absences.away_s(A, 20.0) == 0.0
    absences.saw({A}, 30.0)
    absences.saw({A}, 35.0)
    assert absences.away_s(B, 40.0) == 10.0
    absences.saw({A, B}, 41.0)
    absences.saw({A}, 42.0)
    assert absences.away_s(B, 43.0) == 1.0, "it was there in between"


def test_one_that_was_never_seen_counts_from_the_start_on() -> None:
    absences = Absences((), 10.0)
    assert absences.away_s(C, 25.0) == 15.0


def test_a_persons_word_ends_the_waiting_until_the_bookie_registers_again() -> None:
    absences = Absences({A, B}, 0.0)
    absences.saw({A}, 1.0)
    absences.give_up({A})
    assert absences.away_s(B, 2.0) == absences.away_s(C, 2.0) == math.inf
    absences.saw({A, B}, 3.0)
    absences.saw((), 4.0)
    assert absences.away_s(A, 5.0) == absences.away_s(B, 5.0) == 1.0, "lost after the word, or back since"
    assert absences.away_s(C, 5.0) == math.inf
