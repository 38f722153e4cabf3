"""Tests the choice of ensembles, of replacements, and of moves that correct misplaced ensembles."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire_bookie.env.chance import Chance
from quire_bookie.errors import NotEnoughBookiesError, PlacementError
from quire_bookie.model import BookieId
from quire_bookie.quorum.placement import (
    Cluster,
    SpreadRules,
    best_move,
    choose_ensemble,
    choose_replacements,
    is_spread,
    lack_of_spread,
)
from quire_bookie.quorum.write_set import write_sets
from tests.sim.world import SimChance


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


def test_every_candidate_is_chosen_for_every_position() -> None:
    seen = {choose_ensemble(_bookies("a", "b", "c"), 2, _chance(seed)) for seed in range(200)}
    assert len(seen) == 6


def test_equal_randomness_gives_equal_choices_in_any_order_of_the_candidates() -> None:
    names = [f"b{i}" for i in range(20)]
    one = choose_ensemble([BookieId(n) for n in names], 5, _chance(3))
    other = choose_ensemble([BookieId(n) for n in reversed(names)], 5, _chance(3))
    assert one == other


def test_bookies_to_avoid_are_chosen_only_if_the_others_do_not_suffice() -> None:
    for seed in range(50):
        assert BookieId("d") not in choose_ensemble(_bookies("a", "b", "c", "d"), 3, _chance(seed), avoid=_bookies("d"))
    chosen = choose_ensemble(_bookies("a", "b", "c"), 3, _chance(), avoid=_bookies("b", "c"))
    assert set(chosen) == _bookies("a", "b", "c")


def test_too_few_candidates_are_refused_with_both_numbers() -> None:
    with pytest.raises(NotEnoughBookiesError, match=r"3 .* 2"):
        choose_ensemble(_bookies("a", "b"), 3, _chance(), avoid=_bookies("a"))


# ---- replacements
_A, _B, _C, _D, _E = (BookieId(name) for name in "abcde")


def test_a_replacement_is_never_a_member_that_kept_its_position() -> None:
    for seed in range(50):
        chosen = choose_replacements(_bookies("a", "b", "d", "e"), (_A, _B, _C), {2}, _chance(seed))
        assert chosen in ({2: _D}, {2: _E})


def test_several_positions_get_distinct_bookies_as_far_as_there_are_any() -> None:
    for seed in range(50):
        both = choose_replacements(_bookies("c", "d", "e"), (_A, _B, _C), {0, 1}, _chance(seed))
        assert both.keys() == {0, 1}
        assert set(both.values()) == {_D, _E}
    assert len(choose_replacements(_bookies("c", "d"), (_A, _B, _C), {0, 1}, _chance())) == 1
    assert choose_replacements(_bookies("c"), (_A, _B, _C), {0, 1}, _chance()) == {}


def test_the_former_bookie_is_preferred_for_its_position_unless_it_is_to_be_avoided() -> None:
    for seed in range(20):
        assert choose_replacements(_bookies("b", "d"), (_A, _B, _C), {1}, _chance(seed)) == {1: _B}
        avoiding = choose_replacements(_bookies("b", "d"), (_A, _B, _C), {1}, _chance(seed), avoid=_bookies("b"))
        assert avoiding == {1: _D}
    assert choose_replacements(_bookies("b"), (_A, _B, _C), {1}, _chance(), avoid=_bookies("b")) == {1: _B}


# ---- racks and zones
def _in_racks(**places: str) -> Cluster:
    return Cluster({BookieId(name): place for name, place in places.items()})


_TWO_RACKS = _in_racks(a="/r1", b="/r1", c="/r1", d="/r2")
_ZONES = _in_racks(a="/z1/r1", b="/z1/r2", c="/z2/r1", d="/z2/r2", e="/z3/r1", f="/z3/r2")


def test_the_second_rack_is_always_in_the_ensemble_if_two_are_wanted() -> None:
    rules = SpreadRules(racks_min=2)
    for seed in range(50):
        chosen = choose_ensemble(_bookies("a", "b", "c", "d"), 2, _chance(seed), cluster=_TWO_RACKS, rules=rules)
        assert _D in chosen
        assert is_spread(chosen, 2, _TWO_RACKS, rules)


def test_three_zones_hold_one_bookie_each() -> None:
    for seed in range(50):
        chosen = choose_ensemble(_bookies(*"abcdef"), 3, _chance(seed), cluster=_ZONES)
        assert {_ZONES.zone_of(bookie) for bookie in chosen} == {"z1", "z2", "z3"}


def test_racks_of_the_same_name_in_two_zones_are_two_racks() -> None:
    assert _ZONES.rack_of(_A) != _ZONES.rack_of(_C)
    assert _ZONES.zone_of(_A) != _ZONES.zone_of(_C)


def test_rules_that_cannot_be_satisfied_are_a_preference_unless_they_are_enforced() -> None:
    one_rack = _in_racks(a="/r1", b="/r1", c="/r1")
    wanted = SpreadRules(racks_min=2)
    assert len(choose_ensemble(_bookies("a", "b", "c"), 3, _chance(), cluster=one_rack, rules=wanted)) == 3
    with pytest.raises(NotEnoughBookiesError, match="2 racks"):
        choose_ensemble(
            _bookies("a", "b", "c"), 3, _chance(), cluster=one_rack, rules=SpreadRules(racks_min=2, enforce=True)
        )


def test_an_enforced_rule_has_priority_over_avoiding_a_bookie() -> None:
    rules = SpreadRules(racks_min=2, enforce=True)
    for seed in range(20):
        candidates = _bookies("a", "b", "c", "d")
        chosen = choose_ensemble(candidates, 2, _chance(seed), avoid={_D}, cluster=_TWO_RACKS, rules=rules)
        assert _D in chosen


def test_a_position_stays_empty_if_an_enforced_rule_allows_no_candidate() -> None:
    rules = SpreadRules(racks_min=2, enforce=True)
    cluster = _in_racks(a="/r1", b="/r2", c="/r1", d="/r2")
    replace = {"cluster": cluster, "rules": rules}
    assert choose_replacements({_C}, (_A, _B), {1}, _chance(), **replace) == {}  # type: ignore[arg-type]
    assert choose_replacements({_C, _D}, (_A, _B), {1}, _chance(), **replace) == {1: _D}  # type: ignore[arg-type]


def test_a_replacement_comes_from_the_zone_that_the_others_lack() -> None:
    for seed in range(30):
        chosen = choose_replacements(_bookies("b", "d", "f"), (_A, _C, _E), {1}, _chance(seed), cluster=_ZONES)
        assert chosen == {1: _D}


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 5), st.integers(1, 4), st.data())
def test_enforced_choices_satisfy_the_rules_or_are_refused(
    seed: int, size: int, racks: int, data: st.DataObject
) -> None:
    write_quorum = data.draw(st.integers(1, size))
    names = [BookieId(f"b{number}") for number in range(data.draw(st.integers(size, 9)))]
    cluster = Cluster({name: f"/z{number % 2}/r{number % racks}" for number, name in enumerate(names)})
    rules = SpreadRules(data.draw(st.integers(1, 3)), data.draw(st.integers(1, 2)), enforce=True)
    chance = _chance(seed)
    try:
        chosen = choose_ensemble(names, size, chance, write_quorum=write_quorum, cluster=cluster, rules=rules)
    except NotEnoughBookiesError:
        return
    assert len(set(chosen)) == size
    assert is_spread(chosen, write_quorum, cluster, rules)
    lost = {data.draw(st.integers(0, size - 1))}
    replaced = choose_replacements(
        names, chosen, lost, chance, avoid=chosen, write_quorum=write_quorum, cluster=cluster, rules=rules
    )
    after = [replaced.get(position, bookie) for position, bookie in enumerate(chosen)]
    assert is_spread(after, write_quorum, cluster, rules)


# ---- weights
def test_a_bookie_with_more_space_gets_more_ledgers_but_at_most_three_times_the_median() -> None:
    cluster = Cluster(weights={_A: 100.0, _B: 100.0, _C: 100.0, _D: 1e9})
    chance = _chance()
    turns = [choose_ensemble(_bookies("a", "b", "c", "d"), 1, chance, cluster=cluster)[0] for _ in range(3000)]
    assert 0.45 < turns.count(_D) / len(turns) < 0.55
    assert 0.12 < turns.count(_A) / len(turns) < 0.21


def test_a_bookie_of_unknown_space_counts_as_the_median_and_a_full_one_is_rarely_chosen() -> None:
    cluster = Cluster(weights={_A: 1000.0, _B: 0.0, _C: 1000.0})
    chance = _chance()
    turns = [choose_ensemble(_bookies("a", "b", "c", "d"), 1, chance, cluster=cluster)[0] for _ in range(3000)]
    assert 0.28 < turns.count(_D) / len(turns) < 0.38
    assert turns.count(_B) < 30


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


# ---- machines
def _on_machines(**machines: str) -> Cluster:
    return Cluster(machines={BookieId(name): machine for name, machine in machines.items()})


_PAIRS = _on_machines(a="m1", b="m1", c="m2", d="m2", e="m3", f="m3")
_APART = SpreadRules(machines_min=64, distinct_machines=True)


@pytest.mark.parametrize("rules", [SpreadRules(), _APART], ids=["preferred", "enforced"])
def test_no_two_copies_are_on_one_machine_while_there_are_enough(rules: SpreadRules) -> None:
    seen = set()
    for seed in range(100):
        chosen = choose_ensemble(_bookies(*"abcdef"), 3, _chance(seed), cluster=_PAIRS, rules=rules)
        assert {_PAIRS.machine_of(bookie) for bookie in chosen} == {"m1", "m2", "m3"}
        seen |= set(chosen)
    assert seen == _bookies(*"abcdef")


def test_copies_share_a_machine_only_if_there_are_too_few_and_then_use_all_of_them() -> None:
    for seed in range(50):
        chosen = choose_ensemble(_bookies("a", "b", "c", "d"), 3, _chance(seed), cluster=_PAIRS)
        assert {_PAIRS.machine_of(bookie) for bookie in chosen} == {"m1", "m2"}


def test_too_few_machines_are_refused_if_the_rule_is_enforced() -> None:
    with pytest.raises(PlacementError, match=r"3 copies .* 2 machines.*enforceReplicasOnDistinctMachines=false"):
        choose_ensemble(_bookies("a", "b", "c", "d"), 3, _chance(), cluster=_PAIRS, rules=_APART)


def test_bookies_to_avoid_are_used_for_distinct_machines_only_if_the_rule_is_enforced() -> None:
    avoid = _bookies("e", "f")
    for seed in range(20):
        chosen = choose_ensemble(_bookies(*"abcdef"), 3, _chance(seed), avoid=avoid, cluster=_PAIRS)
        assert not avoid & set(chosen)
        strict = choose_ensemble(_bookies(*"abcdef"), 3, _chance(seed), avoid=avoid, cluster=_PAIRS, rules=_APART)
        assert len(avoid & set(strict)) == 1


def test_a_machine_without_a_copy_has_priority_over_a_balance_of_zones() -> None:
    machines = {_A: "m1", _B: "m1", _C: "m2", _D: "m3", _E: "m4"}
    cluster = Cluster({_A: "/east/1", _B: "/east/1", _C: "/west/1", _D: "/west/1", _E: "/west/1"}, machines=machines)
    for seed in range(50):
        chosen = choose_ensemble(_bookies(*"abcde"), 4, _chance(seed), cluster=cluster)
        assert cluster.machine_count(chosen) == 4


def test_striped_copies_on_two_machines_alternate() -> None:
    for seed in range(50):
        chosen = choose_ensemble(
            _bookies("a", "b", "c", "d"), 4, _chance(seed), write_quorum=2, cluster=_PAIRS, rules=_APART
        )
        assert is_spread(chosen, 2, _PAIRS, _APART)


def test_a_replacement_avoids_the_machines_that_keep_a_copy() -> None:
    for seed in range(30):
        assert choose_replacements(_bookies("b", "d", "f"), (_A, _C, _E), {2}, _chance(seed), cluster=_PAIRS) == {
            2: BookieId("f")
        }
    shared = choose_replacements(_bookies("b", "d"), (_A, _C, _E), {2}, _chance(), cluster=_PAIRS)
    assert shared.keys() == {2}
    refused = choose_replacements(_bookies("b", "d"), (_A, _C, _E), {2}, _chance(), cluster=_PAIRS, rules=_APART)
    assert refused == {}


def test_copies_that_already_share_a_machine_do_not_prevent_a_repair_that_adds_no_other_such_pair() -> None:
    ensemble = (_A, _B, _C)
    for candidate, expected in (("d", {2: _D}), ("e", {2: _E})):
        found = choose_replacements(_bookies(candidate), ensemble, {2}, _chance(), cluster=_PAIRS, rules=_APART)
        assert found == expected
    assert choose_replacements({_D}, ensemble, {1}, _chance(), cluster=_PAIRS, rules=_APART) == {}


def test_the_machine_of_an_unknown_bookie_is_the_host_in_its_id_or_its_own() -> None:
    cluster = _on_machines(a="m1")
    assert cluster.machine_of(BookieId("bookie-1.example:3181")) == "bookie-1.example"
    assert cluster.machine_of(BookieId("storage-12ab34cd")) == "storage-12ab34cd"


def test_a_move_takes_a_copy_to_a_machine_without_one() -> None:
    rules = SpreadRules(machines_min=3)
    moves = {best_move((_A, _B, _C), 3, _bookies(*"abcdef"), SimChance(seed), _PAIRS, rules) for seed in range(40)}
    assert moves == {(position, BookieId(name)) for position in (0, 1) for name in ("e", "f")}
    assert best_move((_A, _B, _C), 3, _bookies(*"abcd"), SimChance(1), _PAIRS, rules) is None


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 5), st.data())
def test_enforced_machines_are_distinct_in_every_write_set_or_the_choice_is_refused(
    seed: int, size: int, data: st.DataObject
) -> None:
    write_quorum = data.draw(st.integers(1, size))
    machines = data.draw(st.lists(st.sampled_from(["m1", "m2", "m3", "m4"]), min_size=size, max_size=9))
    cluster = Cluster(machines={BookieId(f"b{number}"): machine for number, machine in enumerate(machines)})
    names = sorted(cluster.machines)
    chance = _chance(seed)
    try:
        chosen = choose_ensemble(names, size, chance, write_quorum=write_quorum, cluster=cluster, rules=_APART)
    except NotEnoughBookiesError:
        assert size > 1 and cluster.machine_count(names) < size, "one bookie for each machine is always found"
        return
    for positions in write_sets(size, write_quorum):
        assert cluster.machine_count([chosen[position] for position in positions]) == write_quorum
    lost = {data.draw(st.integers(0, size - 1))}
    replaced = choose_replacements(
        names, chosen, lost, chance, avoid=chosen, write_quorum=write_quorum, cluster=cluster, rules=_APART
    )
    after = [replaced.get(position, bookie) for position, bookie in enumerate(chosen)]
    assert is_spread(after, write_quorum, cluster, _APART)
