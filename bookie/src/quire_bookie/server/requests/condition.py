"""What a bookie takes at the moment: everything, high-priority adds only, reads only, or nothing that is journaled.

Owns the two booleans of the read-only mode and the failure of the journal, for all who handle requests. Never decides
when a bookie turns read-only; whoever watches disks and operators does.
"""

from collections.abc import Callable

from quire_bookie.errors import DiskFullError
from quire_bookie.wire.status import Status, status_of


class Condition:
    """See the module's text. `on_disk_full` is called whenever the journal refused something for want of space."""

    __slots__ = ("_on_disk_full", "accepts_high_priority", "poison", "read_only")

    def __init__(self, on_disk_full: Callable[[], None]) -> None:
        self._on_disk_full = on_disk_full
        self.read_only = False
        """No normal adds and no explicit LACs are taken."""
        self.accepts_high_priority = True
        """While read-only: whether adds with high priority are taken all the same, so that ledgers can be recovered."""
        self.poison: BaseException | None = None
        """Why the journal cannot acknowledge anything any more."""

    def refuses_add(self, *, high_priority: bool) -> Status | None:
        """The answer to an add that is not taken whatever its ledger; None: it may be."""
        if self.poison is not None:
            return Status.IO_ERROR
        if self.read_only and not (high_priority and self.accepts_high_priority):
            return Status.READ_ONLY
        return None

    def journal_failure(self, error: BaseException) -> Status:
        """The answer to what the journal did not take. No space is no failure of the device: read-only it is then."""
        if isinstance(error, DiskFullError):
            self._on_disk_full()
            return Status.READ_ONLY
        return status_of(error)
