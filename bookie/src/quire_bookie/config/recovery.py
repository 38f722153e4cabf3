"""Defines the settings of auto-recovery in a separate process, in a bookie's process, or in standalone."""

from pydantic import Field, model_validator

from quire_bookie import limits
from quire_bookie.config.sources import ProcessConfig


class AutoRecoveryConfig(ProcessConfig):
    """Settings of the auditor and the replication workers."""

    recovery_workers: int = Field(
        limits.REPLICATION_WORKERS,
        alias="replicationWorkers",
        ge=0,
        le=64,
        description="ledgers that this process replicates at once; 0: it only audits",
    )
    recovery_audits: bool = Field(
        True, alias="auditorEnabled", description="whether this process is a candidate for auditor"
    )
    lost_bookie_delay_s: int = Field(
        limits.LOST_BOOKIE_DELAY_S,
        alias="lostBookieRecoveryDelay",
        ge=0,
        description="time after which a missing bookie counts as lost, in s; the cluster's value has precedence",
    )
    replication_rate_bytes: int = Field(
        limits.REPLICATION_RATE_BYTES_S,
        alias="replicationRateByBytes",
        ge=-1,
        description="payload bytes that this process copies per second; 0 or -1: no limit",
    )
    auditor_operations_per_second: float = Field(
        limits.AUDITOR_OPERATIONS_S,
        alias="auditorOperationsPerSecond",
        ge=0,
        description="requests that checks send to all bookies per second; 0: no limit",
    )
    auditor_check_interval_s: int = Field(
        int(limits.AUDITOR_CHECK_INTERVAL_S),
        alias="auditorPeriodicCheckInterval",
        ge=0,
        description="pause between two checks of all ledgers, in s; 0: never",
    )
    auditor_bookie_check_interval_s: int = Field(
        int(limits.AUDITOR_BOOKIE_CHECK_INTERVAL_S),
        alias="auditorPeriodicBookieCheckInterval",
        ge=0,
        description="pause between two periodic searches for lost bookies, in s; 0: never",
    )
    auditor_verification_percentage: int = Field(
        0,
        alias="auditorLedgerVerificationPercentage",
        ge=0,
        le=100,
        description="percentage of each replica that a check reads, besides the first and last entry and the list",
    )
    placement_check_interval_s: int = Field(
        int(limits.AUDITOR_PLACEMENT_CHECK_INTERVAL_S),
        alias="auditorPeriodicPlacementPolicyCheckInterval",
        ge=0,
        description="pause between two checks whether ensembles satisfy racks and zones, in s; 0: never",
    )
    repair_placement: bool = Field(
        False,
        alias="repairedPlacementPolicyNotAdheringBookieEnable",
        description="move replicas until ensembles satisfy racks and zones; false: only count violations",
    )
    open_ledger_grace_ms: int = Field(
        int(limits.OPEN_LEDGER_GRACE_S * 1000),
        alias="openLedgerRereplicationGracePeriod",
        ge=0,
        description="time for which an open ledger that lacks a replica is left to its writer, in ms",
    )
    unmarked_write_quorum: int = Field(
        0,
        alias="unmarkedLedgerWriteQuorum",
        ge=0,
        le=limits.ENSEMBLE_SIZE_MAX,
        description="copies required of a broker's ledger with E = Qw whose metadata does not state them; 0: its Qw",
    )
    recovery_retry_ms: int = Field(
        int(limits.REPLICATION_RETRY_S[0] * 1000),
        alias="lockReleaseOfFailedLedgerGracePeriod",
        ge=1,
        description="pause before the retry of a failed repair, in ms; it doubles up to an hour",
    )

    @model_validator(mode="after")
    def _retries_end(self) -> "AutoRecoveryConfig":
        if self.recovery_retry_ms > limits.REPLICATION_RETRY_S[1] * 1000:
            raise ValueError(
                f"lockReleaseOfFailedLedgerGracePeriod {self.recovery_retry_ms} is above an hour; give 3600000 or less"
            )
        return self
