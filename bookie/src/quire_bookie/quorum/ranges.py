"""Sets of entry ids stored as disjoint ranges, for acknowledgements that arrive out of order."""

from bisect import bisect_left, bisect_right


class IdRanges:
    """Stores disjoint, non-adjacent ranges `[start, end)` in ascending order.

    `add` and `end_of` take logarithmic time in the number of ranges, which is one while ids arrive in order.
    """

    __slots__ = ("_ends", "_starts")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def add(self, start: int, end: int) -> None:
        """Add the ids of `[start, end)`."""
        starts, ends = self._starts, self._ends
        if ends and ends[-1] == start:
            ends[-1] = end  # the usual case: the next ids in order
            return
        low = bisect_left(ends, start)
        high = bisect_right(starts, end)
        if low < high:
            start = min(start, starts[low])
            end = max(end, ends[high - 1])
        starts[low:high] = [start]
        ends[low:high] = [end]
        assert low == 0 or ends[low - 1] < start, "ranges neither overlap nor touch"
        assert low + 1 == len(starts) or end < starts[low + 1], "ranges neither overlap nor touch"

    def end_of(self, entry: int) -> int:
        """Return the end of the range that contains `entry`, or `entry` itself if none does."""
        index = bisect_right(self._starts, entry) - 1
        return self._ends[index] if index >= 0 and self._ends[index] > entry else entry

    def drop_below(self, entry: int) -> None:
        """Remove the ranges that end at or below `entry`. A range that extends beyond it remains whole."""
        starts, ends = self._starts, self._ends
        while ends and ends[0] <= entry:
            del starts[0], ends[0]
        assert len(starts) == len(ends)

    def clear(self) -> None:
        """Remove all ranges."""
        self._starts.clear()
        self._ends.clear()

    def __len__(self) -> int:
        return len(self._starts)
