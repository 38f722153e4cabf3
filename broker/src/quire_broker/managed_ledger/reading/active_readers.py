"""Where the active cursors of one managed ledger read, and whether one of them reads given entries soon.

An active cursor has consumers. It reads entries soon if it is at them or at most a given number of entries before
them. Holds no entry.
"""

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Protocol

from quire_broker.managed_ledger.nodes.ledger_list import LedgerList
from quire_broker.managed_ledger.position import Position

_FRESH_MAX = 8  # with more cursors, their positions are sorted again only from time to time
_KEPT_S_PER_CURSOR = 20e-6  # sorting them costs a fiftieth of that


class ReadingCursor(Protocol):
    """The part of a cursor that counts here."""

    @property
    def active(self) -> bool:
        """Whether consumers wait for what it reads."""
        ...

    @property
    def read_position(self) -> Position:
        """The position at which its next read begins."""
        ...


class ActiveReaders:
    """The read positions of the active cursors."""

    def __init__(self, ledgers: LedgerList) -> None:
        self._ledgers = ledgers
        self._cursors: Callable[[], Sequence[ReadingCursor]] = tuple
        self._positions: list[Position] = []
        self._kept_until_s = 0.0
        self._loop = asyncio.get_running_loop()

    def follow(self, cursors: Callable[[], Sequence[ReadingCursor]]) -> None:
        """Read the positions of these cursors from now on."""
        self._cursors = cursors

    def _sorted(self) -> list[Position]:
        if len(self._positions) <= _FRESH_MAX or self._loop.time() >= self._kept_until_s:
            self._positions = sorted([cursor.read_position for cursor in self._cursors() if cursor.active])
            self._kept_until_s = self._loop.time() + len(self._positions) * _KEPT_S_PER_CURSOR
        return self._positions

    def reads_soon(self, ledger_id: int, first: int, last: int, entries_max: int) -> bool:
        """Return whether one reads some of these entries, and is at most `entries_max` before the first of them."""
        return self.count(ledger_id, first, last, entries_max, 1) > 0

    def count(self, ledger_id: int, first: int, last: int, entries_max: int, most: int) -> int:
        """Return how many do, as `reads_soon`; counts to `most`."""
        positions = self._sorted()
        index = bisect_right(positions, (ledger_id, last))
        found = 0
        while (
            found < min(most, index) and self._distance(positions[index - found - 1], ledger_id, first) <= entries_max
        ):
            found += 1
        return found

    def _distance(self, position: Position, ledger_id: int, first: int) -> int:
        """Return the entries from a position to before an entry; 0 if it is not before it."""
        if position.ledger_id == ledger_id:
            return max(0, first - position.entry_id)
        if position.ledger_id > ledger_id:
            return 0
        before = Position(position.ledger_id, position.entry_id - 1)
        return self._ledgers.entries_between(before, Position(ledger_id, first - 1))

    def is_far_behind(self, ledger_id: int, entry_id: int, entries_max: int) -> bool:
        """Return whether more than `entries_max` entries follow this one."""
        last = self._ledgers.last_confirmed
        if ledger_id == last.ledger_id:
            return last.entry_id - entry_id > entries_max
        return self._ledgers.entries_between(Position(ledger_id, entry_id), last) > entries_max
