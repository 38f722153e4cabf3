"""Measures how far ensembles break the rules of placement, and chooses the move that helps most. Pure."""

from collections.abc import Collection, Sequence

from quire_bookie.env.chance import Chance
from quire_bookie.model import BookieId
from quire_bookie.quorum.placement import Cluster, SpreadRules
from quire_bookie.quorum.write_set import write_sets


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
