"""Measures stalls of an event loop: a timer that fires late shows that the loop did something else meanwhile."""

import asyncio

from quire_bookie.limits import LOOP_SAMPLE_S
from quire_bookie.metrics import LatencyHistogram


class LoopStalls:
    """Samples how late the running loop is, from `start` to `stop`.

    A stall that is longer than the pause between two samples is always seen, at most by that pause too short; of
    shorter ones a share.
    """

    def __init__(self) -> None:
        self.late = LatencyHistogram()
        """One event per sample; 0 s of a loop that is on time."""
        self.longest_s = 0.0
        self._due_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Sample from now on."""
        self._wait(asyncio.get_running_loop())

    def stop(self) -> None:
        """Take no further sample."""
        if self._timer is not None:
            self._timer.cancel()

    def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due_s = loop.time() + LOOP_SAMPLE_S
        self._timer = loop.call_at(self._due_s, self._sample, loop)

    def _sample(self, loop: asyncio.AbstractEventLoop) -> None:
        late_s = max(0.0, loop.time() - self._due_s)
        self.late.observe(late_s)
        self.longest_s = max(self.longest_s, late_s)
        self._wait(loop)
