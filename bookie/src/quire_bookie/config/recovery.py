"""How auto-recovery works, wherever it runs: in a process of its own, in a bookie's, or in standalone."""

from pydantic import Field, model_validator

from quire_bookie import limits
from quire_bookie.config.sources import ProcessConfig


class AutoRecoveryConfig(ProcessConfig):
    """What auditor and replication workers can be told."""

    recovery_workers: int = Field(
        limits.REPLICATION_WORKERS,
        alias="replicationWorkers",
        ge=0,
        le=64,
        description="ledgers that this process replicates at the same time; 0: it only audits",
    )
    recovery_audits: bool = Field(
        True, alias="auditorEnabled", description="whether this process stands in the auditor's election"
    )
    lost_bookie_delay_s: int = Field(
        limits.LOST_BOOKIE_DELAY_S,
        alias="lostBookieRecoveryDelay",
        ge=0,
        description="a bookie that went away is given so long, in s; the cluster's value, once set, counts",
    )
    replication_rate_bytes: int = Field(
        limits.REPLICATION_RATE_BYTES_S,
        alias="replicationRateByBytes",
        ge=-1,
        description="payload bytes that this process copies in a second; 0 or -1: no bound",
    )
    auditor_operations_per_second: float = Field(
        limits.AUDITOR_OPERATIONS_S,
        alias="auditorOperationsPerSecond",
        ge=0,
        description="questions that checks ask of all bookies in a second; 0: no bound",
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
        description="pause between two searches for lost bookies that nothing else asked for, in s; 0: never",
    )
    auditor_verification_percentage: int = Field(
        0,
        alias="auditorLedgerVerificationPercentage",
        ge=0,
        le=100,
        description="entries of each replica that a check reads, beside the first, the last and the list of all",
    )
    placement_check_interval_s: int = Field(
        int(limits.AUDITOR_PLACEMENT_CHECK_INTERVAL_S),
        alias="auditorPeriodicPlacementPolicyCheckInterval",
        ge=0,
        description="pause between two looks at whether ensembles satisfy racks and zones, in s; 0: never",
    )
    repair_placement: bool = Field(
        False,
        alias="repairedPlacementPolicyNotAdheringBookieEnable",
        description="move replicas until ensembles satisfy racks and zones; off: they are only counted",
    )
    open_ledger_grace_ms: int = Field(
        int(limits.OPEN_LEDGER_GRACE_S * 1000),
        alias="openLedgerRereplicationGracePeriod",
        ge=0,
        description="an open ledger that lacks a replica is left to its writer so long, in ms",
    )
    unmarked_write_quorum: int = Field(
        0,
        alias="unmarkedLedgerWriteQuorum",
        ge=0,
        le=limits.ENSEMBLE_SIZE_MAX,
        description="copies wanted of a broker's ledger with E = Qw that does not say how many it wants; 0: as it has",
    )
    recovery_retry_ms: int = Field(
        int(limits.REPLICATION_RETRY_S[0] * 1000),
        alias="lockReleaseOfFailedLedgerGracePeriod",
        ge=1,
        description="a ledger that could not be repaired is tried again after so long, in ms; it doubles up to an hour",
    )

    @model_validator(mode="after")
    def _retries_end(self) -> "AutoRecoveryConfig":
        if self.recovery_retry_ms > limits.REPLICATION_RETRY_S[1] * 1000:
            raise ValueError(
                f"lockReleaseOfFailedLedgerGracePeriod {self.recovery_retry_ms} is above an hour; take 3600000 or less"
            )
        return self
