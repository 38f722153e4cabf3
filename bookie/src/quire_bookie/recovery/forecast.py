"""Predicts when no ledger will be under-replicated, from the last minutes.

Pure: the caller supplies times and counts.
"""

from collections import deque

WINDOW_S = 900.0
_SAMPLES_MAX = 100


class Forecast:
    """Remembers the number of marked ledgers over time. Bounded."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque(maxlen=_SAMPLES_MAX)

    def record(self, count: int, now_s: float) -> None:
        """Record the number of ledgers that are marked now."""
        if self._seen and now_s - self._seen[-1][0] < WINDOW_S / _SAMPLES_MAX and self._seen[-1][1] and count:
            return
        # A rise means a new failure: the progress until then does not predict the future.
        if self._seen and count > self._seen[-1][1]:
            self._seen.clear()
        self._seen.append((now_s, count))
        while now_s - self._seen[0][0] > WINDOW_S:
            self._seen.popleft()

    def eta_s(self) -> int:
        """Return the seconds until none is left at the rate so far; 0 if none is left, -1 if unknown."""
        if not self._seen or not self._seen[-1][1]:
            return 0
        (first_s, before), (last_s, left) = self._seen[0], self._seen[-1]
        if before <= left or last_s <= first_s:
            return -1
        return int(left * (last_s - first_s) / (before - left)) + 1
