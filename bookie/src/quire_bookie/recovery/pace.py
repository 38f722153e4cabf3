"""A rate that several users share: each waits until what was granted before it has had its time. Nothing else."""

import asyncio


class Pace:
    """`per_s` units in a second; 0: no bound. What was not used is not saved up beyond a tenth of a second."""

    def __init__(self, per_s: float) -> None:
        self._per_s = per_s
        self._next_s = 0.0

    async def take(self, units: float) -> None:
        """Wait for the turn of `units`. They count as used even when the caller is cancelled meanwhile."""
        if self._per_s <= 0:
            return
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        start_s = max(self._next_s, now_s - 0.1)
        self._next_s = start_s + units / self._per_s
        if start_s > now_s:
            await asyncio.sleep(start_s - now_s)
