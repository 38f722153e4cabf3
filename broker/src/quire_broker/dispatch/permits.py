"""The arithmetic of flow control. Pure.

A FLOW grants a number of messages; an entry costs the number of its unacknowledged messages. An entry is sent if at
least one permit is left, so the balance may fall below zero by at most one entry's cost minus one.
"""

from collections.abc import Sequence

from quire_broker.managed_ledger.cursors.ack_set import unacked_mask


def entry_cost(messages: int, ack_set: Sequence[int] | None) -> int:
    """Return the number of messages that a delivery of the entry costs; at least 1, so that no entry is free."""
    if ack_set is None:
        return messages
    return max(1, (unacked_mask(ack_set) & ((1 << messages) - 1)).bit_count())


def affordable(permits: int, costs: Sequence[int]) -> int:
    """Return how many of the entries, in order, may be sent."""
    count = 0
    for cost in costs:
        if permits <= 0:
            break
        permits -= cost
        count += 1
    return count


def entries_to_read(permits: int, messages_per_entry: float, entries_max: int) -> int:
    """Return how many entries to read: as many as the permits cover at the usual number of messages, at least one."""
    return max(1, min(entries_max, int(permits / max(1.0, messages_per_entry))))


class MessagesPerEntry:
    """A moving mean of the messages per entry, mainly over the last ten deliveries."""

    __slots__ = ("mean",)

    def __init__(self) -> None:
        self.mean = 1.0

    def add(self, entries: int, messages: int) -> None:
        """Include one delivery of several entries."""
        if entries:
            self.mean += (messages / entries - self.mean) * 0.1


def granted(permits: int, more: int, permits_max: int) -> int:
    """Return the balance after a FLOW of `more`. A peer's number cannot raise it above `permits_max`."""
    return min(permits_max, permits + max(0, more))
