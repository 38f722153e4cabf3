"""Which bookies make an ensemble, and who takes the place of a lost one. Chooses at random; knows no racks yet.

The choice depends only on the candidates and on what `Chance` returns: candidates are sorted first, because the
order of a set of strings differs from process to process.
"""

from collections.abc import Collection, Sequence

from quire_bookie.env.chance import Chance
from quire_bookie.errors import NotEnoughBookiesError
from quire_bookie.model import BookieId


def choose_ensemble(
    candidates: Collection[BookieId], size: int, chance: Chance, *, avoid: Collection[BookieId] = ()
) -> tuple[BookieId, ...]:
    """`size` distinct candidates in random order; those to avoid only as far as the others do not suffice.

    NotEnoughBookiesError when there are fewer candidates than `size`.
    """
    preferred = sorted(set(candidates) - set(avoid))
    if len(preferred) >= size:
        return tuple(chance.sample(preferred, size))
    rest = sorted(set(candidates) - set(preferred))
    if len(preferred) + len(rest) < size:
        raise NotEnoughBookiesError(f"{size} writable bookies are needed, {len(preferred) + len(rest)} are registered")
    chosen = preferred + chance.sample(rest, size - len(preferred))
    return tuple(chance.sample(chosen, size))


def choose_replacements(
    candidates: Collection[BookieId],
    ensemble: Sequence[BookieId],
    lost: Collection[int],
    chance: Chance,
    *,
    avoid: Collection[BookieId] = (),
) -> dict[int, BookieId]:
    """For each of the `lost` positions of `ensemble` a candidate that is not in it, as far as there are any.

    The former bookie of a position may take it again when it is a candidate, and is preferred: its older entries are
    there already. Those to avoid only as far as the others do not suffice.
    """
    chosen: dict[int, BookieId] = {}
    outside = set(candidates) - set(ensemble)
    for wanted in (set(candidates) - set(avoid), set(candidates)):
        for position in sorted(set(lost) - chosen.keys()):
            others = sorted(outside & wanted - set(chosen.values()))
            if ensemble[position] in wanted:
                chosen[position] = ensemble[position]
            elif others:
                (chosen[position],) = chance.sample(others, 1)
    return chosen
