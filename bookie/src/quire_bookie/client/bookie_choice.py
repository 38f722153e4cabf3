"""Chooses the bookies of a ledger from the registry, the state of the connections and the placement.

`quorum.placement` makes the decisions. Sends no requests and keeps no state of its own.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from quire_bookie.client.placement_view import PlacementView
from quire_bookie.env.chance import Chance
from quire_bookie.metadata.registration import BookieRegistry
from quire_bookie.model import BookieId
from quire_bookie.quorum.placement import choose_ensemble, choose_replacements


class Replacements(Protocol):
    """Chooses replacements for lost bookies."""

    def replacements(
        self, ensemble: Sequence[BookieId], lost: Collection[int], shunned: Collection[BookieId], write_quorum: int
    ) -> dict[int, BookieId]:
        """Choose bookies for as many `lost` positions as possible: outside the ensemble, or the former one again.

        `shunned`: bookies to exclude, because this ledger lost them recently.
        """
        ...


class BookieChoice:
    """Chooses bookies for the ledgers of one client."""

    def __init__(
        self,
        registry: BookieRegistry,
        suspects: Callable[[], Collection[BookieId]],
        quarantined: Callable[[], Collection[BookieId]],
        chance: Chance,
        view: PlacementView,
    ) -> None:
        self._registry = registry
        self._suspects = suspects
        self._quarantined = quarantined
        self._chance = chance
        self._view = view

    def new_ensemble(self, size: int, write_quorum: int) -> tuple[BookieId, ...]:
        """Choose a new ensemble.

        NotEnoughBookiesError if fewer bookies are registered as writable, or none satisfy enforced rules of placement.
        """
        avoid = frozenset(self._suspects()) | frozenset(self._quarantined())
        return choose_ensemble(
            self._registry.writable,
            size,
            self._chance,
            avoid=avoid,
            write_quorum=write_quorum,
            cluster=self._view.cluster,
            rules=self._view.rules,
        )

    def replacements(
        self, ensemble: Sequence[BookieId], lost: Collection[int], shunned: Collection[BookieId], write_quorum: int
    ) -> dict[int, BookieId]:
        """See Replacements. Unreachable bookies are not chosen."""
        candidates = self._registry.writable - frozenset(self._suspects()) - frozenset(shunned)
        return choose_replacements(
            candidates,
            ensemble,
            lost,
            self._chance,
            avoid=frozenset(self._quarantined()),
            write_quorum=write_quorum,
            cluster=self._view.cluster,
            rules=self._view.rules,
        )

    def additions(
        self, ensemble: Sequence[BookieId], count: int, shunned: Collection[BookieId], write_quorum: int
    ) -> tuple[BookieId, ...]:
        """Choose up to `count` bookies to append to an ensemble.

        `shunned`: bookies to exclude. `write_quorum`: of the ensemble including the additions.
        """
        for wanted in range(count, 0, -1):
            size = len(ensemble) + wanted
            seats = [*ensemble, *[BookieId("")] * wanted]
            plan = self.replacements(seats, range(len(ensemble), size), shunned, min(write_quorum, size))
            if len(plan) == wanted:
                return tuple(plan[position] for position in sorted(plan))
        return ()
