"""Holds a stream of bytes to a rate. Owns only time: knows nothing of what flows.

A token bucket of a tenth of a second: after a pause at most so much may go at once, as whoever shares the machine waits
for that. A piece larger than the bucket goes when the bucket is full, and the debt is paid by those that follow.
"""

import asyncio

BURST_S = 0.1


class ByteRate:
    """`per_s` bytes a second; None: no limit. For one task of the loop at a time."""

    def __init__(self, per_s: float | None) -> None:
        assert per_s is None or per_s > 0
        self._per_s = per_s
        self._burst = (per_s or 0.0) * BURST_S
        self._room = self._burst
        self._seen_s: float | None = None

    async def take(self, size_bytes: int) -> None:
        """Wait until so many bytes may go."""
        if self._per_s is None:
            return
        now_s = asyncio.get_running_loop().time()
        if self._seen_s is not None:
            self._room = min(self._burst, self._room + (now_s - self._seen_s) * self._per_s)
        self._seen_s = now_s
        self._room -= size_bytes
        if self._room < 0:
            await asyncio.sleep(-self._room / self._per_s)
