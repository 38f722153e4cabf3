"""Decides which bookies count as lost. Pure; the caller supplies the time.

A bookie is missing while its cookie exists or the metadata of some ledger name it, and it is not registered. It is lost
once it has been missing for the delay, or at once when an administrator declares it lost. A registration resets this.
"""

from collections.abc import Collection

from quire_bookie.model import BookieId


class LostBookies:
    """The bookies that one auditor has seen missing since it was elected."""

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
