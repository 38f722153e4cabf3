"""Entries that must not be delivered before a time: a queue by that time. Times are milliseconds since the epoch.

Only Shared and Key_Shared subscriptions have one. It is in memory: the entries stay unacknowledged, so a broker that
takes the topic over reads them again. An entry takes 16 to 20 bytes. Owns no timer; `due_in_ms` returns when to check
again. Does not know which entries are acknowledged meanwhile: the caller checks those that are due.

A timing wheel: buckets of 16 ms for the next second, of a second for the next minute, and so on in steps of 64. When
the time of a coarse bucket comes, its entries move to finer ones. An entry is due up to 16 ms late and never early.
"""

import heapq
from array import array
from typing import Final

from quire_broker.dispatch.redelivery import NO_SLOT
from quire_broker.managed_ledger.position import Position

_FINEST_SHIFT: Final = 4
_STEP_SHIFT: Final = 6
_LEVELS: Final = 6
_ENTRY_SHIFT: Final = 40
_ENTRY_MASK: Final = (1 << _ENTRY_SHIFT) - 1
_TIME_MAX_MS: Final = (1 << 62) - 1


class _Bucket:
    """Entries of one span of time, in the order in which they came."""

    __slots__ = ("keys", "slots", "taken", "times_ms")

    def __init__(self) -> None:
        self.keys = array("q")
        self.times_ms = array("q")  # empty in the finest level
        self.slots: array[int] | None = None
        self.taken = 0

    def slot(self, at: int) -> int:
        return NO_SLOT if self.slots is None else self.slots[at]


class DelayedQueue:
    """Positions by delivery time. Each position is added once, until it was taken."""

    def __init__(self) -> None:
        self._buckets: dict[tuple[int, int], _Bucket] = {}
        self._wakes: list[tuple[int, int, int]] = []  # a heap: when to look at a bucket, its level, its number
        self._ledgers: list[int] = []
        self._numbers: dict[int, int] = {}
        self._highest = Position(-1, -1)
        self._skipped = Position(-1, -1)
        self._swept = Position(-1, -1)
        self._sweeping: list[_Bucket] = []  # all coarse buckets of when a sweep began, as far as it is not done
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, deliver_at_ms: int, position: Position, slot: int, now_ms: int) -> None:
        """Keep an entry until it is due."""
        number = self._numbers.get(position.ledger_id)
        if number is None:
            number = self._numbers[position.ledger_id] = len(self._ledgers)
            self._ledgers.append(position.ledger_id)
        if position > self._highest:
            self._highest = position
        self._count += 1
        self._put(min(deliver_at_ms, _TIME_MAX_MS), number << _ENTRY_SHIFT | position.entry_id, slot, now_ms)

    def _put(self, deliver_at_ms: int, key: int, slot: int, now_ms: int, levels: int = _LEVELS) -> None:
        level, distance = 0, (deliver_at_ms - now_ms) >> _FINEST_SHIFT + _STEP_SHIFT
        while distance > 0 and level < levels - 1:
            level, distance = level + 1, distance >> _STEP_SHIFT
        for coarser in range(levels - 1, level, -1):
            if (coarser, deliver_at_ms >> _FINEST_SHIFT + coarser * _STEP_SHIFT) in self._buckets:
                level = coarser  # earlier entries of the same time are there: stay behind them
                break
        shift = _FINEST_SHIFT + level * _STEP_SHIFT
        number = deliver_at_ms >> shift
        bucket = self._buckets.get((level, number))
        if bucket is None:
            bucket = self._buckets[level, number] = _Bucket()
            heapq.heappush(self._wakes, (number + (level == 0) << shift, level, number))
        if slot != NO_SLOT and bucket.slots is None:
            bucket.slots = array("i", [NO_SLOT]) * len(bucket.keys)
        if bucket.slots is not None:
            bucket.slots.append(slot)
        bucket.keys.append(key)
        if level:
            bucket.times_ms.append(deliver_at_ms)

    def take_due(self, now_ms: int, due_max: int, looks_max: int) -> list[tuple[Position, int]]:
        """Remove and return up to `due_max` due entries with their slots, by delivery time; those of 16 ms as added.

        Looks at `looks_max` entries at most, to hold the event loop for a short time: there may be more.
        """
        due: list[tuple[Position, int]] = []
        looks_max = self._sweep_some(now_ms, looks_max)
        wakes = self._wakes
        while looks_max > 0 and len(due) < due_max and wakes and wakes[0][0] <= now_ms:
            _, level, number = wakes[0]
            bucket = self._buckets[level, number]
            count = looks_max if level else min(looks_max, due_max - len(due))
            end = min(len(bucket.keys), bucket.taken + count)
            looks_max -= end - bucket.taken
            first, bucket.taken = bucket.taken, end
            if end == len(bucket.keys):
                heapq.heappop(wakes)
                del self._buckets[level, number]
            for at in range(first, end):
                key = bucket.keys[at]
                if level:
                    self._put(bucket.times_ms[at], key, bucket.slot(at), now_ms, level)
                else:
                    due.append((self._position(key), bucket.slot(at)))
        self._count -= len(due)
        if not self._count:
            self.clear()
        return due

    def _position(self, key: int) -> Position:
        return Position(self._ledgers[key >> _ENTRY_SHIFT], key & _ENTRY_MASK)

    def skipped_through(self, position: Position) -> None:
        """Note that no entry up to `position` is wanted: they wait for their time, or for a sweep."""
        if self._highest <= position:
            self.clear()
        else:
            self._skipped = max(self._skipped, position)

    def sweep(self) -> bool:
        """Make `take_due` drop skipped entries that are not due soon. Return whether it still has some to look for."""
        if not self._sweeping and self._skipped > self._swept:
            self._swept = self._skipped
            coarse = sorted((place for place in self._buckets if place[0]), reverse=True)
            self._sweeping = [self._buckets.pop(place) for place in coarse]
            self._wakes = [wake for wake in self._wakes if wake[1:] in self._buckets]
            heapq.heapify(self._wakes)
        return bool(self._sweeping)

    def _sweep_some(self, now_ms: int, looks_max: int) -> int:
        """Look at up to `looks_max` entries of a sweep. Return how many it was less."""
        while looks_max > 0 and self._sweeping:
            bucket = self._sweeping[-1]
            first, bucket.taken = bucket.taken, min(len(bucket.keys), bucket.taken + looks_max)
            looks_max -= bucket.taken - first
            if bucket.taken == len(bucket.keys):
                self._sweeping.pop()
            for at in range(first, bucket.taken):
                key = bucket.keys[at]
                if self._position(key) > self._swept:
                    self._put(bucket.times_ms[at], key, bucket.slot(at), now_ms)
                else:
                    self._count -= 1
        return looks_max

    def clear(self) -> None:
        """Drop all entries."""
        self._buckets.clear()
        self._wakes.clear()
        self._ledgers.clear()
        self._numbers.clear()
        self._highest = self._skipped = self._swept = Position(-1, -1)
        self._sweeping = []
        self._count = 0

    def due_in_ms(self, now_ms: int) -> int | None:
        """Return the milliseconds until `take_due` has work, at least 1; None if there are no entries."""
        if self._sweeping:
            return 1
        return max(1, self._wakes[0][0] - now_ms) if self._wakes else None
