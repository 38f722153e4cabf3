"""Chooses bookies of an ensemble, replacements of lost ones, and moves of misplaced ones. Pure; the caller supplies
candidates and weights.

A machine may run several bookies, and fails with all of them. The place of a bookie is a path such as `/zone/rack` or
`/rack`. The bookies of each write set are spread over machines first, then over zones and racks; among equal candidates
the choice is random, by weight. A bookie in a rack or zone without a copy is always on a machine without one, so the
order costs no rack. The choice depends only on the arguments and on what `Chance` returns: candidates are sorted first,
because the order of a set of strings differs between processes.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field
from statistics import median

from quire_bookie.dataclass import dataclass
from quire_bookie.env.chance import Chance
from quire_bookie.errors import NotEnoughBookiesError, PlacementError
from quire_bookie.model import BookieId
from quire_bookie.quorum.write_set import write_sets

DEFAULT_PLACE = "/default-rack"
_WEIGHT_MULTIPLE_MAX = 3  # of the median: a new, empty bookie must not take all new ledgers
_ATTEMPTS_MAX = 20  # at an ensemble that satisfies enforced rules; each begins with other bookies
_ATTEMPTS_APART_MAX = 3  # at one on distinct machines, if that is only preferred: with E = Qw the first decides


@dataclass(frozen=True, slots=True)
class Cluster:
    """Places, weights and machines of the bookies. A bookie without a place is in the default rack."""

    places: Mapping[BookieId, str] = field(default_factory=dict)
    weights: Mapping[BookieId, float] = field(default_factory=dict)
    """Free bytes, or any other measure. A bookie without a weight has the median; if empty, all weights are equal."""
    machines: Mapping[BookieId, str] = field(default_factory=dict)

    def rack_of(self, bookie: BookieId) -> str:
        """Return the whole place: racks of the same name in different zones are different racks."""
        return self.places.get(bookie, DEFAULT_PLACE)

    def machine_of(self, bookie: BookieId) -> str:
        """Return the machine; if it is unknown, the host in an id of the form `host:port`, or the id itself."""
        return self.machines.get(bookie) or bookie.rpartition(":")[0] or bookie

    def machine_count(self, bookies: Collection[BookieId]) -> int:
        """Return on how many machines the bookies are."""
        return len({self.machine_of(bookie) for bookie in bookies})

    def zone_of(self, bookie: BookieId) -> str:
        """Return the first part of a place with several parts; empty for a place without zones."""
        parts = self.rack_of(bookie).strip("/").split("/")
        return parts[0] if len(parts) > 1 else ""


@dataclass(frozen=True, slots=True)
class SpreadRules:
    """The number of racks, zones and machines over which each write set should be spread, as far as Qw allows."""

    racks_min: int = 1
    zones_min: int = 1
    enforce: bool = False
    """Never choose an ensemble or a replacement that breaks the rules of racks and zones."""
    machines_min: int = 1
    distinct_machines: bool = False
    """Never choose an ensemble or a replacement that puts two bookies of a write set on one machine."""

    @property
    def enforced(self) -> "SpreadRules":
        """The rules of racks and zones that no choice may break."""
        return SpreadRules(self.racks_min, self.zones_min) if self.enforce else SpreadRules()


def is_spread(ensemble: Sequence[BookieId], write_quorum: int, cluster: Cluster, rules: SpreadRules) -> bool:
    """Return whether every write set satisfies the rules."""
    return lack_of_spread(ensemble, write_quorum, cluster, rules) == 0


def choose_ensemble(
    candidates: Collection[BookieId],
    size: int,
    chance: Chance,
    *,
    avoid: Collection[BookieId] = (),
    write_quorum: int | None = None,
    cluster: Cluster = Cluster(),
    rules: SpreadRules = SpreadRules(),
) -> tuple[BookieId, ...]:
    """Choose `size` distinct candidates; those to avoid only if the others do not suffice. `write_quorum`: or `size`.

    An ensemble that uses a machine twice in a write set is chosen only if no other is found.
    NotEnoughBookiesError if there are fewer than `size` candidates, PlacementError if no ensemble satisfies enforced
    rules.
    """
    if len(set(candidates)) < size:
        raise NotEnoughBookiesError(f"{size} writable bookies are needed, {len(set(candidates))} are registered")
    choice = _Choice(chance, write_quorum or size, cluster, rules)
    preferred = set(candidates) - set(avoid)
    kept: tuple[BookieId, ...] | None = None
    for _ in range(_ATTEMPTS_MAX if rules.enforce or rules.distinct_machines else _ATTEMPTS_APART_MAX):
        for tiers in ((preferred,), (preferred, set(candidates)), (set(candidates),)):
            chosen = _fill(choice, [None] * size, range(size), tiers)
            if None in chosen:
                continue
            ensemble = tuple(bookie for bookie in chosen if bookie is not None)
            assert len(ensemble) == size == len(set(ensemble)), "an ensemble has no bookie twice"
            if not is_spread(ensemble, choice.write_quorum, cluster, rules.enforced):
                continue
            apart = SpreadRules(machines_min=cluster.machine_count(tiers[-1]))
            if is_spread(ensemble, choice.write_quorum, cluster, apart):
                return ensemble
            kept = kept or ensemble
            break  # only an enforced rule has priority over avoiding a bookie
    if kept is None:
        raise PlacementError(_lack_text(choice, candidates, size))
    return kept


def choose_replacements(
    candidates: Collection[BookieId],
    ensemble: Sequence[BookieId],
    lost: Collection[int],
    chance: Chance,
    *,
    avoid: Collection[BookieId] = (),
    write_quorum: int | None = None,
    cluster: Cluster = Cluster(),
    rules: SpreadRules = SpreadRules(),
) -> dict[int, BookieId]:
    """Choose for each of the `lost` positions a candidate outside `ensemble`, as far as there are enough.

    The former bookie of a position is preferred if it is a candidate, because it has the older entries. Bookies to
    avoid are chosen only if the others do not suffice. A position is left out if enforced rules allow no candidate.
    """
    choice = _Choice(chance, write_quorum or len(ensemble), cluster, rules)
    outside = set(candidates) - set(ensemble)
    seats: list[BookieId | None] = [None if p in set(lost) else bookie for p, bookie in enumerate(ensemble)]
    for wanted in (set(candidates) - set(avoid), set(candidates)):
        for position in sorted(lost):
            if seats[position] is None and ensemble[position] in wanted:
                seats[position] = ensemble[position]
        seats = _fill(choice, seats, sorted(lost), (outside & wanted,))
    chosen = {position: bookie for position in sorted(lost) if (bookie := seats[position]) is not None}
    for position in list(chosen):
        changed = [chosen.get(p, bookie) for p, bookie in enumerate(ensemble)]
        if chosen[position] == ensemble[position]:
            continue
        # A position that is left out keeps its lost bookie, which may come back.
        beside = {cluster.machine_of(bookie) for bookie in _sharing(choice, changed, position)}
        if (rules.distinct_machines and cluster.machine_of(chosen[position]) in beside) or not is_spread(
            changed, choice.write_quorum, cluster, rules.enforced
        ):
            del chosen[position]
    assert all(bookie in outside or bookie == ensemble[position] for position, bookie in chosen.items())
    return chosen


@dataclass(frozen=True, slots=True)
class _Choice:
    chance: Chance
    write_quorum: int
    cluster: Cluster
    rules: SpreadRules

    def among(self, candidates: list[BookieId]) -> BookieId:
        """Choose one of the (sorted) candidates at random, by weight."""
        known = self.cluster.weights
        if not known:
            return self.chance.sample(candidates, 1)[0]
        middle = median(known.values())
        weights = [max(1.0, min(known.get(one, middle), middle * _WEIGHT_MULTIPLE_MAX)) for one in candidates]
        mark = self.chance.uniform(0.0, sum(weights))
        for candidate, weight in zip(candidates, weights, strict=True):
            mark -= weight
            if mark <= 0:
                return candidate
        return candidates[-1]


def _lack_text(choice: _Choice, candidates: Collection[BookieId], size: int) -> str:
    """Describe enforced rules that no ensemble satisfies."""
    rules, found = choice.rules, []
    if rules.enforce:
        found.append(f"spread over {rules.racks_min} racks and {rules.zones_min} zones")
    if rules.distinct_machines:
        machines = choice.cluster.machine_count(candidates)
        counted = "there is 1 machine" if machines == 1 else f"there are {machines} machines"
        found.append(
            f"distinct machines for the {choice.write_quorum} copies of an entry ({counted}: start "
            "bookies on others, lower the quorums, or set enforceReplicasOnDistinctMachines=false to put copies on one)"
        )
    return f"no {size} of the {len(set(candidates))} registered bookies satisfy: {'; '.join(found)}"


def _fill(
    choice: _Choice,
    seats: Sequence[BookieId | None],
    positions: Collection[int],
    tiers: Sequence[Collection[BookieId]],
) -> list[BookieId | None]:
    """Fill the empty `positions` as far as possible, with members of an earlier tier before those of a later one."""
    seats = list(seats)
    for position in positions:
        for tier in tiers:
            free = set(tier) - set(seats)
            if seats[position] is None and (best := _least_crowded(choice, seats, position, sorted(free))):
                seats[position] = choice.among(best)
    return seats


def _least_crowded(
    choice: _Choice, seats: Sequence[BookieId | None], position: int, candidates: list[BookieId]
) -> list[BookieId]:
    """Return the candidates whose machine, zone and rack are rarest among those that share a write set with `position`.

    The machine counts first, then the zone. None if machines must be distinct and no candidate is on another one.
    """
    cluster = choice.cluster
    present = {*candidates, *(bookie for bookie in seats if bookie is not None)}
    if not candidates or (not cluster.places and cluster.machine_count(present) == len(present)):
        return candidates
    sharing = _sharing(choice, seats, position)
    machines = Counter(map(cluster.machine_of, sharing))
    zones = Counter(map(cluster.zone_of, sharing))
    racks = Counter(map(cluster.rack_of, sharing))
    crowds = {
        one: (machines[cluster.machine_of(one)], zones[cluster.zone_of(one)], racks[cluster.rack_of(one)])
        for one in candidates
    }
    least = min(crowds.values())
    if choice.rules.distinct_machines and least[0]:
        return []
    return [one for one, crowd in crowds.items() if crowd == least]


def _sharing(choice: _Choice, seats: Sequence[BookieId | None], position: int) -> list[BookieId]:
    """Return the bookies at other positions that share a write set with `position`."""
    size = len(seats)
    return [
        bookie
        for other, bookie in enumerate(seats)
        if bookie is not None
        and other != position
        and min((other - position) % size, (position - other) % size) < choice.write_quorum
    ]


def lack_of_spread(ensemble: Sequence[BookieId], write_quorum: int, cluster: Cluster, rules: SpreadRules) -> int:
    """Return how many racks, zones and machines all write sets together lack; 0 if the rules are satisfied."""
    lack = 0
    for positions in write_sets(len(ensemble), write_quorum):
        members = [ensemble[position] for position in positions]
        lack += max(0, min(write_quorum, rules.racks_min) - len({cluster.rack_of(bookie) for bookie in members}))
        lack += max(0, min(write_quorum, rules.zones_min) - len({cluster.zone_of(bookie) for bookie in members}))
        lack += max(0, min(write_quorum, rules.machines_min) - cluster.machine_count(members))
    return lack


def best_move(
    ensemble: Sequence[BookieId],
    write_quorum: int,
    candidates: Collection[BookieId],
    chance: Chance,
    cluster: Cluster,
    rules: SpreadRules,
) -> tuple[int, BookieId] | None:
    """Return the position and its new bookie that leave the least lack of spread; None if no move helps.

    Chooses at random among equally good moves, so that not all ledgers go to one bookie.
    """
    least = lack_of_spread(ensemble, write_quorum, cluster, rules)
    best: list[tuple[int, BookieId]] = []
    for position in range(len(ensemble) if least else 0):
        for candidate in sorted(set(candidates) - set(ensemble)):
            changed = [candidate if at == position else bookie for at, bookie in enumerate(ensemble)]
            left = lack_of_spread(changed, write_quorum, cluster, rules)
            if left < least:
                least, best = left, [(position, candidate)]
            elif best and left == least:
                best.append((position, candidate))
    return chance.sample(best, 1)[0] if best else None
