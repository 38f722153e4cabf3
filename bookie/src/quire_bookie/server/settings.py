"""What a bookie can be told, with defaults from `limits`, and what it counts. Never read from a file here."""

from dataclasses import dataclass, field

from quire_bookie import limits
from quire_bookie.errors import ConfigError
from quire_bookie.journal.settings import JournalSettings
from quire_bookie.metadata.settings import MetadataSettings
from quire_bookie.server.garbage_collection import GarbageCollectionSettings
from quire_bookie.storage.settings import StorageSettings


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """Bounds of request handling. Times in seconds."""

    frame_bytes_max: int = limits.FRAME_BYTES_MAX
    batch_read_bytes_max: int = limits.BATCH_READ_BYTES_MAX
    adds_in_flight_bytes_max: int = limits.ADDS_IN_FLIGHT_BYTES_MAX
    """Normal adds that are not answered yet."""
    priority_adds_in_flight_bytes_max: int = limits.ADDS_IN_FLIGHT_BYTES_MAX // 4
    """Recovery and high-priority adds: their own budget, so that a full bookie still lets ledgers be recovered."""
    backpressure_pause_s: float = limits.BACKPRESSURE_PAUSE_S
    socket_write_high_bytes: int = limits.SOCKET_WRITE_HIGH_BYTES
    reads_at_once_per_connection: int = limits.READS_AT_ONCE_PER_CONNECTION
    reads_queued_per_connection: int = limits.READS_QUEUED_PER_CONNECTION

    def check(self) -> None:
        """Raise ConfigError for values that cannot work."""
        for name in self.__slots__:
            if getattr(self, name) <= 0 and name != "backpressure_pause_s":
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be positive")
        if self.backpressure_pause_s < 0:
            raise ConfigError(f"backpressure_pause_s is {self.backpressure_pause_s}; it must not be negative")


@dataclass(frozen=True, slots=True)
class BookieSettings:
    """Everything that `start_bookie` needs. `advertise` is the host that clients connect to."""

    data_dir: str
    listen: str = "0.0.0.0"
    port: int = 3181
    advertise: str = "localhost"
    http_port: int = -1
    """Published in the registration when positive; who listens there is the caller's."""
    journal_dir: str | None = None
    ledger_dir: str | None = None
    index_cache_bytes: int = limits.INDEX_CACHE_BYTES
    disk_usage_threshold: float = limits.DISK_USAGE_THRESHOLD
    disk_usage_low_watermark: float = limits.DISK_USAGE_LOW_WATERMARK
    disk_check_interval_s: float = limits.DISK_CHECK_INTERVAL_S
    drain_timeout_s: float = limits.BOOKIE_DRAIN_TIMEOUT_S
    poisoned_reads_s: float = limits.POISONED_READS_S
    service: ServiceSettings = field(default_factory=ServiceSettings)
    journal: JournalSettings = field(default_factory=JournalSettings)
    storage: StorageSettings = field(default_factory=StorageSettings)
    metadata: MetadataSettings = field(default_factory=MetadataSettings)
    garbage_collection: GarbageCollectionSettings = field(default_factory=GarbageCollectionSettings)

    @property
    def journal_path(self) -> str:
        """Folder of the journal."""
        return self.journal_dir or f"{self.data_dir}/journal"

    @property
    def ledger_path(self) -> str:
        """Folder of entry logs and index."""
        return self.ledger_dir or f"{self.data_dir}/ledgers"


@dataclass(slots=True)
class BookieStats:
    """Counters since the start, for a collector to read."""

    connections_opened: int = 0
    connections_open: int = 0
    protocol_failures: int = 0
    add_runs: int = 0
    add_entries: int = 0
    add_bytes: int = 0
    adds_failed: int = 0
    adds_rejected: int = 0
    adds_paused: int = 0
    adds_in_flight_bytes: int = 0
    reads: int = 0
    reads_failed: int = 0
    read_bytes: int = 0
    fences: int = 0
    lac_writes: int = 0
    ledgers_created: int = 0
