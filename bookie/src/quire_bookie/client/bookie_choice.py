"""Chooses the bookies of a ledger from the registry, the state of the connections and the placement.

`quorum.placement` makes the decisions. Sends no requests and keeps no state of its own.
"""

from collections.abc import Callable, Collection, Sequence
from copy import copy
from typing import Protocol

from quire_bookie.client.placement_view import PlacementView
from quire_bookie.env.chance import Chance
from quire_bookie.errors import NotEnoughBookiesError
from quire_bookie.metadata.registration import BookieRegistry
from quire_bookie.model import BookieId
from quire_bookie.quorum.bookie_groups import BookieGroups
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
        self._groups: BookieGroups | None = None

    def within(self, groups: BookieGroups | None) -> "BookieChoice":
        """Return the choice among the bookies of these groups; None: among all."""
        if groups is None:
            return self
        found = copy(self)
        found._groups = groups
        return found

    def members(self, bookies: frozenset[BookieId], needed: int) -> frozenset[BookieId]:
        """Return which of these bookies the groups permit, if `needed` of them will be chosen."""
        if self._groups is None:
            return bookies
        return self._groups.members(bookies, self._view.group_of, needed, self._view.ensemble_max)

    def new_ensemble(self, size: int, write_quorum: int) -> tuple[BookieId, ...]:
        """Choose a new ensemble.

        NotEnoughBookiesError if fewer bookies are registered as writable, or none satisfy enforced rules of placement.
        """
        candidates = self.members(self._registry.writable, size)
        if self._groups is not None and len(candidates) < size:
            raise NotEnoughBookiesError(
                f"{size} writable bookies are needed, {len(candidates)} are in the groups {self._groups.described}; "
                "add bookies to a group, or change the affinity group of the namespace"
            )
        avoid = frozenset(self._suspects()) | frozenset(self._quarantined())
        return choose_ensemble(
            candidates,
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
        if self._groups is not None:
            kept = [bookie for place, bookie in enumerate(ensemble) if place not in lost]
            candidates = self.members(candidates & self._view.permitted_beside(kept), len(lost))
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
