"""Which bookies make the ensemble of a new ledger. Chooses at random; knows no racks yet.

The choice depends only on the candidates and on what `Chance` returns: candidates are sorted first, because the
order of a set of strings differs from process to process.
"""

from collections.abc import Collection

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
