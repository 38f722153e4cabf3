"""Chooses bookies of an ensemble, replacements of lost ones, and moves of misplaced ones. Pure; the caller supplies
candidates and weights.

The place of a bookie is a path such as `/zone/rack` or `/rack`. The bookies of each write set are spread over zones
first, then over racks; among equal candidates the choice is random, by weight. It depends only on the arguments and on
what `Chance` returns: candidates are sorted first, because the order of a set of strings differs between processes.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from quire_bookie.env.chance import Chance
from quire_bookie.errors import NotEnoughBookiesError
from quire_bookie.model import BookieId
from quire_bookie.quorum.write_set import write_sets

DEFAULT_PLACE = "/default-rack"
_WEIGHT_MULTIPLE_MAX = 3  # of the median: a new, empty bookie must not take all new ledgers
_ATTEMPTS_MAX = 20  # at an ensemble that satisfies enforced rules; each begins with other bookies


@dataclass(frozen=True, slots=True)
class Cluster:
    """Places and weights of the bookies. A bookie without a place is in the default rack."""

    places: Mapping[BookieId, str] = field(default_factory=dict)
    weights: Mapping[BookieId, float] = field(default_factory=dict)
    """Free bytes, or any other measure. A bookie without a weight has the median; if empty, all weights are equal."""

    def rack_of(self, bookie: BookieId) -> str:
        """Return the whole place: racks of the same name in different zones are different racks."""
        return self.places.get(bookie, DEFAULT_PLACE)

    def zone_of(self, bookie: BookieId) -> str:
        """Return the first part of a place with several parts; empty for a place without zones."""
        parts = self.rack_of(bookie).strip("/").split("/")
        return parts[0] if len(parts) > 1 else ""


@dataclass(frozen=True, slots=True)
class SpreadRules:
    """The number of racks and zones over which each write set should be spread, as far as Qw allows."""

    racks_min: int = 1
    zones_min: int = 1
    enforce: bool = False
    """Never choose an ensemble or a replacement that breaks these rules."""


def is_spread(ensemble: Sequence[BookieId], write_quorum: int, cluster: Cluster, rules: SpreadRules) -> bool:
    """Return whether every write set satisfies the rules."""
    for positions in write_sets(len(ensemble), write_quorum):
        members = [ensemble[position] for position in positions]
        if len({cluster.rack_of(bookie) for bookie in members}) < min(write_quorum, rules.racks_min):
            return False
        if len({cluster.zone_of(bookie) for bookie in members}) < min(write_quorum, rules.zones_min):
            return False
    return True


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

    NotEnoughBookiesError if there are fewer than `size` candidates, or no ensemble satisfies enforced rules.
    """
    if len(set(candidates)) < size:
        raise NotEnoughBookiesError(f"{size} writable bookies are needed, {len(set(candidates))} are registered")
    choice = _Choice(chance, write_quorum or size, cluster, rules)
    preferred = set(candidates) - set(avoid)
    for _ in range(_ATTEMPTS_MAX if rules.enforce else 1):
        for tiers in ((preferred,), (preferred, set(candidates)), (set(candidates),)):
            chosen = _fill(choice, [None] * size, range(size), tiers)
            if None in chosen:
                continue
            ensemble = tuple(bookie for bookie in chosen if bookie is not None)
            assert len(ensemble) == size == len(set(ensemble)), "an ensemble has no bookie twice"
            if not rules.enforce or is_spread(ensemble, choice.write_quorum, cluster, rules):
                return ensemble
    raise NotEnoughBookiesError(
        f"no {size} of the {len(set(candidates))} registered bookies are spread over {rules.racks_min} racks and "
        f"{rules.zones_min} zones"
    )


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
    if rules.enforce:
        for position in list(chosen):
            changed = [chosen.get(p, bookie) for p, bookie in enumerate(ensemble)]
            if chosen[position] != ensemble[position] and not is_spread(changed, choice.write_quorum, cluster, rules):
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
            if seats[position] is None and free:
                seats[position] = choice.among(_least_crowded(choice, seats, position, sorted(free)))
    return seats


def _least_crowded(
    choice: _Choice, seats: Sequence[BookieId | None], position: int, candidates: list[BookieId]
) -> list[BookieId]:
    """Return the candidates whose zone, then rack, is rarest among bookies that share a write set with `position`."""
    cluster, size = choice.cluster, len(seats)
    if not cluster.places:
        return candidates
    sharing = [
        bookie
        for other, bookie in enumerate(seats)
        if bookie is not None and min((other - position) % size, (position - other) % size) < choice.write_quorum
    ]
    zones = [cluster.zone_of(bookie) for bookie in sharing]
    racks = [cluster.rack_of(bookie) for bookie in sharing]
    crowds = [(zones.count(cluster.zone_of(one)), racks.count(cluster.rack_of(one))) for one in candidates]
    return [one for one, crowd in zip(candidates, crowds, strict=True) if crowd == min(crowds)]


def lack_of_spread(ensemble: Sequence[BookieId], write_quorum: int, cluster: Cluster, rules: SpreadRules) -> int:
    """Return how many racks and zones all write sets together lack; 0 if the rules are satisfied."""
    lack = 0
    for positions in write_sets(len(ensemble), write_quorum):
        members = [ensemble[position] for position in positions]
        lack += max(0, min(write_quorum, rules.racks_min) - len({cluster.rack_of(bookie) for bookie in members}))
        lack += max(0, min(write_quorum, rules.zones_min) - len({cluster.zone_of(bookie) for bookie in members}))
    return lack


def best_move(
    ensemble: Sequence[BookieId],
    write_quorum: int,
    candidates: Collection[BookieId],
    chance: Chance,
    cluster: Cluster,
    rules: SpreadRules,
) -> tuple[int, BookieId] | None:
    """Return the position and its new bookie that leave the fewest racks and zones missing; None if no move helps.

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
