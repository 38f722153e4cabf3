"""Tracks how long each bookie has been unregistered, so that brief absences do not count as losses. Pure.

The caller supplies the time. A bookie that this process never saw counts as away since the process started: nothing
earlier is known. When an administrator gives up on the missing bookies, all bookies missing at that time count as lost
at once. A bookie that registers again is no longer away.
"""

import math
from collections.abc import Collection

from quire_bookie.model import BookieId


class BookieAbsences:
    """Tracks absences. Holds one record for each bookie that ever registered."""

    def __init__(self, registered: Collection[BookieId], now_s: float) -> None:
        self._began_s = now_s
        self._registered = frozenset(registered)
        self._since_s: dict[BookieId, float] = {}
        self._awaited: set[BookieId] | None = None
        """Bookies present when an administrator gave up on the missing ones, plus later arrivals; None if that never
        happened.
        """

    def update(self, registered: Collection[BookieId], now_s: float) -> None:
        """Record the bookies that are registered now."""
        found = frozenset(registered)
        for bookie in self._registered - found:
            self._since_s[bookie] = now_s
        for bookie in found & self._since_s.keys():
            del self._since_s[bookie]
        if self._awaited is not None:
            self._awaited |= found
        self._registered = found

    def give_up(self, present: Collection[BookieId]) -> None:
        """Stop waiting for bookies that are not among `present`: an administrator declared them lost."""
        self._awaited = set(present)

    def away_s(self, bookie: BookieId, now_s: float) -> float:
        """Return how long the bookie has been away: 0 if it is registered, infinity if it was given up."""
        if bookie in self._registered:
            return 0.0
        if self._awaited is not None and bookie not in self._awaited:
            return math.inf
        return now_s - self._since_s.get(bookie, self._began_s)
