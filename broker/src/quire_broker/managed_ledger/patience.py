"""The pauses between attempts, and trying again while the metadata store is away. Knows nothing of what is tried."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from quire_bookie.env.chance import Chance
from quire_bookie.errors import MetadataUnavailableError

T = TypeVar("T")


class Backoff:
    """Growing pauses, with jitter, in seconds between the two bounds."""

    def __init__(self, bounds_s: tuple[float, float], chance: Chance) -> None:
        self._bounds_s = bounds_s
        self._chance = chance
        self._next_s = bounds_s[0]

    def grow(self) -> float:
        """The next pause; each is about twice the one before."""
        pause_s = self._chance.uniform(self._next_s / 2, self._next_s)
        self._next_s = min(self._bounds_s[1], self._next_s * 2)
        return pause_s

    async def wait(self) -> None:
        """Pause."""
        await asyncio.sleep(self.grow())


async def patiently(action: Callable[[], Awaitable[T]], backoff: Backoff, patience_s: float) -> T:
    """The result of `action`, tried again while the metadata store is away, for `patience_s`; then its error."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience_s
    while True:
        try:
            return await action()
        except MetadataUnavailableError:
            pause_s = backoff.grow()
            if loop.time() + pause_s > deadline:
                raise
            await asyncio.sleep(pause_s)
