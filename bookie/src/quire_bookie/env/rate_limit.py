"""Limits a rate of bytes or operations. Owns only the timing, never what it limits.

A token bucket: unused time is saved up to `burst_s`, and no more, because others use the machine after a pause. A piece
larger than the bucket passes when the bucket is full, and later pieces wait longer in return.
"""

import asyncio

BURST_S = 0.1
_ROUNDING = 1e-6
"""Of a unit: times are floats."""


class RateLimit:
    """Grants `per_s` units per second of the event loop, in the order of the calls; 0 means no limit."""

    def __init__(self, per_s: float, burst_s: float = BURST_S) -> None:
        assert per_s >= 0 and burst_s >= 0
        self._per_s = per_s
        self._burst_s = burst_s
        self._used_until_s: float | None = None

    def reserve(self, units: float) -> float:
        """Count `units` as used. Return the loop time from which they may pass."""
        now_s = asyncio.get_running_loop().time()
        if self._per_s == 0:
            return now_s
        saved_from_s = now_s - self._burst_s
        before_s = saved_from_s if self._used_until_s is None else max(self._used_until_s, saved_from_s)
        self._used_until_s = before_s + units / self._per_s
        return self._used_until_s

    def saved(self) -> float:
        """Return how many units may pass at once; less than 0 while earlier ones are not due yet."""
        if self._per_s == 0:
            return float("inf")
        if self._used_until_s is None:
            return self._burst_s * self._per_s
        unused_s = asyncio.get_running_loop().time() - self._used_until_s
        return min(unused_s, self._burst_s) * self._per_s

    def wait_s(self) -> float:
        """Return the time until a whole unit may pass; 0: one may now."""
        missing = 1 - self.saved()
        return missing / self._per_s if missing > _ROUNDING else 0.0

    async def take(self, units: float) -> None:
        """Wait until `units` may pass. They count as used even if the caller is cancelled meanwhile."""
        if self._per_s == 0:
            return
        wait_s = self.reserve(units) - asyncio.get_running_loop().time()
        if wait_s > 0:
            await asyncio.sleep(wait_s)
