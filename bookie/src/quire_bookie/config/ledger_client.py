"""Defines the settings of the ledger client of a broker, standalone or auto-recovery, under BookKeeper's key names."""

from pydantic import Field, model_validator

from quire_bookie import limits
from quire_bookie.config.sources import ProcessConfig


class LedgerClientConfig(ProcessConfig):
    """Settings of timeouts, slow and failing bookies, reads and placement."""

    client_timeout_s: float = Field(
        limits.ADD_TIMEOUT_S,
        alias="bookkeeperClientTimeoutInSeconds",
        gt=0,
        description="time after which an unanswered add or read counts as failed, in s",
    )
    client_connect_timeout_ms: int = Field(
        int(limits.CONNECT_TIMEOUT_S * 1000),
        alias="clientConnectTimeoutMillis",
        ge=1,
        description="time limit of connecting to a bookie, in ms",
    )
    client_pending_mb: int = Field(
        limits.WRITER_PENDING_BYTES_MAX // limits.MIB,
        alias="ledgerWriterMaxPendingMB",
        ge=1,
        description="one ledger accepts no more appends while this many MiB are not on every replica",
    )
    add_quorum_timeout_s: float = Field(
        0.0,
        alias="addEntryQuorumTimeoutSec",
        ge=0,
        description="time after which a ledger fails if its next entry has no ack quorum, in s; 0: it waits",
    )
    delay_ensemble_change: bool = Field(
        False,
        alias="delayEnsembleChange",
        description="replace a failed bookie only when the ack quorum needs it, or when it is read-only",
    )
    ensemble_changes_max: int = Field(
        limits.ENSEMBLE_CHANGES_MAX,
        alias="maxNumEnsembleChanges",
        ge=0,
        description="ensemble changes of one ledger; after that it continues with its remaining replicas",
    )
    slow_replica_s: float = Field(
        limits.SLOW_REPLICA_S,
        alias="slowReplicaSeconds",
        gt=0,
        description="time after which a bookie is replaced that lacks an entry which enough others have, in s",
    )
    slow_replica_mb: int = Field(
        limits.SLOW_REPLICA_BYTES_MAX // limits.MIB,
        alias="slowReplicaMaxPendingMB",
        ge=1,
        description="while this many MiB are in flight, the slowest bookie is replaced after slowReplicaGraceSeconds",
    )
    slow_replica_grace_s: float = Field(
        limits.SLOW_REPLICA_GRACE_S,
        alias="slowReplicaGraceSeconds",
        gt=0,
        description="see slowReplicaMaxPendingMB, in s",
    )
    quarantine_errors: int = Field(
        limits.QUARANTINE_ERRORS,
        alias="bookkeeperClientHealthCheckErrorThresholdPerInterval",
        ge=0,
        description="number of failures within an interval that excludes a bookie from new ledgers; 0: never",
    )
    quarantine_interval_s: float = Field(
        limits.QUARANTINE_INTERVAL_S,
        alias="bookkeeperClientHealthCheckIntervalSeconds",
        gt=0,
        description="the interval in which failures are counted, in s",
    )
    quarantine_s: float = Field(
        limits.QUARANTINE_S,
        alias="bookkeeperClientHealthCheckQuarantineTimeInSeconds",
        gt=0,
        description="time for which such a bookie is excluded, in s, while there are enough others",
    )
    speculative_read_ms: int = Field(
        int(limits.SPECULATIVE_READ_FIRST_S * 1000),
        alias="bookkeeperClientSpeculativeReadTimeoutInMillis",
        ge=0,
        description="time after which an unanswered read is also sent to a second bookie, in ms; 0: never",
    )
    speculative_read_growth: float = Field(
        limits.SPECULATIVE_READ_GROWTH,
        alias="speculativeReadTimeoutBackoffMultiplier",
        ge=1,
        description="factor by which the wait grows before each further bookie",
    )
    speculative_read_max_ms: int = Field(
        int(limits.SPECULATIVE_READ_MAX_S * 1000),
        alias="maxSpeculativeReadTimeout",
        ge=0,
        description="the longest such wait, in ms; not below the first",
    )
    explicit_lac_ms: int = Field(
        int(limits.EXPLICIT_LAC_INTERVAL_S * 1000),
        alias="bookkeeperExplicitLacIntervalInMills",
        ge=0,
        description="time after which a pausing writer sends the LAC to its bookies, in ms; 0: never",
    )
    racks_min: int = Field(
        limits.PLACEMENT_RACKS_MIN,
        alias="bookkeeperClientMinNumRacksPerWriteQuorum",
        ge=1,
        description="racks over which the replicas of an entry are spread, if there are enough",
    )
    zones_min: int = Field(
        1,
        alias="bookkeeperClientMinNumZonesPerWriteQuorum",
        ge=1,
        description="the same for zones, the first part of /zone/rack",
    )
    placement_enforced: bool = Field(
        False,
        alias="bookkeeperClientEnforceMinNumRacksPerWriteQuorum",
        description="never create a ledger or replace a bookie in violation of the two minima",
    )
    placement_by_free_space: bool = Field(
        False,
        alias="bookkeeperDiskWeightBasedPlacementEnabled",
        description="prefer bookies with more free space for new ledgers",
    )

    @model_validator(mode="after")
    def _waits_grow(self) -> "LedgerClientConfig":
        if self.speculative_read_max_ms < self.speculative_read_ms:
            raise ValueError(
                f"maxSpeculativeReadTimeout {self.speculative_read_max_ms} is below "
                f"bookkeeperClientSpeculativeReadTimeoutInMillis {self.speculative_read_ms}; raise the first"
            )
        return self
