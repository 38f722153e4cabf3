"""Entries that are to be delivered again, in order, and how often each was. In memory only: a broker that takes the
topic over delivers everything unacknowledged again, uncounted. Never decides who gets an entry.
"""

from collections.abc import Callable, Iterable

from quire_broker.managed_ledger.position import Position

NO_SLOT = -1


class ReplaySet:
    """Positions that were read before and are nobody's now, with their Key_Shared slots (else NO_SLOT)."""

    def __init__(self) -> None:
        self._slots: dict[Position, int] = {}
        self._order: list[Position] = []  # holds every position of _slots, and some that are gone
        self._sorted = True
        self._slot_counts: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, position: Position) -> bool:
        return position in self._slots

    def has_slot(self, slot: int) -> bool:
        """Whether an entry of that slot waits here: later ones of the slot must wait, too."""
        return slot in self._slot_counts

    def add(self, position: Position, slot: int = NO_SLOT) -> None:
        """Put an entry back; one that is here already stays as it is."""
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
        """The entry was acknowledged, or goes out."""
        slot = self._slots.pop(position, None)
        if slot is None or slot == NO_SLOT:
            return
        count = self._slot_counts[slot] - 1
        if count:
            self._slot_counts[slot] = count
        else:
            del self._slot_counts[slot]

    def discard_through(self, last: Position) -> None:
        """Everything up to and including `last` was acknowledged."""
        for position in [known for known in self._slots if known <= last]:
            self.discard(position)

    def clear(self) -> None:
        """Forget everything."""
        self._slots.clear()
        self._order.clear()
        self._slot_counts.clear()
        self._sorted = True

    def first(self, count: int, allowed: Callable[[int], bool] | None = None) -> list[tuple[Position, int]]:
        """Up to `count` of the lowest entries with their slots, of slots that `allowed` lets pass. They stay here."""
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
        """Sort, and drop what is gone once that is half of the list: amortised, a discard costs nothing."""
        if not self._sorted or len(self._order) > 2 * len(self._slots) + 16:
            self._order = sorted(self._slots)
            self._sorted = True


class RedeliveryCounts:
    """How often an entry was redelivered because a client asked for it. Acknowledged entries are forgotten."""

    def __init__(self) -> None:
        self._counts: dict[Position, int] = {}

    def __len__(self) -> int:
        return len(self._counts)

    def of(self, position: Position) -> int:
        """The count that goes out with the entry."""
        return self._counts.get(position, 0) if self._counts else 0

    def raise_all(self, positions: Iterable[Position]) -> None:
        """A client asked for these again."""
        counts = self._counts
        for position in positions:
            counts[position] = counts.get(position, 0) + 1

    def forget(self, position: Position) -> None:
        """The entry is done."""
        if self._counts:
            self._counts.pop(position, None)

    def forget_through(self, last: Position) -> None:
        """Everything up to and including `last` is done."""
        for position in [known for known in self._counts if known <= last]:
            del self._counts[position]

    def clear(self) -> None:
        """Forget everything."""
        self._counts.clear()


def runs(positions: Iterable[Position], entries_max: int, gap_max: int = 8) -> list[tuple[Position, int]]:
    """Ascending positions as (first, count): one read each, of one ledger.

    Up to `gap_max` unwanted entries in between are read along: a read costs more than an entry.
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
