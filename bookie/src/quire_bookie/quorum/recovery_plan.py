"""Which entries a recovery keeps: the verdict on one entry, and the end of the ledger. Pure.

An entry was never confirmed, and never will be, once Qw-Qa+1 fenced replicas say that they do not have it: at most
Qw-(Qw-Qa+1) = Qa-1 are left. Anything less is no verdict. Recovery keeps the entries in order up to the first that is
missing, and nothing beyond that gap, whatever replicas hold there.
"""

from collections.abc import Callable
from enum import Enum
from typing import Generic, TypeVar

from quire_bookie.model import EntryId

T = TypeVar("T")


class Verdict(Enum):
    """What the replicas without the entry said about it so far. A read that has the entry needs no verdict."""

    OPEN = "ask the next replica"
    MISSING = "so many replicas lack it that it was never confirmed"
    UNDECIDED = "all replicas were asked and neither holds: the recovery must be tried again later"


class EntrySearch:
    """The answers about one entry that did not bring it. The first replica that returns it ends the search."""

    __slots__ = ("_failed", "_missing", "_missing_needed", "_write_quorum")

    def __init__(self, write_quorum: int, ack_quorum: int) -> None:
        self._write_quorum = write_quorum
        self._missing_needed = write_quorum - ack_quorum + 1
        self._missing = self._failed = 0

    def missing(self) -> Verdict:
        """One more replica, fenced, does not have the entry (no such entry, no such ledger)."""
        self._missing += 1
        return self.verdict

    def failed(self) -> Verdict:
        """One more replica gave neither the entry nor a clear no."""
        self._failed += 1
        return self.verdict

    @property
    def verdict(self) -> Verdict:
        """The verdict so far."""
        if self._missing >= self._missing_needed:
            return Verdict.MISSING
        if self._missing + self._failed >= self._write_quorum:
            return Verdict.UNDECIDED
        return Verdict.OPEN


class Frontier(Generic[T]):
    """Reads several entries ahead but passes them on in order, and stops at the first that is missing."""

    __slots__ = ("_first", "_found", "_next_read", "_next_use", "end")

    def __init__(self, first: EntryId) -> None:
        self._first: int = first
        self._next_read: int = first
        self._next_use: int = first
        self._found: dict[int, T] = {}
        self.end: int | None = None
        """The lowest entry known to be missing; None while none is."""

    def to_read(self, in_flight_max: int) -> list[EntryId]:
        """Entries to begin reading now; none any more once one is missing."""
        if self.end is not None:
            return []
        entries = range(self._next_read, self._next_use + in_flight_max)
        self._next_read = max(self._next_read, entries.stop)
        return [EntryId(entry) for entry in entries]

    def missing(self, entry: EntryId) -> None:
        """`entry` is missing: nothing from there on is kept."""
        self.end = entry if self.end is None else min(self.end, entry)

    def found(self, entry: EntryId, content: T, use: Callable[[EntryId, T], None]) -> None:
        """`entry` was read. Calls `use` for every entry that has become next in order, before the first missing."""
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
        """How many entries were passed on."""
        return self._next_use - self._first

    @property
    def last_used(self) -> EntryId:
        """The last entry passed on."""
        return EntryId(self._next_use - 1)

    def matters(self, entry: EntryId) -> bool:
        """Whether the outcome of reading `entry` can still change the result."""
        return self.end is None or entry < self.end
