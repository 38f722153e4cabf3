"""Growing pauses between attempts. Independent of the attempted work."""

import asyncio

from quire_bookie.env.chance import Chance

DOUBLINGS_MAX = 20


class Backoff:
    """Pauses in seconds that double between two bounds.

    With `chance` each is drawn between half of it and the whole, so that clients that failed together do not come back
    together.
    """

    def __init__(self, bounds_s: tuple[float, float], chance: Chance | None = None) -> None:
        assert 0 <= bounds_s[0] <= bounds_s[1]
        self._bounds_s = bounds_s
        self._chance = chance
        self._next_s = bounds_s[0]

    def grow(self) -> float:
        """Return the next pause; the one after it is twice as long."""
        pause_s = self._next_s
        self._next_s = min(self._bounds_s[1], pause_s * 2)
        return pause_s if self._chance is None else self._chance.uniform(pause_s / 2, pause_s)

    def reset(self) -> None:
        """Begin with the shortest pause again, because an attempt succeeded."""
        self._next_s = self._bounds_s[0]

    async def wait(self) -> None:
        """Wait for the next pause."""
        await asyncio.sleep(self.grow())


def pause_after(failures: int, bounds_s: tuple[float, float]) -> float:
    """Return the pause in seconds after this many failures in a row, at least one."""
    return min(bounds_s[1], bounds_s[0] * 2.0 ** min(failures - 1, DOUBLINGS_MAX))
