"""Counts the submitted and confirmed entries of the ledger that appends go to, and keeps its failure. Values only."""

from quire_bookie.dataclass import dataclass
from quire_bookie.errors import LedgerError
from quire_broker.managed_ledger.appending.rollover import LedgerLoad
from quire_broker.managed_ledger.ledger_port import Writer


@dataclass(slots=True)
class WrittenLedger:
    """One ledger from the moment it is in the list until it is closed."""

    writer: Writer
    opened_s: float
    reduced: bool
    """It was created while fewer than E bookies accepted new ledgers."""
    submitted: int = 0
    submitted_bytes: int = 0
    confirmed_bytes: int = 0
    failure: LedgerError | None = None
    """The first error of an append; the ledger takes no more."""

    @property
    def degraded(self) -> bool:
        """Whether new entries have too few copies, and only a new ledger can change that."""
        return self.reduced or self.writer.is_beyond_repair

    def load(self, now_s: float, *, degraded: bool = False) -> LedgerLoad:
        """Return the numbers that decide on a rollover."""
        return LedgerLoad(self.submitted, self.submitted_bytes, now_s - self.opened_s, degraded)

    def add(self, entries: int, size_bytes: int) -> None:
        """Count submitted entries."""
        self.submitted += entries
        self.submitted_bytes += size_bytes
