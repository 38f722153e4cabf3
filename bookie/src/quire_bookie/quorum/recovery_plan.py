"""Decides which entries a recovery keeps: whether one entry is missing, and where the ledger ends. Pure.

An entry was never confirmed, and cannot be, when Qw-Qa+1 fenced replicas report that they lack it: at most
Qw-(Qw-Qa+1) = Qa-1 replicas remain. With fewer such replicas nothing is decided. A recovery keeps the entries in order
up to the first missing one, and nothing beyond that gap, even if replicas hold entries there.
"""

from collections.abc import Callable
from enum import Enum
from typing import Generic, TypeVar

from quire_bookie.model import EntryId

T = TypeVar("T")


class Verdict(Enum):
    """The conclusion from the replicas that did not return the entry."""

    OPEN = "ask the next replica"
    MISSING = "enough replicas lack the entry to prove that it was never confirmed"
    UNDECIDED = "all replicas were asked without a decision: the recovery must be retried later"


class EntrySearch:
    """Counts the responses without the entry. The first replica that returns the entry ends the search."""

    __slots__ = ("_failed", "_missing", "_missing_needed", "_write_quorum")

    def __init__(self, write_quorum: int, ack_quorum: int) -> None:
        self._write_quorum = write_quorum
        self._missing_needed = write_quorum - ack_quorum + 1
        self._missing = self._failed = 0

    def missing(self) -> Verdict:
        """Record a fenced replica that does not have the entry (no such entry, no such ledger)."""
        self._missing += 1
        return self.verdict

    def failed(self) -> Verdict:
        """Record a replica that neither returned the entry nor reported that it lacks it."""
        self._failed += 1
        return self.verdict

    @property
    def verdict(self) -> Verdict:
        """The verdict so far."""
        assert self._missing + self._failed <= self._write_quorum, "each replica is counted once"
        if self._missing >= self._missing_needed:
            return Verdict.MISSING
        if self._missing + self._failed >= self._write_quorum:
            return Verdict.UNDECIDED
        return Verdict.OPEN


class Frontier(Generic[T]):
    """Orders entries that are read ahead: passes them on in order and stops at the first missing one."""

    __slots__ = ("_first", "_found", "_next_read", "_next_use", "end")

    def __init__(self, first: EntryId) -> None:
        self._first: int = first
        self._next_read: int = first
        self._next_use: int = first
        self._found: dict[int, T] = {}
        self.end: int | None = None
        """The lowest entry known to be missing; None if none is known."""

    def to_read(self, in_flight_max: int) -> list[EntryId]:
        """Return the entries to begin reading now; none after an entry was found missing."""
        if self.end is not None:
            return []
        entries = range(self._next_read, self._next_use + in_flight_max)
        self._next_read = max(self._next_read, entries.stop)
        assert self._next_use <= self._next_read, "only entries that were read are passed on"
        return [EntryId(entry) for entry in entries]

    def missing(self, entry: EntryId) -> None:
        """Record that `entry` is missing: nothing from there on is kept."""
        assert entry >= self._next_use, "an entry that was passed on is not missing"
        self.end = entry if self.end is None else min(self.end, entry)

    def found(self, entry: EntryId, content: T, use: Callable[[EntryId, T], None]) -> None:
        """Record that `entry` was read. Call `use` in order for each entry that no longer waits for an earlier one."""
        assert self._next_use <= entry < self._next_read, "each entry is read once"
        self._found[entry] = content
        while self._next_use in self._found and (self.end is None or self._next_use < self.end):
            use(EntryId(self._next_use), self._found.pop(self._next_use))
            self._next_use += 1

    @property
    def is_done(self) -> bool:
        """Whether every entry before the first missing one was passed on."""
        return self.end is not None and self._next_use >= self.end

    @property
    def used(self) -> int:
        """The number of entries passed on."""
        return self._next_use - self._first

    @property
    def last_used(self) -> EntryId:
        """The last entry passed on."""
        return EntryId(self._next_use - 1)

    def matters(self, entry: EntryId) -> bool:
        """Return whether the outcome of reading `entry` can still change the result."""
        return self.end is None or entry < self.end
