"""Settings and counters of the storage. Owns no behaviour beyond checking that the settings are consistent."""

from dataclasses import dataclass, field

from quire_bookie import limits
from quire_bookie.errors import ConfigError
from quire_bookie.metrics import LatencyHistogram


@dataclass(frozen=True, slots=True)
class StorageSettings:
    """The settings of one storage. Raises ConfigError if the values contradict each other."""

    write_cache_bytes: int = limits.WRITE_CACHE_BYTES
    """The size of both halves together."""
    read_cache_bytes: int = limits.READ_CACHE_BYTES
    read_ahead_bytes: int = limits.READ_AHEAD_BYTES
    entry_log_bytes_max: int = limits.ENTRY_LOG_BYTES_MAX
    flush_interval_s: float = limits.FLUSH_INTERVAL_S
    ledger_states_max: int = limits.LEDGER_STATES_MAX
    changed_states_max: int = limits.CHANGED_LEDGER_STATES_MAX
    """This many changed states of ledgers (new, fenced, explicit LAC) start a flush, regardless of the entries."""
    reserved_bytes: int = limits.DISK_RESERVED_BYTES
    """A flush that would leave less free space is refused with DiskFullError; deletions may use it."""
    compaction_reserved_bytes: int = limits.DISK_COMPACTION_RESERVED_BYTES
    """Space that compaction leaves free: less than flushes, since it frees more than it takes."""
    reserve_bytes: int = 0
    """Allocated in advance for a full disk: at least the write cache, so that its content always fits; 0: none."""
    disk_full_retry_s: float = limits.DISK_CHECK_INTERVAL_S
    deleted_ledger_memory_s: float = limits.DELETED_LEDGER_MEMORY_S
    """How long a deleted ledger refuses late writers before its tombstone is removed."""
    open_logs_max: int = limits.OPEN_LOGS_MAX

    def __post_init__(self) -> None:
        if self.write_cache_bytes < 64 * limits.KIB:
            raise ConfigError(f"write cache of {self.write_cache_bytes} bytes; use at least {64 * limits.KIB}")
        if not 2 * limits.ENTRY_LOG_STRETCH_BYTES <= self.entry_log_bytes_max <= limits.ENTRY_LOG_BYTES_MAX:
            raise ConfigError(
                f"entry log of {self.entry_log_bytes_max} bytes; use {2 * limits.ENTRY_LOG_STRETCH_BYTES} to "
                f"{limits.ENTRY_LOG_BYTES_MAX}"
            )
        if 0 < self.reserve_bytes < self.write_cache_bytes:
            raise ConfigError(
                f"a reserve of {self.reserve_bytes} bytes cannot hold a write cache of {self.write_cache_bytes}; "
                "make it at least as large"
            )
        sizes = "read_cache_bytes", "read_ahead_bytes", "ledger_states_max", "changed_states_max", "open_logs_max"
        for name in sizes:
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be positive")


@dataclass(slots=True)
class StorageStats:
    """Counters since the start, for the metrics collector."""

    entries_put: int = 0
    bytes_put: int = 0
    puts_rejected: int = 0
    reads: int = 0
    write_cache_hits: int = 0
    read_cache_hits: int = 0
    log_reads: int = 0
    log_bytes_read: int = 0
    reads_joined: int = 0
    reads_damaged: int = 0
    flushes: int = 0
    flush_seconds: LatencyHistogram = field(default_factory=LatencyHistogram)
    flushes_failed: int = 0
    entries_flushed: int = 0
    bytes_flushed: int = 0
    index_blocks_written: int = 0
    logs_sealed: int = 0
    logs_dropped: int = 0
    logs_damaged: int = 0
    ledgers_deleted: int = 0
    tombstones_expired: int = 0
