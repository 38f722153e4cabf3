"""Settings of the ledger client. Owns their validation; reads no files and no environment variables."""

from dataclasses import dataclass, field

from quire_bookie.client.security import ClientSecuritySettings
from quire_bookie.errors import ConfigError
from quire_bookie.limits import (
    ADD_TIMEOUT_S,
    BATCH_READ_BYTES_MAX,
    CONNECT_TIMEOUT_S,
    ENSEMBLE_CHANGES_MAX,
    EXPLICIT_LAC_INTERVAL_S,
    FRAME_BYTES_MAX,
    FREE_SPACE_INTERVAL_S,
    PLACEMENT_RACKS_MIN,
    QUARANTINE_ERRORS,
    QUARANTINE_INTERVAL_S,
    QUARANTINE_S,
    READ_ENTRIES_IN_FLIGHT_MAX,
    READ_TIMEOUT_S,
    READ_WINDOW_BYTES,
    RECOVERY_READS_IN_FLIGHT,
    SLOW_REPLICA_BYTES_MAX,
    SLOW_REPLICA_GRACE_S,
    SLOW_REPLICA_S,
    SPECULATIVE_READ_FIRST_S,
    SPECULATIVE_READ_GROWTH,
    SPECULATIVE_READ_MAX_S,
    SUSPECT_BOOKIE_S,
    TOO_MANY_REQUESTS_BACKOFF_S,
    WRITER_PENDING_BYTES_MAX,
)


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Settings of one client, shared by its writers, readers and recoveries."""

    connect_timeout_s: float = CONNECT_TIMEOUT_S
    add_timeout_s: float = ADD_TIMEOUT_S
    """A replica that has not answered an add for this long counts as failed for that ledger."""
    read_timeout_s: float = READ_TIMEOUT_S
    frame_bytes_max: int = FRAME_BYTES_MAX
    writer_pending_bytes_max: int = WRITER_PENDING_BYTES_MAX
    """Bytes sent and not yet acknowledged by every living replica; above this limit a writer is not writable."""
    batch_read_bytes_max: int = BATCH_READ_BYTES_MAX
    read_window_bytes: int = READ_WINDOW_BYTES
    """Expected bytes of the responses that one range read of single entries has in flight."""
    read_entries_in_flight_max: int = READ_ENTRIES_IN_FLIGHT_MAX
    speculative_read_first_s: float = SPECULATIVE_READ_FIRST_S
    """A read that waits for this long is sent to a second replica as well; 0: never."""
    speculative_read_growth: float = SPECULATIVE_READ_GROWTH
    """The wait before each further replica grows by this factor, up to `speculative_read_max_s`."""
    speculative_read_max_s: float = SPECULATIVE_READ_MAX_S
    recovery_reads_in_flight: int = RECOVERY_READS_IN_FLIGHT
    retry_backoff_s: tuple[float, float] = TOO_MANY_REQUESTS_BACKOFF_S
    """First and longest wait before adds are sent again to a bookie that answered ETOOMANYREQUESTS."""
    suspect_s: float = SUSPECT_BOOKIE_S
    """How long an unreachable bookie that is still registered is avoided for new ledgers."""
    slow_replica_bytes_max: int = SLOW_REPLICA_BYTES_MAX
    """While more bytes are in flight, a replica that lags behind Qa others for `slow_replica_grace_s` is replaced."""
    slow_replica_grace_s: float = SLOW_REPLICA_GRACE_S
    slow_replica_s: float = SLOW_REPLICA_S
    """A replica that lacks an entry for this long which Qa others have is replaced, regardless of bytes in flight."""
    add_quorum_timeout_s: float | None = None
    """A writer fails if its next entry has no ack quorum after this time (addEntryQuorumTimeoutSec). None: it waits."""
    ensemble_changes_max: int = ENSEMBLE_CHANGES_MAX
    """Ensemble changes of one writer. After that, lost replicas are not replaced, and the ack quorum must suffice."""
    delay_ensemble_change: bool = False
    """Replace a lost bookie only if the ack quorum is lost with it, or if it answered that it is read-only."""
    quarantine_errors: int = QUARANTINE_ERRORS
    """A bookie that loses this many replicas within `quarantine_interval_s` is kept out of ensembles; 0: never."""
    quarantine_interval_s: float = QUARANTINE_INTERVAL_S
    quarantine_s: float = QUARANTINE_S
    placement_racks_min: int = PLACEMENT_RACKS_MIN
    """Racks, according to the rack map `/bookies`, over which each write set is spread (minNumRacksPerWriteQuorum)."""
    placement_zones_min: int = 1
    """The same for zones, the first part of `/zone/rack`."""
    placement_enforced: bool = False
    """Never choose an ensemble or replacement that breaks these two limits (enforceMinNumRacksPerWriteQuorum)."""
    placement_by_free_space: bool = False
    """Bookies with more free space get more ledgers (diskWeightBasedPlacementEnabled)."""
    free_space_interval_s: float = FREE_SPACE_INTERVAL_S
    explicit_lac_interval_s: float = EXPLICIT_LAC_INTERVAL_S
    """A writer that pauses for this long sends its LAC to its bookies (explicitLacInterval); 0: never."""
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
        if self.speculative_read_max_s < self.speculative_read_first_s or self.speculative_read_growth < 1:
            raise ConfigError(
                f"ledger client: speculative reads wait {self.speculative_read_first_s} s, times "
                f"{self.speculative_read_growth}, up to {self.speculative_read_max_s} s: use a maximum of at least the "
                "first wait and a growth of at least 1"
            )
