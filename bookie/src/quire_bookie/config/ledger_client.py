"""How a process's ledger client behaves: a broker's, a standalone's, auto-recovery's. Under BookKeeper's key names."""

from pydantic import Field, model_validator

from quire_bookie import limits
from quire_bookie.config.sources import ProcessConfig


class LedgerClientConfig(ProcessConfig):
    """Timeouts, slow and failing bookies, reads, placement."""

    client_timeout_s: float = Field(
        limits.ADD_TIMEOUT_S,
        alias="bookkeeperClientTimeoutInSeconds",
        gt=0,
        description="a bookie that has not answered an add or a read for so long failed, in s",
    )
    client_connect_timeout_ms: int = Field(
        int(limits.CONNECT_TIMEOUT_S * 1000),
        alias="clientConnectTimeoutMillis",
        ge=1,
        description="a connection to a bookie must be made within so long, in ms",
    )
    client_pending_mb: int = Field(
        limits.WRITER_PENDING_BYTES_MAX // limits.MIB,
        alias="ledgerWriterMaxPendingMB",
        ge=1,
        description="one ledger takes no more appends while so many MiB are not on every replica",
    )
    add_quorum_timeout_s: float = Field(
        0.0,
        alias="addEntryQuorumTimeoutSec",
        ge=0,
        description="a ledger whose next entry has no ack quorum after so long fails, in s; 0: it waits",
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
        description="replacements in one ledger; after that it goes on with the replicas that it has",
    )
    slow_replica_s: float = Field(
        limits.SLOW_REPLICA_S,
        alias="slowReplicaSeconds",
        gt=0,
        description="a bookie that owes an entry for so long which enough others have is replaced, in s",
    )
    slow_replica_mb: int = Field(
        limits.SLOW_REPLICA_BYTES_MAX // limits.MIB,
        alias="slowReplicaMaxPendingMB",
        ge=1,
        description="while so many MiB are under way, the slowest bookie is replaced after slowReplicaGraceSeconds",
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
        description="so many failures of one bookie within an interval keep it out of new ledgers; 0: never",
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
        description="how long such a bookie is kept out, in s, while there are enough others",
    )
    speculative_read_ms: int = Field(
        int(limits.SPECULATIVE_READ_FIRST_S * 1000),
        alias="bookkeeperClientSpeculativeReadTimeoutInMillis",
        ge=0,
        description="a read that waits for so long is asked of a second bookie as well, in ms; 0: never",
    )
    speculative_read_growth: float = Field(
        limits.SPECULATIVE_READ_GROWTH,
        alias="speculativeReadTimeoutBackoffMultiplier",
        ge=1,
        description="the wait before a third bookie and so on is longer by this factor",
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
        description="a writer that pauses tells its bookies after so long what is confirmed, in ms; 0: not",
    )
    racks_min: int = Field(
        limits.PLACEMENT_RACKS_MIN,
        alias="bookkeeperClientMinNumRacksPerWriteQuorum",
        ge=1,
        description="racks over which the replicas of an entry are spread, where there are as many",
    )
    zones_min: int = Field(
        1,
        alias="bookkeeperClientMinNumZonesPerWriteQuorum",
        ge=1,
        description="the same of zones, the first part of /zone/rack",
    )
    placement_enforced: bool = Field(
        False,
        alias="bookkeeperClientEnforceMinNumRacksPerWriteQuorum",
        description="make no ledger, and replace no bookie, against the two minima",
    )
    placement_by_free_space: bool = Field(
        False,
        alias="bookkeeperDiskWeightBasedPlacementEnabled",
        description="bookies with more free space get more ledgers",
    )

    @model_validator(mode="after")
    def _waits_grow(self) -> "LedgerClientConfig":
        if self.speculative_read_max_ms < self.speculative_read_ms:
            raise ValueError(
                f"maxSpeculativeReadTimeout {self.speculative_read_max_ms} is below "
                f"bookkeeperClientSpeculativeReadTimeoutInMillis {self.speculative_read_ms}; raise the first"
            )
        return self
