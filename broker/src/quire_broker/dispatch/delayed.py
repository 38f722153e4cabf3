"""Entries in memory that must not be delivered before a time: a queue by that time. Times are ms since the epoch.

An entry takes 16 to 20 bytes. Owns no timer; `due_in_ms` returns when to check again. Does not know which entries are
acknowledged or skipped meanwhile: `delayed_index` checks those that are due.

A timing wheel: buckets of 16 ms for the next second, of a second for the next minute, and so on in steps of 64. When
the time of a coarse bucket comes, its entries move to finer ones. An entry is due up to 16 ms late and never early.
"""

import heapq
from array import array
from collections.abc import Iterator
from typing import Final

from quire_broker.dispatch.redelivery import NO_SLOT
from quire_broker.managed_ledger.cursors.bucket_format import ENTRY_SHIFT, position_of
from quire_broker.managed_ledger.position import Position

_FINEST_SHIFT: Final = 4
_STEP_SHIFT: Final = 6
_LEVELS: Final = 6
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
        self.highest = Position(-1, -1)
        """The highest position since there was none."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, deliver_at_ms: int, position: Position, slot: int, now_ms: int) -> None:
        """Keep an entry until it is due."""
        number = self._numbers.get(position.ledger_id)
        if number is None:
            number = self._numbers[position.ledger_id] = len(self._ledgers)
            self._ledgers.append(position.ledger_id)
        if position > self.highest:
            self.highest = position
        self._count += 1
        self._put(min(deliver_at_ms, _TIME_MAX_MS), number << ENTRY_SHIFT | position.entry_id, slot, now_ms)

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
                    due.append((position_of(key, self._ledgers), bucket.slot(at)))
        self._count -= len(due)
        if not self._count:
            self.clear()
        return due

    def columns(self) -> Iterator[tuple["array[int]", "array[int]", "array[int] | None"]]:
        """Yield copies of the times, keys and slots of all entries, in no order; `ledgers` resolves the keys."""
        for (level, number), bucket in list(self._buckets.items()):
            keys = bucket.keys[bucket.taken :]
            due_ms = number + 1 << _FINEST_SHIFT
            times_ms = bucket.times_ms[bucket.taken :] if level else array("q", [due_ms]) * len(keys)
            yield times_ms, keys, None if bucket.slots is None else bucket.slots[bucket.taken :]

    @property
    def ledgers(self) -> list[int]:
        """The ledgers by the numbers that the keys have. Do not change them."""
        return self._ledgers

    def clear(self) -> None:
        """Drop all entries."""
        self._buckets.clear()
        self._wakes.clear()
        self._ledgers = []
        self._numbers.clear()
        self.highest = Position(-1, -1)
        self._count = 0

    def due_in_ms(self, now_ms: int) -> int | None:
        """Return the milliseconds until `take_due` has work, at least 1; None if there are no entries."""
        return max(1, self._wakes[0][0] - now_ms) if self._wakes else None
