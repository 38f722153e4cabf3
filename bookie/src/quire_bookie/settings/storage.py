"""Declares the settings of the storage."""

from quire_bookie import limits
from quire_bookie.dataclass import dataclass
from quire_bookie.errors import ConfigError
from quire_bookie.settings.declared import MEBIBYTES, MILLISECONDS, setting


@dataclass(frozen=True, slots=True)
class StorageSettings:
    """The settings of one storage. Raises ConfigError if the values contradict each other."""

    write_cache_bytes: int = setting(
        limits.WRITE_CACHE_BYTES,
        "dbStorage_writeCacheMaxSizeMb",
        "both halves of the write cache together, in MiB",
        short="write_cache_mb",
        unit=MEBIBYTES,
        ge=24,
    )
    read_cache_bytes: int = setting(
        limits.READ_CACHE_BYTES,
        "dbStorage_readAheadCacheMaxSizeMb",
        "read cache in MiB",
        short="read_cache_mb",
        unit=MEBIBYTES,
        ge=1,
    )
    read_ahead_bytes: int = limits.READ_AHEAD_BYTES
    entry_log_bytes_max: int = setting(
        limits.ENTRY_LOG_BYTES_MAX,
        "logSizeLimit",
        "an entry log is sealed at this size in bytes",
        short="entry_log_size_bytes",
        ge=2 * limits.FRAME_BYTES_MAX,
        le=1024 * limits.MIB,
    )
    flush_interval_s: float = setting(
        limits.FLUSH_INTERVAL_S,
        "flushInterval",
        "the write cache is flushed at least this often, in ms",
        short="flush_interval_ms",
        unit=MILLISECONDS,
        ge=10,
    )
    ledger_states_max: int = setting(
        limits.LEDGER_STATES_MAX,
        "ledgerStatesMax",
        "ledgers whose state stays in memory, 500 bytes each; the first add or read of another one reads its state",
        short="ledger_states_max",
        ge=1,
    )
    changed_states_max: int = limits.CHANGED_LEDGER_STATES_MAX
    """This many changed states of ledgers (new, fenced, explicit LAC) start a flush, regardless of the entries."""
    reserved_bytes: int = limits.DISK_RESERVED_BYTES
    """A flush that would leave less free space is refused with DiskFullError; deletions may use it."""
    compaction_reserved_bytes: int = limits.DISK_COMPACTION_RESERVED_BYTES
    """Space that compaction leaves free: less than flushes, since it frees more than it takes."""
    reserve_bytes: int = 0
    """Allocated in advance for a full disk: at least the write cache, so that its content always fits; 0: none."""
    disk_full_retry_s: float = limits.DISK_CHECK_INTERVAL_S
    deleted_ledger_memory_s: float = setting(
        limits.DELETED_LEDGER_MEMORY_S,
        "deletedLedgerMemorySeconds",
        "time for which a deleted ledger refuses late writers, in s",
        ge=0,
    )
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
