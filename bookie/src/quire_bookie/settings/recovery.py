"""Declares the settings of auto-recovery: how soon, how fast, how thoroughly."""

from quire_bookie import limits
from quire_bookie.dataclass import dataclass
from quire_bookie.errors import ConfigError
from quire_bookie.settings.declared import MILLISECONDS, PERCENT, setting


@dataclass(frozen=True, slots=True)
class RecoverySettings:
    """Settings that the auditor and the workers of one process share."""

    workers: int = setting(
        limits.REPLICATION_WORKERS,
        "replicationWorkers",
        "ledgers that this process replicates at once; 0: it only audits",
        short="recovery_workers",
        ge=0,
        le=64,
    )
    audits: bool = setting(
        True, "auditorEnabled", "whether this process is a candidate for auditor", short="recovery_audits"
    )
    lost_bookie_delay_s: int = setting(
        limits.LOST_BOOKIE_DELAY_S,
        "lostBookieRecoveryDelay",
        "time after which a missing bookie counts as lost, in s; the cluster's value has precedence",
        ge=0,
    )
    """Written to the metadata if they hold no delay yet."""
    rate_bytes_s: int = setting(
        limits.REPLICATION_RATE_BYTES_S,
        "replicationRateByBytes",
        "payload bytes that this process copies per second; 0 or -1: no limit",
        short="replication_rate_bytes",
        read=lambda value: max(0, value),
        key_default=limits.REPLICATION_RATE_BYTES_S,
        ge=-1,
    )
    """Of all workers together; 0: no limit."""
    operations_s: float = setting(
        limits.AUDITOR_OPERATIONS_S,
        "auditorOperationsPerSecond",
        "requests that checks send to all bookies per second; 0: no limit",
        short="auditor_operations_per_second",
        ge=0,
    )
    check_interval_s: float = setting(
        limits.AUDITOR_CHECK_INTERVAL_S,
        "auditorPeriodicCheckInterval",
        "pause between two checks of all ledgers, in s; 0: never",
        short="auditor_check_interval_s",
        kind=int,
        ge=0,
    )
    audit_interval_s: float = setting(
        limits.AUDITOR_BOOKIE_CHECK_INTERVAL_S,
        "auditorPeriodicBookieCheckInterval",
        "pause between two periodic searches for lost bookies, in s; 0: never",
        short="auditor_bookie_check_interval_s",
        kind=int,
        ge=0,
    )
    verified_share: float = setting(
        0.0,
        "auditorLedgerVerificationPercentage",
        "percentage of each replica that a check reads, besides the first and last entry and the list",
        short="auditor_verification_percentage",
        unit=PERCENT,
        ge=0,
        le=100,
    )
    """Share of a fragment's entries whose digests a check verifies."""
    placement_check_interval_s: float = setting(
        limits.AUDITOR_PLACEMENT_CHECK_INTERVAL_S,
        "auditorPeriodicPlacementPolicyCheckInterval",
        "pause between two checks whether ensembles satisfy racks and zones, in s; 0: never",
        kind=int,
        ge=0,
    )
    repair_placement: bool = setting(
        False,
        "repairedPlacementPolicyNotAdheringBookieEnable",
        "move replicas until ensembles satisfy racks and zones; false: only count violations",
    )
    open_ledger_grace_s: float = setting(
        limits.OPEN_LEDGER_GRACE_S,
        "openLedgerRereplicationGracePeriod",
        "time for which an open ledger that lacks a replica is left to its writer, in ms",
        short="open_ledger_grace_ms",
        unit=MILLISECONDS,
        ge=0,
    )
    unmarked_write_quorum: int = setting(
        0,
        "unmarkedLedgerWriteQuorum",
        "copies required of a broker's ledger with E = Qw whose metadata does not state them; 0: its Qw",
        ge=0,
        le=limits.ENSEMBLE_SIZE_MAX,
    )
    """See `quorum.wanted_copies`."""
    retry_s: tuple[float, float] = setting(
        limits.REPLICATION_RETRY_S,
        "lockReleaseOfFailedLedgerGracePeriod",
        "pause before the retry of a failed repair, in ms; it doubles up to an hour",
        short="recovery_retry_ms",
        kind=int,
        key_default=int(limits.REPLICATION_RETRY_S[0] * 1000),
        read=lambda value: (value / 1000, limits.REPLICATION_RETRY_S[1]),
        ge=1,
        le=int(limits.REPLICATION_RETRY_S[1] * 1000),
    )
    """First and longest wait in seconds before a ledger is tried again after a failed repair."""
    stalled_repair_s: float = setting(
        limits.REPLICATION_STALLED_S,
        "stalledRepairTimeout",
        "time without progress after which the repair of a ledger is given up and tried again later, in s; 0: never",
        short="recovery_stalled_s",
        kind=int,
        ge=0,
    )
    """Time without progress after which a repair is given up; 0: never. Waits for the rates above are added."""
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
        for name in ("check_interval_s", "audit_interval_s", "placement_check_interval_s", "stalled_repair_s"):
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
