"""The choice of an ensemble."""

import random

import pytest

from quire_bookie.env.chance import Chance
from quire_bookie.errors import NotEnoughBookiesError
from quire_bookie.model import BookieId
from quire_bookie.quorum.placement import choose_ensemble


class _Seeded:
    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.uniform = self._random.uniform
        self.token = self._random.randbytes
        self.sample = self._random.sample


def _chance(seed: int = 1) -> Chance:
    return _Seeded(seed)


def _bookies(*names: str) -> set[BookieId]:
    return {BookieId(name) for name in names}


def test_members_are_distinct_candidates() -> None:
    for seed in range(50):
        chosen = choose_ensemble(_bookies("a", "b", "c", "d"), 3, _chance(seed))
        assert len(set(chosen)) == 3
        assert set(chosen) <= _bookies("a", "b", "c", "d")


def test_every_candidate_gets_its_turn_in_every_position() -> None:
    seen = {choose_ensemble(_bookies("a", "b", "c"), 2, _chance(seed)) for seed in range(200)}
    assert len(seen) == 6


def test_equal_chance_gives_equal_choice_whatever_the_order_of_the_candidates() -> None:
    names = [f"b{i}" for i in range(20)]
    one = choose_ensemble([BookieId(n) for n in names], 5, _chance(3))
    other = choose_ensemble([BookieId(n) for n in reversed(names)], 5, _chance(3))
    assert one == other


def test_bookies_to_avoid_are_taken_only_when_the_others_do_not_suffice() -> None:
    for seed in range(50):
        assert BookieId("d") not in choose_ensemble(_bookies("a", "b", "c", "d"), 3, _chance(seed), avoid=_bookies("d"))
    chosen = choose_ensemble(_bookies("a", "b", "c"), 3, _chance(), avoid=_bookies("b", "c"))
    assert set(chosen) == _bookies("a", "b", "c")


def test_too_few_candidates_are_refused_with_both_numbers() -> None:
    with pytest.raises(NotEnoughBookiesError, match=r"3 .* 2"):
        choose_ensemble(_bookies("a", "b"), 3, _chance(), avoid=_bookies("a"))
