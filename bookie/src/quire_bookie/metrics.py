"""Measures latencies: callers on hot paths count them in a `LatencyHistogram`. Pure; `exposition` shows the counts."""

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence

LATENCY_BOUNDS_S = (
    *(0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0),
)
"""Upper bounds of the buckets: a durable add takes 0.1 to 20 ms, a stalled disk seconds; clients time out at 30 s."""


class LatencyHistogram:
    """Counts durations in buckets. Cheap enough to be called once per run of entries."""

    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(LATENCY_BOUNDS_S) + 1)
        """Per bucket, not cumulative; the last one is for durations above the largest bound."""
        self.seconds = 0.0
        """Sum of all observed durations."""

    def observe(self, seconds: float, count: int = 1) -> None:
        """Count `count` events that took `seconds` each."""
        self.counts[bisect_left(LATENCY_BOUNDS_S, seconds)] += count
        self.seconds += seconds * count

    def add(self, other: "LatencyHistogram") -> None:
        """Add the counts of another histogram."""
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        self.seconds += other.seconds

    @property
    def total(self) -> int:
        """Number of observed events."""
        return sum(self.counts)

    def since(self, earlier: Sequence[int] | None) -> list[int]:
        """Return the counts since an earlier copy of `counts`."""
        return list(self.counts) if earlier is None else [n - was for n, was in zip(self.counts, earlier, strict=True)]


def quantile_s(counts: Sequence[int], share: float) -> float | None:
    """Return the latency in seconds that `share` of the events did not exceed, interpolated. None: no events."""
    total = sum(counts)
    if not total:
        return None
    wanted = share * total
    below = 0
    for bucket, count in enumerate(counts):
        if count and below + count >= wanted:
            lower = LATENCY_BOUNDS_S[bucket - 1] if bucket else 0.0
            upper = LATENCY_BOUNDS_S[min(bucket, len(LATENCY_BOUNDS_S) - 1)]
            return lower + (upper - lower) * (wanted - below) / count
        below += count
    return LATENCY_BOUNDS_S[-1]


class LatencyWindow:
    """Computes quantiles of about the last minute from scrapes of one histogram. Keeps a few copies of its counts."""

    __slots__ = ("_copies", "_span_s")

    def __init__(self, span_s: float = 60.0) -> None:
        self._span_s = span_s
        self._copies: deque[tuple[float, list[int]]] = deque()

    def counts(self, histogram: LatencyHistogram, now_s: float) -> list[int]:
        """Return the counts of the window that ends now: since the newest copy at least `span_s` old, else all."""
        if self._copies and any(count < 0 for count in histogram.since(self._copies[-1][1])):
            self._copies.clear()  # the histogram was replaced by a new one
        while len(self._copies) > 1 and self._copies[1][0] <= now_s - self._span_s:
            self._copies.popleft()
        start = self._copies[0][1] if self._copies and self._copies[0][0] <= now_s - self._span_s else None
        if not self._copies or now_s - self._copies[-1][0] >= self._span_s / 8:
            self._copies.append((now_s, list(histogram.counts)))
        return histogram.since(start)
