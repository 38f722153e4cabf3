"""Sets of entry ids kept as disjoint ranges, for acknowledgements that arrive out of order. Nothing else."""

from bisect import bisect_left, bisect_right


class IdRanges:
    """Disjoint, non-adjacent ranges `[start, end)` in ascending order.

    `add` and `end_of` take logarithmic time in the number of ranges, which is one while ids arrive in order.
    """

    __slots__ = ("_ends", "_starts")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def add(self, start: int, end: int) -> None:
        """Unite with `[start, end)`."""
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

    def end_of(self, entry: int) -> int:
        """End of the range that holds `entry`; `entry` itself when none does."""
        index = bisect_right(self._starts, entry) - 1
        return self._ends[index] if index >= 0 and self._ends[index] > entry else entry

    def drop_below(self, entry: int) -> None:
        """Forget ids below `entry`. A range that reaches beyond it stays whole."""
        starts, ends = self._starts, self._ends
        while ends and ends[0] <= entry:
            del starts[0], ends[0]

    def clear(self) -> None:
        """Forget all."""
        self._starts.clear()
        self._ends.clear()

    def __len__(self) -> int:
        return len(self._starts)
