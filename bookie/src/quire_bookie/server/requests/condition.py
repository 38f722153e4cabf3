"""Holds which requests a bookie accepts now: all, only high-priority adds and reads, only reads, or nothing journaled.

Owns the two booleans of the read-only mode and the failure of the journal, for all request handlers. Never decides when
a bookie turns read-only; `upkeep.read_only` does.
"""

from collections.abc import Callable

from quire_bookie.errors import DiskFullError
from quire_bookie.wire.status import Status, status_of


class Condition:
    """Holds the condition of a bookie. `on_disk_full` is called when the journal refused a record for lack of space."""

    __slots__ = ("_on_disk_full", "accepts_high_priority", "poison", "read_only")

    def __init__(self, on_disk_full: Callable[[], None]) -> None:
        self._on_disk_full = on_disk_full
        self.read_only = False
        """Normal adds and explicit LACs are refused."""
        self.accepts_high_priority = True
        """Whether adds with high priority are accepted while read-only, so that ledgers can be recovered."""
        self.poison: BaseException | None = None
        """Why the journal can no longer acknowledge records; None if it can."""

    def refuses_add(self, *, high_priority: bool) -> Status | None:
        """Return the status that refuses an add of any ledger, or None if adds may be accepted."""
        if self.poison is not None:
            return Status.IO_ERROR
        if self.read_only and not (high_priority and self.accepts_high_priority):
            return Status.READ_ONLY
        return None

    def journal_failure(self, error: BaseException) -> Status:
        """Return the status for a record that the journal refused. A full disk is no device failure: READ_ONLY."""
        if isinstance(error, DiskFullError):
            self._on_disk_full()
            return Status.READ_ONLY
        return status_of(error)
