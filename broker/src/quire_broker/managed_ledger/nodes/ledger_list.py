"""The list of ledgers of one managed ledger, and the arithmetic of positions over it. Pure; holds no entries.

The *tail* is the ledger that is being written, or was written last. Its counts grow with each confirmed entry and are
not yet in the stored record. A position may name a ledger that no longer exists, because empty and trimmed ledgers are
removed. So every method here compares positions by value and steps to existing entries.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import replace

from quire_bookie.dataclass import dataclass
from quire_broker.managed_ledger.nodes.offload_context import OffloadContext
from quire_broker.managed_ledger.position import Position

_ENTRIES_MAX = 1 << 63


@dataclass(frozen=True, slots=True)
class LedgerRecord:
    """One ledger in the list node. If `closed_ms` is 0, it is (or may be) still written and its counts are unknown.

    `offload`: its copy in a bucket, or an attempt at one. `extra` holds fields of the stored form that this module does
    not interpret, preserved as read.
    not interpret, kept as they were read.
    """

    ledger_id: int
    entries: int = 0
    size_bytes: int = 0
    closed_ms: int = 0
    extra: bytes = b""
    offload: OffloadContext | None = None

    @property
    def offloaded(self) -> bool:
        """Whether a bucket holds the whole ledger."""
        return self.offload is not None and self.offload.complete

    def closed(self, entries: int, size_bytes: int, closed_ms: int) -> "LedgerRecord":
        """Return the same ledger with its final counts."""
        return replace(self, entries=entries, size_bytes=size_bytes, closed_ms=closed_ms)


class LedgerList:
    """Knows which entries exist. `last_confirmed`: the newest entry; (tail, -1) or (-1, -1) if there is none."""

    is_followed = False
    """Whether another owner writes the tail: it may have confirmed entries that are not known here yet."""

    def __init__(self, records: Iterable[LedgerRecord], tail_entries: int | None = None, tail_bytes: int = 0) -> None:
        """Create the list. If `tail_entries` is given, the last record is the tail and has that number of entries."""
        self._records = {record.ledger_id: record for record in sorted(records, key=lambda known: known.ledger_id)}
        self._ids = list(self._records)
        self._tail: int | None = None
        self._tail_entries = 0
        self._tail_bytes = 0
        self.last_confirmed = Position(-1, -1)
        if tail_entries is not None:
            self._tail = self._ids[-1]
            self._tail_entries = tail_entries
            self._tail_bytes = tail_bytes
        self._find_last()

    def replace(self, records: Iterable[LedgerRecord], *, tail: int | None) -> None:
        """Replace the records; `tail` is the ledger being written. Its counts are kept if it was the tail before."""
        self._records = {record.ledger_id: record for record in sorted(records, key=lambda known: known.ledger_id)}
        self._ids = list(self._records)
        if tail != self._tail:
            self._tail = tail
            self._tail_entries = 0
            self._tail_bytes = 0
        self._find_last()

    def confirm(self, entry_id: int, size_bytes: int) -> None:
        """Note that the tail now holds every entry up to `entry_id`, `size_bytes` in total."""
        assert self._tail is not None
        assert entry_id >= self._tail_entries - 1, "the last confirmed entry never goes back"
        self._tail_entries = entry_id + 1
        self._tail_bytes = size_bytes
        self.last_confirmed = Position(self._tail, entry_id)

    def _find_last(self) -> None:
        """Set `last_confirmed` to the newest entry, or before the tail's first entry if no ledger has entries."""
        before = self.last_confirmed
        for ledger_id in reversed(self._ids):
            entries = self.entries_in(ledger_id)
            if entries:
                self.last_confirmed = Position(ledger_id, entries - 1)
                return
        # Everything was trimmed, or nothing was ever written. A confirmed position never moves back.
        if before.entry_id < 0:
            self.last_confirmed = max(before, Position(self._ids[-1] if self._ids else -1, -1))

    # ---- ledgers
    @property
    def tail(self) -> int | None:
        """The ledger being written; None between two ledgers."""
        return self._tail

    @property
    def ids(self) -> list[int]:
        """All ledgers, in order. Do not change the list."""
        return self._ids

    def records(self) -> list[LedgerRecord]:
        """Return all records as stored, in order."""
        return list(self._records.values())

    def counted(self) -> list[LedgerRecord]:
        """Return all records, with the confirmed entries so far for the tail."""
        return [
            replace(record, entries=self._tail_entries, size_bytes=self._tail_bytes)
            if record.ledger_id == self._tail
            else record
            for record in self._records.values()
        ]

    def record(self, ledger_id: int) -> LedgerRecord | None:
        """Return the stored record of a ledger; None if it is not listed."""
        return self._records.get(ledger_id)

    def entries_in(self, ledger_id: int) -> int:
        """Return the number of confirmed entries of the ledger; 0 if it is not listed."""
        if ledger_id == self._tail:
            return self._tail_entries
        record = self._records.get(ledger_id)
        return 0 if record is None else record.entries

    def most_entries_in(self, ledger_id: int) -> int:
        """Return how many entries the ledger may have: of a followed tail more than is known."""
        return _ENTRIES_MAX if self.is_followed and ledger_id == self._tail else self.entries_in(ledger_id)

    @property
    def entries(self) -> int:
        """Number of confirmed entries of all ledgers."""
        return sum(self.entries_in(ledger_id) for ledger_id in self._ids)

    @property
    def size_bytes(self) -> int:
        """Payload bytes of all confirmed entries, as counted by the ledgers."""
        return sum(record.size_bytes for record in self.counted())

    # ---- positions
    def holds(self, position: Position) -> bool:
        """Return whether the entry exists."""
        return 0 <= position.entry_id < self.entries_in(position.ledger_id)

    def first_position(self) -> Position:
        """Return the position of the first entry, or where it is expected."""
        return self.at_or_after(Position(self._ids[0], 0)) if self._ids else Position(-1, 0)

    def at_or_after(self, position: Position) -> Position:
        """Return the first existing entry at or after `position`.

        If there is none, where the next entry is expected.
        """
        if self.holds(position):
            return position
        if position > self.last_confirmed:
            return self._after_last()
        if position.entry_id < 0 and self.entries_in(position.ledger_id):
            return Position(position.ledger_id, 0)
        for ledger_id in self._ids[bisect_right(self._ids, position.ledger_id) :]:
            if self.entries_in(ledger_id):
                return Position(ledger_id, 0)
        return self._after_last()

    def _after_last(self) -> Position:
        if self._tail is not None and self._tail != self.last_confirmed.ledger_id:
            return Position(self._tail, 0)
        return self.last_confirmed.following

    def next_position(self, position: Position) -> Position:
        """Return the position after `position`, or where the next entry is expected."""
        following = position.following
        if 0 <= following.entry_id < self.entries_in(position.ledger_id):
            return following
        return self.at_or_after(following)

    def previous_position(self, position: Position) -> Position:
        """Return the position before `position`; if there is none, the position before the first entry."""
        inside = min(position.entry_id, self.entries_in(position.ledger_id))
        if inside > 0:
            return Position(position.ledger_id, inside - 1)
        for ledger_id in reversed(self._ids[: bisect_left(self._ids, position.ledger_id)]):
            entries = self.entries_in(ledger_id)
            if entries:
                return Position(ledger_id, entries - 1)
        return Position(self._ids[0], -1) if self._ids else Position(position.ledger_id, -1)

    def entries_between(self, after: Position, through: Position) -> int:
        """Return the number of entries after `after`, up to and including `through`."""
        if through <= after:
            return 0
        if after.ledger_id == through.ledger_id:
            entries = self.entries_in(after.ledger_id)
            return min(through.entry_id, entries - 1) - min(max(after.entry_id, -1), entries - 1)
        low = bisect_left(self._ids, after.ledger_id)
        high = bisect_right(self._ids, through.ledger_id)
        total = 0
        for ledger_id in self._ids[low:high]:
            entries = self.entries_in(ledger_id)
            first = min(after.entry_id + 1, entries) if ledger_id == after.ledger_id else 0
            end = min(through.entry_id + 1, entries) if ledger_id == through.ledger_id else entries
            total += max(0, end - max(0, first))
        return total
