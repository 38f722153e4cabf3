"""Declares the settings of managed ledgers, with Pulsar's defaults."""

from dataclasses import field

from quire_bookie.dataclass import dataclass
from quire_bookie.errors import ConfigError
from quire_bookie.limits import FRAME_BYTES_MAX, KIB, METADATA_VALUE_BYTES_MAX, MIB
from quire_bookie.model import DigestType
from quire_bookie.quorum.bookie_groups import BookieGroups
from quire_bookie.settings.declared import MEBIBYTES, MINUTES, setting
from quire_broker import limits
from quire_broker.limits import TOPIC_LOAD_S
from quire_broker.offload.settings import OffloadSettings

NOTHING_KEPT = 0
"""As a retention: consumed ledgers are removed at once as far as this rule is concerned."""

UNLIMITED = -1
"""As a retention: this rule removes nothing."""

CACHE_MIB_MAX = 1 << 20
"""Of a share of the cache: a tebibyte."""

_STATE_HEADROOM_BYTES = 64 * KIB  # header, digest and protocol fields around one entry of a cursor ledger


@dataclass(frozen=True, slots=True)
class ManagedLedgerSettings:
    """All settings of managed ledgers. Durations in seconds, sizes in bytes. ConfigError if values contradict."""

    ensemble_size: int = 3
    write_quorum: int = 3
    ack_quorum: int = 2
    digest_type: DigestType = DigestType.CRC32C
    password: bytes = field(default=b"", repr=False)
    """Password of new ledgers; earlier ledgers open with their own."""
    groups: BookieGroups | None = None
    """The groups of bookies that hold new ledgers; None: all bookies may."""

    ledger_entries_max: int = setting(
        50_000,
        "managedLedgerMaxEntriesPerLedger",
        "entries after which a ledger rolls over",
        short="max_entries_per_ledger",
        ge=1,
    )
    ledger_bytes_max: int = setting(
        2048 * MIB,
        "managedLedgerMaxSizePerLedgerMbytes",
        "MiB after which a ledger rolls over",
        short="max_size_per_ledger_mb",
        unit=MEBIBYTES,
        ge=1,
    )
    rollover_age_min_s: float = setting(
        10 * 60.0,
        "managedLedgerMinLedgerRolloverTimeMinutes",
        "a ledger younger than this does not roll over, whatever the other limits",
        short="min_rollover_minutes",
        unit=MINUTES,
        ge=0,
    )
    rollover_age_max_s: float = setting(
        240 * 60.0,
        "managedLedgerMaxLedgerRolloverTimeMinutes",
        "a ledger older than this rolls over",
        short="max_rollover_minutes",
        unit=MINUTES,
        ge=1,
    )
    degraded_rollover_interval_s: float = 10.0
    """The minimum time between replacements of ledgers that miss a replica."""

    cursor_ledger_entries_max: int = 50_000
    cursor_ledger_age_max_s: float = 4 * 3600.0
    cursor_persist_acks: int = 100
    cursor_persist_interval_s: float = 1.0
    unacked_ranges_max: int = setting(
        10_000_000,
        "managedLedgerMaxUnackedRangesToPersist",
        "ranges of individual acks written for a cursor; the highest beyond are delivered again",
        short="max_unacked_ranges_to_persist",
        ge=1,
    )
    unacked_ranges_in_node_max: int = 1_000
    batch_acks_max: int = 10_000
    batch_masks_bytes_max: int = setting(
        16 * MIB,
        "batchIndexAcksMaxMbPerSubscription",
        "memory of a subscription for acks inside batches, MiB; batches beyond it are delivered again",
        short="batch_index_acks_max_mb",
        unit=MEBIBYTES,
        ge=1,
        le=1024,
    )

    cursor_state_bytes_max: int = FRAME_BYTES_MAX - _STATE_HEADROOM_BYTES
    cursor_node_bytes_max: int = METADATA_VALUE_BYTES_MAX // 2
    persist_batch_acks: bool = True

    retention_s: float = setting(
        NOTHING_KEPT,
        "defaultRetentionTimeInMinutes",
        "time to keep consumed ledgers; -1: forever",
        short="retention_minutes",
        unit=MINUTES,
        ge=UNLIMITED,
    )
    retention_bytes: int = setting(
        NOTHING_KEPT,
        "defaultRetentionSizeInMB",
        "consumed data to keep per topic; -1: everything",
        short="retention_mb",
        unit=MEBIBYTES,
        ge=UNLIMITED,
    )
    trim_interval_s: float = setting(
        120.0,
        "retentionCheckIntervalInSeconds",
        "pause between trimming rounds, in s",
        short="retention_check_interval_s",
        kind=int,
        ge=1,
    )

    offload: OffloadSettings = field(default_factory=OffloadSettings)

    cache_bytes: int = setting(
        256 * MIB,
        "managedLedgerCacheSizeMB",
        "cache of appended entries for readers at the tail, all topics, MiB",
        short="cache_size_mb",
        unit=MEBIBYTES,
        ge=1,
        le=CACHE_MIB_MAX,
    )
    """For all managed ledgers of a factory together; the factory's own settings are used."""

    read_cache_bytes: int = setting(
        1024 * MIB,
        "managedLedgerReadCacheSizeMB",
        "cache of entries that one subscription has read and others read soon, all topics, MiB; an eighth is for "
        "subscriptions far behind",
        short="read_cache_size_mb",
        unit=MEBIBYTES,
        ge=1,
        le=CACHE_MIB_MAX,
    )
    """The same."""

    cache_age_max_s: float = 30.0
    cache_backlog_max: int = 1_000
    """A read with more entries behind it, and not from the cache, is a catch-up."""

    catch_up_read_bytes: int = 1 * MIB
    catch_up_reads_at_once: int = 2
    """Of a factory, in all."""
    catch_up_wait_s: float = 1.0
    """A read of a catch-up that has waited this long does not wait any longer."""

    open_readers_max: int = 16
    """Handles of closed ledgers kept open for reads, per managed ledger."""

    metadata_retry_s: float = 60.0
    """How long opening, new cursors and deletions retry while the metadata store is unavailable."""

    open_s: float = TOPIC_LOAD_S
    """How long opening may take in all; of the factory's settings."""

    append_wait_s: float = 20.0
    """How long pending appends wait for a new ledger after their ledger failed."""

    retry_backoff_s: tuple[float, float] = (0.1, 5.0)
    tick_interval_s: float = 1.0

    def __post_init__(self) -> None:
        """Reject values that contradict each other."""
        if not 1 <= self.ack_quorum <= self.write_quorum <= self.ensemble_size:
            raise ConfigError(
                f"quorums {self.ensemble_size}/{self.write_quorum}/{self.ack_quorum}: "
                "required is ensemble size >= write quorum >= ack quorum >= 1"
            )
        positive = ("ledger_entries_max", "ledger_bytes_max", "cursor_ledger_entries_max", "cursor_persist_acks")
        for name in (*positive, "batch_masks_bytes_max"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be 1 or more")
        if self.rollover_age_min_s > self.rollover_age_max_s:
            raise ConfigError(
                f"managedLedgerMinLedgerRolloverTimeMinutes {self.rollover_age_min_s / 60:g} is above "
                f"managedLedgerMaxLedgerRolloverTimeMinutes {self.rollover_age_max_s / 60:g}"
            )
        if self.retention_s < UNLIMITED or self.retention_bytes < UNLIMITED:
            raise ConfigError("a retention is -1 (unlimited), 0 or positive")


@dataclass(frozen=True, slots=True)
class MarkedLedgerSettings:
    """When a broker ends an open ledger that lacks a replica according to its mark, and that rests."""

    idle_s: float = setting(
        limits.MARKED_LEDGER_IDLE_S,
        "markedLedgerIdleSeconds",
        "an open ledger that is marked as under-replicated rolls over if nothing is written to it for this time, in s; "
        "0: never",
        short="marked_ledger_idle_s",
        kind=int,
        ge=0,
        le=limits.MARKED_LEDGER_IDLE_MAX_S,
    )
    rollovers_s: int = setting(
        limits.MARKED_LEDGER_ROLLOVERS_S,
        "markedLedgerRolloversPerSecond",
        "the most such rollovers that a broker begins per second",
        short="marked_ledger_rollovers_per_s",
        ge=1,
        le=10_000,
    )
