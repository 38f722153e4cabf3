"""Counts failures of bookies that are registered and reachable, and quarantines those that fail repeatedly."""

from collections import deque
from collections.abc import Callable

from quire_bookie.model import BookieId


class Quarantine:
    """Excludes a bookie for `quarantine_s` after `errors_max` failures within `interval_s`; never if that is 0."""

    def __init__(self, errors_max: int, interval_s: float, quarantine_s: float, now_s: Callable[[], float]) -> None:
        self._errors_max = errors_max
        self._interval_s = interval_s
        self._quarantine_s = quarantine_s
        self._now_s = now_s
        self._failed_s: dict[BookieId, deque[float]] = {}
        self._until_s: dict[BookieId, float] = {}

    def failed(self, bookie: BookieId) -> bool:
        """Count a failure. Return whether it begins a quarantine of the bookie."""
        if not self._errors_max:
            return False
        now_s = self._now_s()
        failures = self._failed_s.setdefault(bookie, deque(maxlen=self._errors_max))
        failures.append(now_s)
        if len(failures) < self._errors_max or now_s - failures[0] > self._interval_s:
            return False
        failures.clear()
        begins = bookie not in self.members()
        self._until_s[bookie] = now_s + self._quarantine_s
        return begins

    def members(self) -> frozenset[BookieId]:
        """Return the bookies that are in quarantine now."""
        if not self._until_s:
            return frozenset()
        now_s = self._now_s()
        self._until_s = {bookie: until_s for bookie, until_s in self._until_s.items() if until_s > now_s}
        return frozenset(self._until_s)
