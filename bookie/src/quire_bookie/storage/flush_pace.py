"""How many steps a flush takes between two turns of the event loop. Pure.

Owns the comparison of the two halves of the write cache: a flush should end shortly before the other half is full. A
flush that is behind takes more steps in a turn, which slows adds down a little; one that never caught up would make
all adds wait until it ends. Never lets a flush take more than `STEPS_MAX` steps in a turn.
"""

from typing import Final

from quire_bookie.storage.write_cache import WriteCache

STEPS_MAX: Final = 12
"""Steps of 1 to 2 ms in a turn."""
_DONE_AT = 0.85
"""The share of the other half that may be filled when the flush ends."""
_BEHIND_PER_STEP = 0.02
"""The share of a half by which a flush is behind for each further step in a turn."""


class FlushPace:
    """Counts the steps and the appended entries of one flush of a half."""

    def __init__(self, cache: WriteCache, entries: int) -> None:
        self._cache = cache
        self._entries = entries
        self._appended = 0
        self._steps = 0

    def appended(self, entries: int) -> None:
        """Note entries that were appended to a log. An attempt that is repeated appends them again."""
        self._appended += entries

    def turn_is_due(self) -> bool:
        """Note a step, and return whether the event loop has a turn before the next one."""
        self._steps += 1
        if self._steps < self.steps_in_turn():
            return False
        self._steps = 0
        return True

    def steps_in_turn(self) -> int:
        """Return how many steps follow each other now."""
        if not self._entries:
            return 1
        behind = self._cache.active_share / _DONE_AT - min(1.0, self._appended / self._entries)
        return max(1, min(STEPS_MAX, 1 + int(behind / _BEHIND_PER_STEP)))
