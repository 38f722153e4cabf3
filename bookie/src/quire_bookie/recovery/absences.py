"""Since when bookies have been away, as one process saw it: who is away for a moment is not lost. Pure: times come in.

A bookie that was never seen counts from the start of the process on, since nobody can say more. A person's word ends
the waiting for everybody who is missing then; registering again forgives.
"""

import math
from collections.abc import Collection

from quire_bookie.model import BookieId


class Absences:
    """See the module's text. As many bookies as ever were registered."""

    def __init__(self, registered: Collection[BookieId], now_s: float) -> None:
        self._began_s = now_s
        self._registered = frozenset(registered)
        self._since_s: dict[BookieId, float] = {}
        self._awaited: set[BookieId] | None = None
        """After a person's word: who was there then or came since; None: nobody said it."""

    def saw(self, registered: Collection[BookieId], now_s: float) -> None:
        """Who is registered now."""
        found = frozenset(registered)
        for bookie in self._registered - found:
            self._since_s[bookie] = now_s
        for bookie in found & self._since_s.keys():
            del self._since_s[bookie]
        if self._awaited is not None:
            self._awaited |= found
        self._registered = found

    def give_up(self, present: Collection[BookieId]) -> None:
        """A person said that whoever is not among `present` does not come back."""
        self._awaited = set(present)

    def away_s(self, bookie: BookieId, now_s: float) -> float:
        """How long it has been away: 0 for one that is there, infinite for one that was given up."""
        if bookie in self._registered:
            return 0.0
        if self._awaited is not None and bookie not in self._awaited:
            return math.inf
        return now_s - self._since_s.get(bookie, self._began_s)
