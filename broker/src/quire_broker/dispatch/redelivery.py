"""Entries to deliver again, in order, and how often each was redelivered. In memory only: a broker that takes the
topic over delivers everything unacknowledged again, with a count of 0. Never chooses the consumer of an entry.
"""

from collections.abc import Callable, Iterable, KeysView

from quire_broker.managed_ledger.position import Position

NO_SLOT = -1


class ReplaySet:
    """Positions that were read before and belong to no consumer now, with their Key_Shared slots (else NO_SLOT)."""

    def __init__(self) -> None:
        self._slots: dict[Position, int] = {}
        self._order: list[Position] = []  # holds every position of _slots, and some removed ones
        self._sorted = True
        self._slot_counts: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, position: Position) -> bool:
        return position in self._slots

    @property
    def slots(self) -> KeysView[int]:
        """The slots of the entries here, as they change. Later entries of these slots must wait too."""
        return self._slot_counts.keys()

    def add(self, position: Position, slot: int = NO_SLOT) -> None:
        """Add an entry, unless it is already here."""
        if position in self._slots:
            return
        self._slots[position] = slot
        if slot != NO_SLOT:
            self._slot_counts[slot] = self._slot_counts.get(slot, 0) + 1
        order = self._order
        if order and position <= order[-1]:
            self._sorted = False
        order.append(position)

    def discard(self, position: Position) -> None:
        """Remove an entry that was acknowledged or is being sent."""
        slot = self._slots.pop(position, None)
        if slot is None or slot == NO_SLOT:
            return
        count = self._slot_counts[slot] - 1
        assert count >= 0
        if count:
            self._slot_counts[slot] = count
        else:
            del self._slot_counts[slot]

    def discard_through(self, last: Position) -> None:
        """Remove all entries up to and including `last`, because they were acknowledged."""
        for position in [known for known in self._slots if known <= last]:
            self.discard(position)

    def clear(self) -> None:
        """Remove all entries."""
        self._slots.clear()
        self._order.clear()
        self._slot_counts.clear()
        self._sorted = True

    def first(self, count: int, allowed: Callable[[int], bool] | None = None) -> list[tuple[Position, int]]:
        """Return up to `count` of the lowest entries with their slots, if `allowed` accepts the slot.

        They remain here.
        """
        self._tidy()
        found: list[tuple[Position, int]] = []
        for position in self._order:
            slot = self._slots.get(position)
            if slot is None or (allowed is not None and not allowed(slot)):
                continue
            found.append((position, slot))
            if len(found) == count:
                break
        return found

    def _tidy(self) -> None:
        """Sort, and drop removed entries once they are half of the list: a discard then costs nothing, amortised."""
        if not self._sorted or len(self._order) > 2 * len(self._slots) + 16:
            self._order = sorted(self._slots)
            self._sorted = True
        assert len(self._order) >= len(self._slots), "the order holds every position"


class RedeliveryCounts:
    """Counts how often each entry was redelivered on request of a client. Acknowledged entries are dropped."""

    def __init__(self) -> None:
        self._counts: dict[Position, int] = {}

    def __len__(self) -> int:
        return len(self._counts)

    def of(self, position: Position) -> int:
        """Return the count that is sent with the entry."""
        return self._counts.get(position, 0) if self._counts else 0

    def raise_all(self, positions: Iterable[Position]) -> None:
        """Count a client's request to redeliver these entries."""
        counts = self._counts
        for position in positions:
            counts[position] = counts.get(position, 0) + 1

    def forget_all(self, positions: Iterable[Position]) -> None:
        """Drop the counts of acknowledged entries."""
        if self._counts:
            for position in positions:
                self._counts.pop(position, None)

    def forget_through(self, last: Position) -> None:
        """Drop the counts of all entries up to and including `last`."""
        for position in [known for known in self._counts if known <= last]:
            del self._counts[position]

    def clear(self) -> None:
        """Drop all counts."""
        self._counts.clear()


def runs(positions: Iterable[Position], entries_max: int, gap_max: int = 8) -> list[tuple[Position, int]]:
    """Group ascending positions as (first, count): each group is one read of one ledger.

    A group includes up to `gap_max` unwanted entries between wanted ones, because a read costs more than an entry.
    """
    found: list[tuple[Position, int]] = []
    for position in positions:
        if found:
            first, count = found[-1]
            length = position.entry_id - first.entry_id + 1
            if first.ledger_id == position.ledger_id and length <= min(entries_max, count + 1 + gap_max):
                found[-1] = (first, length)
                continue
        found.append((position, 1))
    return found
