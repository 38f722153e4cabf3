"""Entries that must not be delivered before a time: a queue by that time. Times are milliseconds since the epoch.

Only Shared and Key_Shared subscriptions have one. It is in memory: the entries stay unacknowledged, so a broker that
takes the topic over reads them again. Owns no timer; `due_in_ms` returns when to check again.
"""

import heapq

from quire_broker.managed_ledger.position import Position


class DelayedQueue:
    """Positions by delivery time. An entry is due up to one tick early, so that one check serves a whole tick."""

    def __init__(self, tick_ms: int) -> None:
        self._tick_ms = tick_ms
        self._heap: list[tuple[int, Position, int]] = []
        self._positions: set[Position] = set()

    def __len__(self) -> int:
        return len(self._positions)

    def __contains__(self, position: Position) -> bool:
        return position in self._positions

    def is_early(self, deliver_at_ms: int, now_ms: int) -> bool:
        """Return whether an entry with that delivery time must wait."""
        return deliver_at_ms > now_ms + self._tick_ms

    def add(self, deliver_at_ms: int, position: Position, slot: int) -> None:
        """Keep an entry until it is due."""
        if position not in self._positions:
            self._positions.add(position)
            heapq.heappush(self._heap, (deliver_at_ms, position, slot))

    def take_due(self, now_ms: int) -> list[tuple[Position, int]]:
        """Remove and return the due entries with their slots, by delivery time."""
        due: list[tuple[Position, int]] = []
        heap, positions = self._heap, self._positions
        while heap and not self.is_early(heap[0][0], now_ms):
            _, position, slot = heapq.heappop(heap)
            if position in positions:
                positions.discard(position)
                due.append((position, slot))
        return due

    def discard(self, position: Position) -> None:
        """Drop an entry that was acknowledged by its id without a delivery."""
        self._positions.discard(position)

    def clear(self) -> None:
        """Drop all entries."""
        self._heap.clear()
        self._positions.clear()

    def due_in_ms(self, now_ms: int) -> int | None:
        """Return the milliseconds until `take_due` returns an entry, at least 1; None if there are no entries."""
        if not self._positions:
            return None
        assert self._heap, "each position is in the heap"
        return max(1, self._heap[0][0] - self._tick_ms - now_ms)
