"""Paces compaction: a rate, a time budget, and pauses while client requests are slow. Never copies entries itself."""

import asyncio
from collections.abc import Callable, Sequence

from quire_bookie import limits
from quire_bookie.env.rate_limit import RateLimit
from quire_bookie.metrics import LatencyHistogram, quantile_s

OBSERVATIONS_MIN = 20
"""Fewer requests than this do not allow an estimate of the 99th percentile."""


class LatencyWatch:
    """Detects whether adds or reads were slow recently. `histograms` is called each time: the owner may replace them.

    `bound_s`: the p99 above which they count as slow; 0: never. A result covers a period of at least `span_s` and is
    valid until the next one.
    """

    def __init__(
        self,
        histograms: Callable[[], Sequence[LatencyHistogram]],
        bound_s: float,
        span_s: float = limits.COMPACTION_PAUSE_S,
    ) -> None:
        self._histograms = histograms
        self._bound_s = bound_s
        self._span_s = span_s
        self._before: list[list[int]] = []
        self._since_s = 0.0
        self._slow = False

    def begin(self, now_s: float) -> None:
        """Consider only requests from now on."""
        self._before = [list(histogram.counts) for histogram in self._histograms()]
        self._since_s = now_s
        self._slow = False

    def is_slow(self, now_s: float) -> bool:
        """Return whether requests were slow, as of this time of a monotonic clock."""
        if self._bound_s > 0 and now_s - self._since_s >= self._span_s:
            before = self._before
            self.begin(now_s)
            self._slow = len(before) == len(self._before) and any(map(self._is_above_bound, before, self._before))
        return self._slow

    def _is_above_bound(self, before: Sequence[int], now: Sequence[int]) -> bool:
        counts = [count - was for count, was in zip(now, before, strict=True)]
        if min(counts) < 0 or sum(counts) < OBSERVATIONS_MIN:
            return False
        p99_s = quantile_s(counts, 0.99)
        return p99_s is not None and p99_s > self._bound_s


class RatePace:
    """Paces one run: implements `storage.compaction.Pace`. `rate` is in bytes or in entries per second; 0: unlimited.

    `until_s`: loop time at which the budget ends, or None. `stop`: whether the run must stop.
    """

    def __init__(
        self,
        *,
        rate: float,
        by_bytes: bool,
        until_s: float | None,
        stop: Callable[[], bool],
        slow: Callable[[], bool],
        pause_s: float = limits.COMPACTION_PAUSE_S,
    ) -> None:
        # Time lost to pauses is not caught up: the rate is a bound, not an average.
        self._rate = RateLimit(rate, burst_s=0)
        self._by_bytes = by_bytes
        self._until_s = until_s
        self._stop = stop
        self._slow = slow
        self._pause_s = pause_s
        self.pauses = 0

    @property
    def stopping(self) -> bool:
        """Whether the budget is used up, or the run must stop."""
        return self._stop() or (self._until_s is not None and asyncio.get_running_loop().time() >= self._until_s)

    async def spend(self, size_bytes: int, entries: int, /) -> None:
        """Wait until these bytes or entries fit the rate, and while client requests are slow."""
        loop = asyncio.get_running_loop()
        await self._wait_until(self._rate.reserve(size_bytes if self._by_bytes else entries))
        for _ in range(limits.COMPACTION_PAUSES_MAX):
            if self.stopping or not self._slow():
                return
            self.pauses += 1
            await self._wait_until(loop.time() + self._pause_s)

    async def _wait_until(self, when_s: float) -> None:
        """Sleep in short steps, so that a suspension is noticed."""
        loop = asyncio.get_running_loop()
        await asyncio.sleep(0)
        while not self.stopping:
            left_s = when_s - loop.time()
            if left_s <= 0:
                return
            await asyncio.sleep(min(left_s, self._pause_s))
