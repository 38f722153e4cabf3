"""Growing pauses between attempts, and a retry loop for an unavailable metadata store. Independent of the action."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from quire_bookie.env.chance import Chance
from quire_bookie.errors import MetadataUnavailableError

T = TypeVar("T")


class Backoff:
    """Growing pauses with jitter, in seconds, between two bounds."""

    def __init__(self, bounds_s: tuple[float, float], chance: Chance) -> None:
        self._bounds_s = bounds_s
        self._chance = chance
        self._next_s = bounds_s[0]

    def grow(self) -> float:
        """Return the next pause; each is about twice the one before."""
        pause_s = self._chance.uniform(self._next_s / 2, self._next_s)
        self._next_s = min(self._bounds_s[1], self._next_s * 2)
        return pause_s

    async def wait(self) -> None:
        """Wait for the next pause."""
        await asyncio.sleep(self.grow())


async def retry_unavailable(action: Callable[[], Awaitable[T]], backoff: Backoff, timeout_s: float) -> T:
    """Return the result of `action`.

    Retry for `timeout_s` while the metadata store is unavailable, then raise its error.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while True:
        try:
            return await action()
        except MetadataUnavailableError:
            pause_s = backoff.grow()
            if loop.time() + pause_s > deadline:
                raise
            await asyncio.sleep(pause_s)
