"""Tests ensembles that break the rules of racks and zones, and the moves that correct them."""

from hypothesis import given
from hypothesis import strategies as st

from quire_bookie.model import BookieId
from quire_bookie.quorum.misplacement import best_move, lack_of_spread
from quire_bookie.quorum.placement import Cluster, SpreadRules, is_spread
from tests.sim.world import SimChance

BOOKIES = [BookieId(f"b{number}") for number in range(8)]
RACKS = Cluster({bookie: f"/zone{number % 2}/rack{number % 4}" for number, bookie in enumerate(BOOKIES)})


@given(
    members=st.permutations(BOOKIES),
    size=st.integers(1, 5),
    quorum=st.integers(1, 5),
    places=st.lists(st.sampled_from(["/x/a", "/x/b", "/y/a", "/c"]), min_size=8, max_size=8),
    racks=st.integers(1, 3),
    zones=st.integers(1, 2),
    seed=st.integers(0, 9),
)
def test_each_move_reduces_the_missing_racks_and_zones_until_none_helps(
    members: list[BookieId], size: int, quorum: int, places: list[str], racks: int, zones: int, seed: int
) -> None:
    quorum = min(quorum, size)
    cluster = Cluster(dict(zip(BOOKIES, places, strict=True)))
    rules = SpreadRules(racks, zones)
    ensemble = tuple(members[:size])
    lack = lack_of_spread(ensemble, quorum, cluster, rules)
    assert (lack == 0) == is_spread(ensemble, quorum, cluster, rules)
    for _ in range(40):
        move = best_move(ensemble, quorum, BOOKIES, SimChance(seed), cluster, rules)
        if move is None:
            break
        position, bookie = move
        assert bookie not in ensemble
        ensemble = (*ensemble[:position], bookie, *ensemble[position + 1 :])
        left = lack_of_spread(ensemble, quorum, cluster, rules)
        assert left < lack
        lack = left
    else:
        raise AssertionError("the moves do not end")


def test_equally_good_moves_are_spread_over_the_bookies() -> None:
    rules = SpreadRules(racks_min=2)
    ensemble = (BOOKIES[0], BOOKIES[4])
    chosen = {best_move(ensemble, 2, BOOKIES, SimChance(seed), RACKS, rules) for seed in range(40)}
    assert len(chosen) > 4
    assert best_move(ensemble, 2, ensemble, SimChance(1), RACKS, rules) is None, "no bookie is free"
    assert best_move((BOOKIES[0], BOOKIES[1]), 2, BOOKIES, SimChance(1), RACKS, rules) is None, "it is spread"
