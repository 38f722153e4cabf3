"""Limits a rate that several callers share: each waits until the units granted before it have used their time."""

import asyncio


class Pace:
    """Grants `per_s` units per second; 0 means no limit. At most a tenth of a second of unused units is saved."""

    def __init__(self, per_s: float) -> None:
        self._per_s = per_s
        self._next_s = 0.0

    async def take(self, units: float) -> None:
        """Wait until `units` are granted. They count as used even if the caller is cancelled meanwhile."""
        if self._per_s <= 0:
            return
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        start_s = max(self._next_s, now_s - 0.1)
        self._next_s = start_s + units / self._per_s
        if start_s > now_s:
            await asyncio.sleep(start_s - now_s)
