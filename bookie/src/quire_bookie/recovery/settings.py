"""Settings of auto-recovery: how soon, how fast, how thoroughly. Owns the checks; reads no file."""

from dataclasses import dataclass

from quire_bookie import limits
from quire_bookie.errors import ConfigError


@dataclass(frozen=True, slots=True)
class RecoverySettings:
    """Shared by the auditor and the workers of one process."""

    workers: int = limits.REPLICATION_WORKERS
    """Ledgers that are replicated at the same time; 0: this process only audits."""
    audits: bool = True
    """Whether this process stands in the auditor's election."""
    lost_bookie_delay_s: int = limits.LOST_BOOKIE_DELAY_S
    """Written to the metadata where nobody has said a delay yet."""
    rate_bytes_s: int = limits.REPLICATION_RATE_BYTES_S
    """Payload bytes that are copied in a second, by all workers of the process; 0: no bound."""
    operations_s: float = limits.AUDITOR_OPERATIONS_S
    """Reads and lists of entries that checks ask of bookies in a second; 0: no bound."""
    check_interval_s: float = limits.AUDITOR_CHECK_INTERVAL_S
    """Between two checks of all ledgers; 0: never."""
    audit_interval_s: float = limits.AUDITOR_BOOKIE_CHECK_INTERVAL_S
    """Between two looks for lost bookies that no event asked for; 0: never."""
    placement_check_interval_s: float = limits.AUDITOR_PLACEMENT_CHECK_INTERVAL_S
    """Between two looks at whether ensembles satisfy the rules of placement; 0: never."""
    repair_placement: bool = False
    """Whether those that do not are marked, and their replicas moved."""
    verified_share: float = 0.0
    """Of a fragment's entries, how many are read and their digests checked by a check, beside the first and last."""
    open_ledger_grace_s: float = limits.OPEN_LEDGER_GRACE_S
    """How long an open ledger that lacks a replica is left to its writer."""
    unmarked_write_quorum: int = 0
    """Copies wanted of a broker's ledgers that do not say how many, see `quorum.wanted_copies`; 0: as they have."""
    retry_s: tuple[float, float] = limits.REPLICATION_RETRY_S
    """First and longest wait before a ledger that could not be repaired is tried again."""
    poll_s: float = limits.REPLICATION_POLL_S
    """Idle workers look for marks this often, whatever the watch says."""
    batch_bytes: int = limits.REPLICATION_BATCH_BYTES
    """Read and written at a time."""
    list_timeout_s: float = limits.ENTRY_LIST_TIMEOUT_S

    def __post_init__(self) -> None:
        """Check. ConfigError."""
        for name in ("workers", "lost_bookie_delay_s", "rate_bytes_s", "operations_s", "open_ledger_grace_s"):
            if getattr(self, name) < 0:
                raise ConfigError(f"auto-recovery: {name} of {getattr(self, name)} is below 0")
        for name in ("check_interval_s", "audit_interval_s", "placement_check_interval_s"):
            if getattr(self, name) < 0:
                raise ConfigError(f"auto-recovery: {name} of {getattr(self, name)} is below 0; 0 means never")
        for name in ("poll_s", "batch_bytes", "list_timeout_s"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"auto-recovery: {name} of {getattr(self, name)} is not above 0")
        if not 0 <= self.unmarked_write_quorum <= limits.ENSEMBLE_SIZE_MAX:
            raise ConfigError(
                f"auto-recovery: unmarked_write_quorum of {self.unmarked_write_quorum} is not within 0 and "
                f"{limits.ENSEMBLE_SIZE_MAX}"
            )
        if not 0.0 <= self.verified_share <= 1.0:
            raise ConfigError(f"auto-recovery: verified_share of {self.verified_share} is no share between 0 and 1")
        low, high = self.retry_s
        if not 0 < low <= high:
            raise ConfigError(f"auto-recovery: retry_s of {self.retry_s} is no range above 0")
