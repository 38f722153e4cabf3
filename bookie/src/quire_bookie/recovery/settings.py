"""Settings of auto-recovery: how soon, how fast, how thoroughly. Validates values; reads no file."""

from dataclasses import dataclass

from quire_bookie import limits
from quire_bookie.errors import ConfigError


@dataclass(frozen=True, slots=True)
class RecoverySettings:
    """Settings that the auditor and the workers of one process share."""

    workers: int = limits.REPLICATION_WORKERS
    """Ledgers that are repaired at the same time; 0: this process only audits."""
    audits: bool = True
    """Whether this process is a candidate for auditor."""
    lost_bookie_delay_s: int = limits.LOST_BOOKIE_DELAY_S
    """Seconds before an absent bookie counts as lost. Written to the metadata if they hold no delay yet."""
    rate_bytes_s: int = limits.REPLICATION_RATE_BYTES_S
    """Payload bytes per second that all workers of the process may copy; 0: no limit."""
    operations_s: float = limits.AUDITOR_OPERATIONS_S
    """Entry reads and entry lists per second that checks request from bookies; 0: no limit."""
    check_interval_s: float = limits.AUDITOR_CHECK_INTERVAL_S
    """Seconds between two checks of all ledgers; 0: never."""
    audit_interval_s: float = limits.AUDITOR_BOOKIE_CHECK_INTERVAL_S
    """Seconds between two searches for lost bookies without an event; 0: never."""
    placement_check_interval_s: float = limits.AUDITOR_PLACEMENT_CHECK_INTERVAL_S
    """Seconds between two placement checks; 0: never."""
    repair_placement: bool = False
    """Whether ledgers that violate the placement rules are marked and their replicas moved."""
    verified_share: float = 0.0
    """Share of a fragment's entries whose digests a check verifies, in addition to the first and the last."""
    open_ledger_grace_s: float = limits.OPEN_LEDGER_GRACE_S
    """Seconds for which an open ledger that lacks a replica is left to its writer."""
    unmarked_write_quorum: int = 0
    """Copies wanted of a broker's ledgers that do not record a number, see `quorum.wanted_copies`; 0: as they have."""
    retry_s: tuple[float, float] = limits.REPLICATION_RETRY_S
    """First and longest wait in seconds before a ledger is tried again after a failed repair."""
    poll_s: float = limits.REPLICATION_POLL_S
    """Seconds between two checks for marks by idle workers, even without an event."""
    batch_bytes: int = limits.REPLICATION_BATCH_BYTES
    """Bytes that are read and written at a time."""
    list_timeout_s: float = limits.ENTRY_LIST_TIMEOUT_S

    def __post_init__(self) -> None:
        """Validate. Raises ConfigError."""
        for name in ("workers", "lost_bookie_delay_s", "rate_bytes_s", "operations_s", "open_ledger_grace_s"):
            if getattr(self, name) < 0:
                raise ConfigError(f"auto-recovery: {name} of {getattr(self, name)} is below 0")
        for name in ("check_interval_s", "audit_interval_s", "placement_check_interval_s"):
            if getattr(self, name) < 0:
                raise ConfigError(f"auto-recovery: {name} of {getattr(self, name)} is below 0; use 0 for never")
        for name in ("poll_s", "batch_bytes", "list_timeout_s"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"auto-recovery: {name} of {getattr(self, name)} is not above 0")
        if not 0 <= self.unmarked_write_quorum <= limits.ENSEMBLE_SIZE_MAX:
            raise ConfigError(
                f"auto-recovery: unmarked_write_quorum of {self.unmarked_write_quorum} is not within 0 and "
                f"{limits.ENSEMBLE_SIZE_MAX}"
            )
        if not 0.0 <= self.verified_share <= 1.0:
            raise ConfigError(f"auto-recovery: verified_share of {self.verified_share} is not between 0 and 1")
        low, high = self.retry_s
        if not 0 < low <= high:
            raise ConfigError(
                f"auto-recovery: retry_s of {self.retry_s} is not a range above 0: give two ascending numbers"
            )
