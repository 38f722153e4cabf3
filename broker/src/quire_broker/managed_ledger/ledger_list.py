"""The list of ledgers of one managed ledger, and the arithmetic of positions over it. Pure; owns no bytes.

The *tail* is the ledger that is (or was last) written: its counts grow with what is confirmed and are not yet part of
the stored record. A position may name a ledger that is gone (empty ledgers are removed, trimmed ones too): every
question here compares by value and steps to what exists.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, replace

from quire_broker.managed_ledger.offload_context import OffloadContext
from quire_broker.managed_ledger.position import Position


@dataclass(frozen=True, slots=True)
class LedgerRecord:
    """One ledger as the list node has it. `closed_ms` 0: it is (or may be) still written and the counts are unknown.

    `offload`: its copy in a bucket, or an attempt at one. `extra` holds fields of the stored form that this room does
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
        """Whether a bucket holds all of it."""
        return self.offload is not None and self.offload.complete

    def closed(self, entries: int, size_bytes: int, closed_ms: int) -> "LedgerRecord":
        """The same ledger with its final counts."""
        return replace(self, entries=entries, size_bytes=size_bytes, closed_ms=closed_ms)


class LedgerList:
    """Which entries exist. `last_confirmed`: the newest of them; (tail, -1) or (-1, -1) when there is none."""

    def __init__(self, records: Iterable[LedgerRecord], tail_entries: int | None = None, tail_bytes: int = 0) -> None:
        """`tail_entries` given: the last record is the tail and holds so many confirmed entries."""
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
        """Take over a changed list; `tail` names the ledger that is written from now on. Its counts stay if it was."""
        self._records = {record.ledger_id: record for record in sorted(records, key=lambda known: known.ledger_id)}
        self._ids = list(self._records)
        if tail != self._tail:
            self._tail = tail
            self._tail_entries = 0
            self._tail_bytes = 0
        self._find_last()

    def confirm(self, entry_id: int, size_bytes: int) -> None:
        """The tail holds everything up to `entry_id` now, `size_bytes` in all."""
        assert self._tail is not None
        self._tail_entries = entry_id + 1
        self._tail_bytes = size_bytes
        self.last_confirmed = Position(self._tail, entry_id)

    def _find_last(self) -> None:
        """Newest non-empty ledger's last entry; with no entry anywhere, the place before the tail's first one."""
        before = self.last_confirmed
        for ledger_id in reversed(self._ids):
            entries = self.entries_in(ledger_id)
            if entries:
                self.last_confirmed = Position(ledger_id, entries - 1)
                return
        # Everything was trimmed or nothing ever written: a position once confirmed never moves back.
        if before.entry_id < 0:
            self.last_confirmed = max(before, Position(self._ids[-1] if self._ids else -1, -1))

    # ---- ledgers
    @property
    def tail(self) -> int | None:
        """The ledger being written; None between two."""
        return self._tail

    @property
    def ids(self) -> list[int]:
        """All ledgers, in order. Not to be changed."""
        return self._ids

    def records(self) -> list[LedgerRecord]:
        """All records as stored, in order."""
        return list(self._records.values())

    def counted(self) -> list[LedgerRecord]:
        """All records, the tail's with what is confirmed so far."""
        return [
            replace(record, entries=self._tail_entries, size_bytes=self._tail_bytes)
            if record.ledger_id == self._tail
            else record
            for record in self._records.values()
        ]

    def record(self, ledger_id: int) -> LedgerRecord | None:
        """A ledger's record as stored; None when it is not listed."""
        return self._records.get(ledger_id)

    def entries_in(self, ledger_id: int) -> int:
        """Number of confirmed entries of the ledger; 0 for one that is not listed."""
        if ledger_id == self._tail:
            return self._tail_entries
        record = self._records.get(ledger_id)
        return 0 if record is None else record.entries

    @property
    def entries(self) -> int:
        """All confirmed entries."""
        return sum(self.entries_in(ledger_id) for ledger_id in self._ids)

    @property
    def size_bytes(self) -> int:
        """Payload of all confirmed entries, as the ledgers count it."""
        return sum(record.size_bytes for record in self.counted())

    # ---- positions
    def holds(self, position: Position) -> bool:
        """Whether the entry exists."""
        return 0 <= position.entry_id < self.entries_in(position.ledger_id)

    def first_position(self) -> Position:
        """The first entry, or where it will be."""
        return self.at_or_after(Position(self._ids[0], 0)) if self._ids else Position(-1, 0)

    def at_or_after(self, position: Position) -> Position:
        """The first existing entry not before `position`; when there is none, where the next one is expected."""
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
        return Position(self.last_confirmed.ledger_id, self.last_confirmed.entry_id + 1)

    def next_position(self, position: Position) -> Position:
        """The entry after `position`, or where the next one is expected."""
        following = Position(position.ledger_id, position.entry_id + 1)
        if 0 <= following.entry_id < self.entries_in(position.ledger_id):
            return following
        return self.at_or_after(following)

    def previous_position(self, position: Position) -> Position:
        """The entry before `position`; the place before the first entry of all when there is none."""
        inside = min(position.entry_id, self.entries_in(position.ledger_id))
        if inside > 0:
            return Position(position.ledger_id, inside - 1)
        for ledger_id in reversed(self._ids[: bisect_left(self._ids, position.ledger_id)]):
            entries = self.entries_in(ledger_id)
            if entries:
                return Position(ledger_id, entries - 1)
        return Position(self._ids[0], -1) if self._ids else Position(position.ledger_id, -1)

    def entries_between(self, after: Position, through: Position) -> int:
        """Number of entries after `after`, up to and including `through`."""
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
