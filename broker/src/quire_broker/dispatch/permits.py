"""The arithmetic of flow control. Pure.

A FLOW grants messages; an entry costs the messages in it that are not acknowledged yet. An entry is sent when at least
one permit is left, so the account may go below zero by at most one entry's cost less one.
"""

from collections.abc import Sequence

from quire_broker.managed_ledger.ack_set import unacked_mask


def entry_cost(messages: int, ack_set: Sequence[int] | None) -> int:
    """Messages that a delivery of the entry brings to the client; at least 1, so that every entry is paid for."""
    if ack_set is None:
        return messages
    return max(1, (unacked_mask(ack_set) & ((1 << messages) - 1)).bit_count())


def affordable(permits: int, costs: Sequence[int]) -> int:
    """How many of the entries, in order, may be sent."""
    count = 0
    for cost in costs:
        if permits <= 0:
            break
        permits -= cost
        count += 1
    return count


def entries_to_read(permits: int, messages_per_entry: float, entries_max: int) -> int:
    """How many entries are worth reading: what the permits pay for at the usual entry's size, at least one."""
    return max(1, min(entries_max, int(permits / max(1.0, messages_per_entry))))


class MessagesPerEntry:
    """A moving mean of the messages in an entry: the last ten deliveries or so weigh most."""

    __slots__ = ("mean",)

    def __init__(self) -> None:
        self.mean = 1.0

    def add(self, entries: int, messages: int) -> None:
        """Take one delivery of several entries into account."""
        if entries:
            self.mean += (messages / entries - self.mean) * 0.1


def granted(permits: int, more: int, permits_max: int) -> int:
    """The account after a FLOW of `more`; a peer's number cannot push it above `permits_max`."""
    return min(permits_max, permits + max(0, more))
