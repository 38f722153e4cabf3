"""Counts latencies in buckets that are 1 % apart, in a bounded amount of memory. Pure."""

import math
from collections import Counter

_STEP = math.log(1.01)


class Latencies:
    """A histogram of latencies; values come back with an error of at most 1 %."""

    def __init__(self) -> None:
        self._buckets: Counter[int] = Counter()
        self.count = 0
        self.max_s = 0.0

    def add(self, seconds: float, count: int = 1) -> None:
        """Count a latency, that of `count` messages."""
        self._buckets[math.floor(math.log(max(seconds, 1e-6)) / _STEP)] += count
        self.count += count
        self.max_s = max(self.max_s, seconds)

    def percentile_s(self, share: float) -> float | None:
        """Return the latency that this share of the messages, 0 to 1, does not exceed; None without messages."""
        left = math.ceil(share * self.count)
        for bucket in sorted(self._buckets):
            left -= self._buckets[bucket]
            if left <= 0:
                return min(self.max_s, math.exp((bucket + 1) * _STEP))
        return None
