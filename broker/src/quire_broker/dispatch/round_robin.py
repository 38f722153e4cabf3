"""Chooses the next consumer of a Shared subscription. Pure.

Only the best priority level (the lowest number) that has a ready consumer takes part; within it consumers take turns.
"""

from collections.abc import Sequence


def next_turn(consumers: Sequence[tuple[int, bool]], last: int) -> int | None:
    """Return the index of the next among (priority level, ready) after index `last`; None if no consumer is ready."""
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
