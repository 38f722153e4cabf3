"""Admits the reads far behind the tail, of all managed ledgers of a broker: few at once, in the order of arrival.

Their answers come from the same bookies and over the same connections as those of readers near the tail, which never
wait here. A turn is awaited for a limited time, so that reads which a bookie does not answer stop no other ones.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from quire_bookie.dataclass import dataclass


@dataclass(slots=True)
class CatchUpStats:
    """Counters since the broker started."""

    reads: int = 0
    waits: int = 0


class CatchUpTurns:
    """Gives out at most `at_once_max` turns; more only to a read that waited for `wait_max_s`."""

    def __init__(self, at_once_max: int, wait_max_s: float) -> None:
        self.stats = CatchUpStats()
        self._free = at_once_max
        self._wait_max_s = wait_max_s
        self._waiting: deque[asyncio.Future[None]] = deque()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn, and have it until the end."""
        self.stats.reads += 1
        if self._free > 0:
            self._free -= 1
        else:
            await self._wait()
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self) -> None:
        self.stats.waits += 1
        loop = asyncio.get_running_loop()
        admitted: asyncio.Future[None] = loop.create_future()
        timer = loop.call_later(self._wait_max_s, self._admit_late, admitted)
        self._waiting.append(admitted)
        try:
            await admitted
        except asyncio.CancelledError:
            if admitted.done() and not admitted.cancelled():
                self._pass_on()
            elif admitted in self._waiting:
                self._waiting.remove(admitted)
            raise
        finally:
            timer.cancel()

    def _admit_late(self, admitted: asyncio.Future[None]) -> None:
        if not admitted.done():
            self._waiting.remove(admitted)
            self._free -= 1
            admitted.set_result(None)

    def _pass_on(self) -> None:
        """Give a turn that ended to the next one."""
        while self._waiting and self._free >= 0:
            admitted = self._waiting.popleft()
            if not admitted.done():
                admitted.set_result(None)
                return
        self._free += 1
