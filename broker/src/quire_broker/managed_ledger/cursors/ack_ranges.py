"""Individually acknowledged entries of a cursor: for each ledger, disjoint closed ranges of entry ids. Pure.

Does not know which entries exist: the caller clips a range to its ledger before it adds it. Never joins ranges of
different ledgers: only the ledger list shows whether two ledgers adjoin.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import NamedTuple


class AckRange(NamedTuple):
    """Entries `first` to `last`, both included, of one ledger."""

    ledger_id: int
    first: int
    last: int


class AckRanges:
    """A mutable set of entries. `entries` is their number."""

    __slots__ = ("_ledgers", "entries")

    def __init__(self) -> None:
        self._ledgers: dict[int, tuple[list[int], list[int]]] = {}
        self.entries = 0

    def __len__(self) -> int:
        """Return the number of ranges."""
        return sum(len(starts) for starts, _ in self._ledgers.values())

    def __bool__(self) -> bool:
        return bool(self._ledgers)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AckRanges) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # the set is mutable

    def __iter__(self) -> Iterator[AckRange]:
        """Iterate over all ranges, in order."""
        for ledger_id in sorted(self._ledgers):
            for first, last in zip(*self._ledgers[ledger_id], strict=True):
                yield AckRange(ledger_id, first, last)

    def ledgers(self) -> list[int]:
        """Return the ledgers that have a range, in order."""
        return sorted(self._ledgers)

    def ranges_of(self, ledger_id: int) -> list[tuple[int, int]]:
        """Return the first and last entry of each range of one ledger, in order."""
        found = self._ledgers.get(ledger_id)
        return [] if found is None else list(zip(*found, strict=True))

    def add(self, ledger_id: int, first: int, last: int) -> int:
        """Add entries `first` to `last`, both included. Return how many of them were not in the set before."""
        assert 0 <= first <= last, "a range holds at least one entry"
        found = self._ledgers.get(ledger_id)
        if found is None:
            self._ledgers[ledger_id] = ([first], [last])
            added = last - first + 1
        else:
            added = _insert(found[0], found[1], first, last)
        assert 0 <= added <= last - first + 1
        self.entries += added
        return added

    def __contains__(self, position: tuple[int, int]) -> bool:
        return self.end_of(position[0], position[1]) is not None

    def end_of(self, ledger_id: int, entry_id: int) -> int | None:
        """Return the last entry of the range that contains the entry, or None if no range does."""
        found = self._ledgers.get(ledger_id)
        if found is None:
            return None
        index = bisect_left(found[1], entry_id)
        if index < len(found[1]) and found[0][index] <= entry_id:
            return found[1][index]
        return None

    def next_start(self, ledger_id: int, entry_id: int) -> int | None:
        """Return the first entry of the first range of the ledger that begins above `entry_id`, or None."""
        found = self._ledgers.get(ledger_id)
        if found is None:
            return None
        index = bisect_right(found[0], entry_id)
        return found[0][index] if index < len(found[0]) else None

    def drop_through(self, ledger_id: int, entry_id: int) -> None:
        """Remove all entries up to and including this one, and all entries of earlier ledgers."""
        for earlier in [known for known in self._ledgers if known < ledger_id]:
            starts, ends = self._ledgers.pop(earlier)
            self.entries -= sum(ends) - sum(starts) + len(ends)
        found = self._ledgers.get(ledger_id)
        if found is None:
            return
        starts, ends = found
        whole = bisect_right(ends, entry_id)
        self.entries -= sum(ends[:whole]) - sum(starts[:whole]) + whole
        del starts[:whole]
        del ends[:whole]
        if starts and starts[0] <= entry_id:
            self.entries -= entry_id + 1 - starts[0]
            starts[0] = entry_id + 1
        if not starts:
            del self._ledgers[ledger_id]
        assert self.entries >= len(self._ledgers), "each ledger that is listed has entries"

    def clear(self) -> None:
        """Remove all entries."""
        self._ledgers.clear()
        self.entries = 0


def _insert(starts: list[int], ends: list[int], first: int, last: int) -> int:
    """Add a range to the parallel lists of one ledger. Return the number of new entries."""
    tail = ends[-1]
    if first == tail + 1:
        ends[-1] = last
        return last - first + 1
    if first > tail:
        starts.append(first)
        ends.append(last)
        return last - first + 1
    # Ranges from `low` on end at or after the entry before `first`. Ranges below `high` begin at or before the entry
    # after `last`. So the ranges `low` to `high` touch or overlap the new range and are merged with it.
    low = bisect_left(ends, first - 1)
    high = bisect_right(starts, last + 1)
    if low >= high:
        starts.insert(low, first)
        ends.insert(low, last)
        return last - first + 1
    held = sum(ends[low:high]) - sum(starts[low:high]) + high - low
    joined_first = min(first, starts[low])
    joined_last = max(last, ends[high - 1])
    starts[low:high] = [joined_first]
    ends[low:high] = [joined_last]
    assert low == 0 or ends[low - 1] < joined_first - 1, "ranges neither overlap nor touch"
    assert low + 1 == len(starts) or joined_last + 1 < starts[low + 1], "ranges neither overlap nor touch"
    return joined_last - joined_first + 1 - held
