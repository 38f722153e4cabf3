"""Limits a stream of bytes to a rate. Owns only the timing, not the bytes.

A token bucket of a tenth of a second bounds the burst after a pause, because other users of the machine wait for it. A
piece larger than the bucket passes when the bucket is full, and later pieces wait longer in return.
"""

import asyncio

BURST_S = 0.1


class ByteRate:
    """Limits one asyncio task to `per_s` bytes per second; None for no limit."""

    def __init__(self, per_s: float | None) -> None:
        assert per_s is None or per_s > 0
        self._per_s = per_s
        self._burst = (per_s or 0.0) * BURST_S
        self._available_bytes = self._burst
        self._updated_s: float | None = None

    async def take(self, size_bytes: int) -> None:
        """Wait until `size_bytes` bytes may pass."""
        if self._per_s is None:
            return
        now_s = asyncio.get_running_loop().time()
        if self._updated_s is not None:
            self._available_bytes = min(self._burst, self._available_bytes + (now_s - self._updated_s) * self._per_s)
        self._updated_s = now_s
        self._available_bytes -= size_bytes
        if self._available_bytes < 0:
            await asyncio.sleep(-self._available_bytes / self._per_s)
