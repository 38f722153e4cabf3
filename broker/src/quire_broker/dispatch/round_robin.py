"""Whose turn it is on a Shared subscription. Pure.

Only the best priority level (the lowest number) that has somebody ready takes part; within it turns go around.
"""

from collections.abc import Sequence


def next_turn(consumers: Sequence[tuple[int, bool]], last: int) -> int | None:
    """Index of the next among (priority level, ready) after index `last`; None when nobody is ready."""
    levels = [level for level, ready in consumers if ready]
    if not levels:
        return None
    best = min(levels)
    count = len(consumers)
    for step in range(1, count + 1):
        index = (last + step) % count
        level, ready = consumers[index]
        if ready and level == best:
            return index
    return None
