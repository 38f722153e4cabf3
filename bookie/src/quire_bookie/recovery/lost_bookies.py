"""Which bookies count as lost by now. Pure: times come in, nothing is asked.

A bookie is missing while some ledger's metadata or its cookie names it and it is not registered; it is lost once it has
been missing for the delay, or at once when a person says so. Registering again forgives everything.
"""

from collections.abc import Collection

from quire_bookie.model import BookieId


class LostBookies:
    """What one auditor has seen since it was elected."""

    def __init__(self) -> None:
        self._missing_s: dict[BookieId, float] = {}
        self._audited: set[BookieId] = set()

    def saw(self, known: Collection[BookieId], registered: Collection[BookieId], now_s: float) -> None:
        """The state of the cluster at `now_s`."""
        for bookie in set(known) - set(registered):
            self._missing_s.setdefault(bookie, now_s)
        for bookie in list(self._missing_s):
            if bookie in registered or bookie not in known:
                del self._missing_s[bookie]
                self._audited.discard(bookie)

    def returned(self, registered: Collection[BookieId]) -> None:
        """These are registered now."""
        for bookie in self._missing_s.keys() & set(registered):
            del self._missing_s[bookie]
            self._audited.discard(bookie)

    def lost(self, delay_s: float, now_s: float, *, at_once: bool = False) -> frozenset[BookieId]:
        """Those that are lost; with `at_once` everybody who is missing."""
        return frozenset(b for b, since_s in self._missing_s.items() if at_once or now_s - since_s >= delay_s)

    def to_audit(self, delay_s: float, now_s: float) -> frozenset[BookieId]:
        """Those that are lost and were not audited since they went missing."""
        return self.lost(delay_s, now_s) - self._audited

    def audited(self, bookies: Collection[BookieId]) -> None:
        """Every ledger of these was marked."""
        self._audited |= set(bookies) & self._missing_s.keys()

    def audit_again(self) -> None:
        """Whoever is lost is to be audited once more: marks may have been taken away, ledgers restored."""
        self._audited.clear()

    def next_s(self, delay_s: float, now_s: float) -> float | None:
        """Seconds until the next becomes lost; None when nobody is on the way to it."""
        waits = [
            since_s + delay_s - now_s
            for bookie, since_s in self._missing_s.items()
            if bookie not in self._audited and since_s + delay_s > now_s
        ]
        return min(waits, default=None)

    @property
    def missing(self) -> frozenset[BookieId]:
        """Everybody who is missing, lost or not yet."""
        return frozenset(self._missing_s)
