"""Tracks how long each bookie has been unregistered, so that brief absences do not count as losses. Pure.

The caller supplies the time. Replication workers use `BookieAbsences`, the auditor `LostBookies`. When an administrator
gives up on the missing bookies, those missing at that time count as lost at once. A registration ends an absence.
"""

import math
from collections.abc import Collection

from quire_bookie.model import BookieId


class BookieAbsences:
    """Tracks absences. Holds one record for each bookie that ever registered.

    A bookie that this process never saw counts as away since the process started: nothing earlier is known.
    """

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


class LostBookies:
    """Tracks the bookies that one auditor has seen missing since it was elected.

    A bookie is missing while its cookie exists or the metadata of some ledger name it, and it is not registered. It is
    lost once it has been missing for the delay, or at once when an administrator declares it lost.
    """

    def __init__(self) -> None:
        self._missing_s: dict[BookieId, float] = {}
        self._audited: set[BookieId] = set()

    def update(self, known: Collection[BookieId], registered: Collection[BookieId], now_s: float) -> None:
        """Update the missing bookies with the state of the cluster at `now_s`."""
        for bookie in set(known) - set(registered):
            self._missing_s.setdefault(bookie, now_s)
        for bookie in list(self._missing_s):
            if bookie in registered or bookie not in known:
                del self._missing_s[bookie]
                self._audited.discard(bookie)
        assert self._audited <= self._missing_s.keys(), "only missing bookies are audited"

    def returned(self, registered: Collection[BookieId]) -> None:
        """Remove bookies that are registered again."""
        for bookie in self._missing_s.keys() & set(registered):
            del self._missing_s[bookie]
            self._audited.discard(bookie)
        assert self._audited <= self._missing_s.keys(), "only missing bookies are audited"

    def lost(self, delay_s: float, now_s: float, *, at_once: bool = False) -> frozenset[BookieId]:
        """Return the lost bookies; with `at_once` all missing ones."""
        return frozenset(b for b, since_s in self._missing_s.items() if at_once or now_s - since_s >= delay_s)

    def to_audit(self, delay_s: float, now_s: float) -> frozenset[BookieId]:
        """Return the lost bookies that were not audited since they went missing."""
        return self.lost(delay_s, now_s) - self._audited

    def audited(self, bookies: Collection[BookieId]) -> None:
        """Note that every ledger of these bookies was marked."""
        self._audited |= set(bookies) & self._missing_s.keys()

    def audit_again(self) -> None:
        """Audit all lost bookies again: marks may have been removed, or ledgers restored from a backup."""
        self._audited.clear()

    def next_s(self, delay_s: float, now_s: float) -> float | None:
        """Return the seconds until the next bookie becomes lost; None if no missing bookie still has time left."""
        waits = [
            since_s + delay_s - now_s
            for bookie, since_s in self._missing_s.items()
            if bookie not in self._audited and since_s + delay_s > now_s
        ]
        return min(waits, default=None)

    @property
    def missing(self) -> frozenset[BookieId]:
        """All missing bookies, lost or not."""
        return frozenset(self._missing_s)
