"""Declares the settings of the ledger client."""

from dataclasses import field

from quire_bookie import limits
from quire_bookie.dataclass import dataclass
from quire_bookie.errors import ConfigError
from quire_bookie.settings.declared import MEBIBYTES, MILLISECONDS, setting
from quire_bookie.settings.tls import ClientSecuritySettings

_TIMEOUT = "bookkeeperClientTimeoutInSeconds", "time after which an unanswered add or read counts as failed, in s"


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Settings of one client, shared by its writers, readers and recoveries."""

    add_timeout_s: float = setting(limits.ADD_TIMEOUT_S, *_TIMEOUT, short="client_timeout_s", gt=0)
    read_timeout_s: float = setting(limits.READ_TIMEOUT_S, *_TIMEOUT, short="client_timeout_s", gt=0)
    connect_timeout_s: float = setting(
        limits.CONNECT_TIMEOUT_S,
        "clientConnectTimeoutMillis",
        "time limit of connecting to a bookie, in ms",
        short="client_connect_timeout_ms",
        unit=MILLISECONDS,
        ge=1,
    )
    frame_bytes_max: int = limits.FRAME_BYTES_MAX
    writer_pending_bytes_max: int = setting(
        limits.WRITER_PENDING_BYTES_MAX,
        "ledgerWriterMaxPendingMB",
        "one ledger accepts no more appends while this many MiB are not on every replica",
        short="client_pending_mb",
        unit=MEBIBYTES,
        ge=1,
    )
    batch_read_bytes_max: int = limits.BATCH_READ_BYTES_MAX
    read_window_bytes: int = limits.READ_WINDOW_BYTES
    """Expected bytes of the responses that one range read of single entries has in flight."""
    read_entries_in_flight_max: int = limits.READ_ENTRIES_IN_FLIGHT_MAX
    recovery_reads_in_flight: int = limits.RECOVERY_READS_IN_FLIGHT
    retry_backoff_s: tuple[float, float] = limits.TOO_MANY_REQUESTS_BACKOFF_S
    """First and longest wait before adds are sent again to a bookie that answered ETOOMANYREQUESTS."""
    suspect_s: float = limits.SUSPECT_BOOKIE_S
    """How long an unreachable bookie that is still registered is avoided for new ledgers."""
    add_quorum_timeout_s: float | None = setting(
        None,
        "addEntryQuorumTimeoutSec",
        "time after which a ledger fails if its next entry has no ack quorum, in s; 0: it waits",
        kind=float,
        key_default=0.0,
        read=lambda value: value or None,
        ge=0,
    )
    delay_ensemble_change: bool = setting(
        False,
        "delayEnsembleChange",
        "replace a failed bookie only when the ack quorum needs it, or when it is read-only",
    )
    ensemble_changes_max: int = setting(
        limits.ENSEMBLE_CHANGES_MAX,
        "maxNumEnsembleChanges",
        "ensemble changes of one ledger; after that it continues with its remaining replicas",
        ge=0,
    )
    slow_replica_s: float = setting(
        limits.SLOW_REPLICA_S,
        "slowReplicaSeconds",
        "time after which a bookie is replaced that lacks an entry which enough others have, in s",
        gt=0,
    )
    slow_replica_bytes_max: int = setting(
        limits.SLOW_REPLICA_BYTES_MAX,
        "slowReplicaMaxPendingMB",
        "while this many MiB are in flight, the slowest bookie is replaced after slowReplicaGraceSeconds",
        short="slow_replica_mb",
        unit=MEBIBYTES,
        ge=1,
    )
    slow_replica_grace_s: float = setting(
        limits.SLOW_REPLICA_GRACE_S, "slowReplicaGraceSeconds", "see slowReplicaMaxPendingMB, in s", gt=0
    )
    quarantine_errors: int = setting(
        limits.QUARANTINE_ERRORS,
        "bookkeeperClientHealthCheckErrorThresholdPerInterval",
        "number of failures within an interval that excludes a bookie from new ledgers; 0: never",
        ge=0,
    )
    quarantine_interval_s: float = setting(
        limits.QUARANTINE_INTERVAL_S,
        "bookkeeperClientHealthCheckIntervalSeconds",
        "the interval in which failures are counted, in s",
        gt=0,
    )
    quarantine_s: float = setting(
        limits.QUARANTINE_S,
        "bookkeeperClientHealthCheckQuarantineTimeInSeconds",
        "time for which such a bookie is excluded, in s, while there are enough others",
        gt=0,
    )
    speculative_read_first_s: float = setting(
        limits.SPECULATIVE_READ_FIRST_S,
        "bookkeeperClientSpeculativeReadTimeoutInMillis",
        "time after which an unanswered read is also sent to a second bookie, in ms; 0: never",
        short="speculative_read_ms",
        unit=MILLISECONDS,
        ge=0,
    )
    speculative_read_growth: float = setting(
        limits.SPECULATIVE_READ_GROWTH,
        "speculativeReadTimeoutBackoffMultiplier",
        "factor by which the wait grows before each further bookie",
        ge=1,
    )
    speculative_read_max_s: float = setting(
        limits.SPECULATIVE_READ_MAX_S,
        "maxSpeculativeReadTimeout",
        "the longest such wait, in ms; not below the first",
        short="speculative_read_max_ms",
        unit=MILLISECONDS,
        ge=0,
    )
    explicit_lac_interval_s: float = setting(
        limits.EXPLICIT_LAC_INTERVAL_S,
        "bookkeeperExplicitLacIntervalInMills",
        "time after which a pausing writer sends the LAC to its bookies, in ms; 0: never",
        short="explicit_lac_ms",
        unit=MILLISECONDS,
        ge=0,
    )
    placement_racks_min: int = setting(
        limits.PLACEMENT_RACKS_MIN,
        "bookkeeperClientMinNumRacksPerWriteQuorum",
        "racks over which the replicas of an entry are spread, if there are enough",
        short="racks_min",
        ge=1,
    )
    placement_zones_min: int = setting(
        1,
        "bookkeeperClientMinNumZonesPerWriteQuorum",
        "the same for zones, the first part of /zone/rack",
        short="zones_min",
        ge=1,
    )
    placement_enforced: bool = setting(
        False,
        "bookkeeperClientEnforceMinNumRacksPerWriteQuorum",
        "never create a ledger or replace a bookie in violation of the two minima",
    )
    distinct_machines: bool = setting(
        False,
        "enforceReplicasOnDistinctMachines",
        "never put two copies of an entry on one machine, see bookieMachine; with fewer machines than the write quorum "
        "new ledgers have fewer copies, at least the ack quorum; false: copies share one only if there are too few",
    )
    placement_by_free_space: bool = setting(
        False, "bookkeeperDiskWeightBasedPlacementEnabled", "prefer bookies with more free space for new ledgers"
    )
    free_space_interval_s: float = limits.FREE_SPACE_INTERVAL_S
    security: ClientSecuritySettings = field(default_factory=ClientSecuritySettings)

    def __post_init__(self) -> None:
        """Check the settings. ConfigError."""
        for name in (
            "connect_timeout_s",
            "add_timeout_s",
            "read_timeout_s",
            "suspect_s",
            "slow_replica_grace_s",
            "slow_replica_s",
            "quarantine_interval_s",
            "quarantine_s",
            "free_space_interval_s",
        ):
            if getattr(self, name) <= 0:
                raise ConfigError(f"ledger client: {name}={getattr(self, name)}: use a number above 0")
        for name in (
            "writer_pending_bytes_max",
            "batch_read_bytes_max",
            "read_window_bytes",
            "read_entries_in_flight_max",
            "recovery_reads_in_flight",
            "slow_replica_bytes_max",
            "placement_racks_min",
            "placement_zones_min",
        ):
            if getattr(self, name) < 1:
                raise ConfigError(f"ledger client: {name}={getattr(self, name)}: use at least 1")
        if self.batch_read_bytes_max > self.frame_bytes_max:
            raise ConfigError(
                f"ledger client: batch_read_bytes_max={self.batch_read_bytes_max}: use at most frame_bytes_max, "
                f"which is {self.frame_bytes_max}"
            )
        for name in ("ensemble_changes_max", "quarantine_errors"):
            if getattr(self, name) < 0:
                raise ConfigError(f"ledger client: {name}={getattr(self, name)}: use at least 0")
        if self.add_quorum_timeout_s is not None and self.add_quorum_timeout_s <= 0:
            raise ConfigError(
                f"ledger client: add_quorum_timeout_s={self.add_quorum_timeout_s}: use a number above 0, or None"
            )
        self._check_speculation()
        if self.explicit_lac_interval_s < 0:
            raise ConfigError(
                f"ledger client: explicit_lac_interval_s={self.explicit_lac_interval_s}: use at least 0 (0: never)"
            )
        low, high = self.retry_backoff_s
        if not 0 < low <= high:
            raise ConfigError(
                f"ledger client: retry_backoff_s={self.retry_backoff_s}: give the first and the longest wait, above 0"
            )

    def _check_speculation(self) -> None:
        if self.speculative_read_first_s < 0:
            raise ConfigError(
                f"ledger client: speculative_read_first_s={self.speculative_read_first_s}: use at least 0 (0: never)"
            )
        if self.speculative_read_max_s < self.speculative_read_first_s:
            raise ConfigError(
                f"maxSpeculativeReadTimeout {self.speculative_read_max_s * 1000:g} is below "
                f"bookkeeperClientSpeculativeReadTimeoutInMillis {self.speculative_read_first_s * 1000:g}; "
                "raise the first"
            )
        if self.speculative_read_growth < 1:
            raise ConfigError(
                f"speculativeReadTimeoutBackoffMultiplier {self.speculative_read_growth} is below 1; use at least 1"
            )
