"""Chooses a consumer: the next one of a Shared subscription, the active one of a Failover subscription. Pure.

In both, only consumers of the best priority level (the lowest number) take part; those of a Shared subscription take
turns, among the levels that have a ready consumer.
"""

from bisect import bisect_left
from collections.abc import Sequence

from quire_broker.wire.murmur import key_hash

RING_POINTS = 100


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


def active_index(consumers: Sequence[tuple[int, str]], topic: str, partition_index: int) -> int:
    """Return the index of the active one among (priority level, name); `partition_index` is -1 for a plain topic.

    A partition uses the one at its index modulo their number, sorted by name, so that the partitions of a topic are
    spread. A plain topic uses a consistent hash ring: 100 points per consumer at murmur3(name + i); the first point at
    or after murmur3(topic name) wins, wrapping around. Source: spec pulsar-wire, section 8.
    """
    order = sorted(range(len(consumers)), key=lambda index: consumers[index])
    best_level = consumers[order[0]][0]
    best = [index for index in order if consumers[index][0] == best_level]
    if partition_index >= 0:
        return best[partition_index % len(best)]
    ring: dict[int, int] = {}
    for index in best:
        for point in range(RING_POINTS):
            ring[key_hash(f"{consumers[index][1]}{point}".encode())] = index
    points = sorted(ring)
    found = bisect_left(points, key_hash(topic.encode()))
    return ring[points[found % len(points)]]
