"""The settings of a bookie, with defaults from `limits`, and its counters. Never reads a file."""

from dataclasses import dataclass, field

from quire_bookie import limits
from quire_bookie.env.connection_memory import MemorySettings
from quire_bookie.errors import ConfigError
from quire_bookie.journal.settings import JournalSettings
from quire_bookie.metadata.settings import MetadataSettings
from quire_bookie.metrics import LatencyHistogram
from quire_bookie.model import BookieId
from quire_bookie.server.security.settings import SecuritySettings
from quire_bookie.server.upkeep.compaction_schedule import CompactionSettings
from quire_bookie.server.upkeep.disk_monitor import DiskRules
from quire_bookie.server.upkeep.garbage_collection import GarbageCollectionSettings
from quire_bookie.server.upkeep.own_rack import RackSettings
from quire_bookie.server.upkeep.scrubbing import ScrubbingSettings
from quire_bookie.storage.settings import StorageSettings


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """Holds the bounds of request handling. Times in seconds."""

    frame_bytes_max: int = limits.FRAME_BYTES_MAX
    batch_read_bytes_max: int = limits.BATCH_READ_BYTES_MAX
    adds_in_flight_bytes_max: int = limits.ADDS_IN_FLIGHT_BYTES_MAX
    """Budget of normal adds that are not answered yet."""
    priority_adds_in_flight_bytes_max: int = limits.ADDS_IN_FLIGHT_BYTES_MAX // 4
    """Budget of recovery and high-priority adds: separate, so that ledgers can be recovered on a full bookie."""
    backpressure_pause_s: float = limits.BACKPRESSURE_PAUSE_S
    socket_write_high_bytes: int = limits.SOCKET_WRITE_HIGH_BYTES
    reads_at_once_max: int = limits.READS_AT_ONCE_MAX
    """Normal reads of the whole bookie that storage works on at the same time."""
    priority_reads_at_once_max: int = limits.PRIORITY_READS_AT_ONCE_MAX
    """The same for reads with high priority, which never wait for normal ones."""
    reads_at_once_per_connection: int = limits.READS_AT_ONCE_PER_CONNECTION
    reads_queued_per_connection: int = limits.READS_QUEUED_PER_CONNECTION
    long_polls_max: int = limits.LONG_POLLS_MAX
    """Parked reads of the whole bookie; further ones are answered ETOOMANYREQUESTS."""
    long_polls_per_connection_max: int = limits.LONG_POLLS_PER_CONNECTION_MAX
    first_request_s: float = limits.FIRST_REQUEST_S
    """A connection that has sent no request by then is closed; 0: never."""
    memory: MemorySettings = field(default_factory=MemorySettings)
    """Budget of all connections together; a process with a broker or several bookies shares one."""

    def check(self) -> None:
        """Raise ConfigError for values that cannot work."""
        for name in self.__slots__:
            if name not in ("backpressure_pause_s", "first_request_s", "memory") and getattr(self, name) <= 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be positive")
        self.memory.check(self.frame_bytes_max)
        if self.backpressure_pause_s < 0:
            raise ConfigError(f"backpressure_pause_s is {self.backpressure_pause_s}; it must not be negative")


@dataclass(frozen=True, slots=True)
class BookieSettings:
    """Holds everything that `start_bookie` needs. `advertise` is the host that clients connect to."""

    data_dir: str
    listen: str = "0.0.0.0"
    port: int = 3181
    advertise: str = "localhost"
    bookie_id: BookieId | None = None
    """Id of a new bookie; None: `advertise` and a random suffix."""
    bookie_id_is_set: bool = False
    """`bookie_id` was configured: storage of a bookie with another id is refused."""
    http_port: int = -1
    http_tls: bool = False
    """Published in the registration if `http_port` is positive; the caller listens there."""
    journal_dirs: tuple[str, ...] = ()
    """Folders of the journals, in an order that never changes; empty: `journal` in `data_dir`."""
    ledger_dirs: tuple[str, ...] = ()
    """Folders of entry logs; empty: `ledgers` in `data_dir`."""
    index_dir: str | None = None
    """Folder of the index; None: `index` in the first ledger folder."""
    allow_storage_expansion: bool = False
    """Whether this start adds empty folders listed after the known ones to the bookie."""
    accept_lost_volumes: bool = False
    """Whether this start accepts emptied folders; the bookie then comes up in limbo."""
    index_cache_bytes: int = limits.INDEX_CACHE_BYTES
    rebuild_index_on_damage: bool = False
    """Whether a start with a damaged or missing index rebuilds it from the entry logs instead of failing."""
    disk_usage_threshold: float = limits.DISK_USAGE_THRESHOLD
    disk_usage_warn_threshold: float = limits.DISK_USAGE_WARN_THRESHOLD
    disk_usage_low_watermark: float = limits.DISK_USAGE_LOW_WATERMARK
    disk_check_interval_s: float = limits.DISK_CHECK_INTERVAL_S
    high_priority_bytes_min: int | None = None
    """Free bytes of a folder from which a read-only bookie accepts high-priority adds; None: an entry log's size."""
    read_only_enabled: bool = True
    """False: a bookie without space ends instead of turning read-only."""
    read_only_on_any_disk_full: bool = False
    force_read_only: bool = False
    fit_disk: bool = False
    """Limit sizes to those that suit the disk, and size the reserve accordingly (`server.start.disk_fit`)."""
    shares_disk_with: int = 1
    """The number of bookies on its disk, itself included."""
    rack: RackSettings = field(default_factory=RackSettings)
    drain_timeout_s: float = limits.BOOKIE_DRAIN_TIMEOUT_S
    poisoned_reads_s: float = limits.POISONED_READS_S
    service: ServiceSettings = field(default_factory=ServiceSettings)
    security: SecuritySettings = field(default_factory=SecuritySettings)
    journal: JournalSettings = field(default_factory=JournalSettings)
    storage: StorageSettings = field(default_factory=StorageSettings)
    metadata: MetadataSettings = field(default_factory=MetadataSettings)
    garbage_collection: GarbageCollectionSettings = field(default_factory=GarbageCollectionSettings)
    scrubbing: ScrubbingSettings = field(default_factory=ScrubbingSettings)
    compaction: CompactionSettings = field(default_factory=CompactionSettings)

    @property
    def journal_paths(self) -> tuple[str, ...]:
        """Folders of the journals."""
        return self.journal_dirs or (f"{self.data_dir}/journal",)

    @property
    def ledger_paths(self) -> tuple[str, ...]:
        """Folders of the entry logs."""
        return self.ledger_dirs or (f"{self.data_dir}/ledgers",)

    @property
    def disk_rules(self) -> DiskRules:
        """The rules by which a folder counts as full."""
        needed = self.high_priority_bytes_min
        return DiskRules(
            threshold=self.disk_usage_threshold,
            warn_threshold=self.disk_usage_warn_threshold,
            low_watermark=self.disk_usage_low_watermark,
            interval_s=self.disk_check_interval_s,
            high_priority_bytes_min=self.storage.entry_log_bytes_max if needed is None else needed,
            on_any_full=self.read_only_on_any_disk_full,
            read_only_enabled=self.read_only_enabled,
        )

    @property
    def index_path(self) -> str:
        """Folder of the index store."""
        return f"{self.index_dir or self.ledger_paths[0]}/index"


@dataclass(slots=True)
class BookieStats:
    """Holds counters since the start, for the metrics collector."""

    connections_opened: int = 0
    connections_open: int = 0
    connections_closed_unused: int = 0
    """Connections closed because they sent no request within `first_request_s`."""
    protocol_failures: int = 0
    add_runs: int = 0
    add_entries: int = 0
    add_bytes: int = 0
    recovery_add_entries: int = 0
    """Of `add_entries`, those with the recovery flag."""
    deferred_add_entries: int = 0
    """Of `add_entries`, those answered before they were durable, at the client's request."""
    adds_failed: int = 0
    adds_rejected: int = 0
    adds_foreign: int = 0
    """Entries refused because the bookie stores another ledger under their id."""
    tokens_refused: int = 0
    """Requests refused because the bookie stores another ledger under that id."""
    adds_paused: int = 0
    adds_in_flight_bytes: int = 0
    add_seconds: LatencyHistogram = field(default_factory=LatencyHistogram)
    """From the arrival of an entry to its response; histograms of all operations observe only OK responses."""
    reads: int = 0
    """Requests: single, fencing and batch reads."""
    batch_reads: int = 0
    reads_failed: int = 0
    """Absent entries included."""
    read_bytes: int = 0
    read_seconds: LatencyHistogram = field(default_factory=LatencyHistogram)
    fences: int = 0
    fences_failed: int = 0
    fence_seconds: LatencyHistogram = field(default_factory=LatencyHistogram)
    long_polls: int = 0
    long_polls_failed: int = 0
    long_polls_parked: int = 0
    """Long polls parked now."""
    long_poll_seconds: LatencyHistogram = field(default_factory=LatencyHistogram)
    forces: int = 0
    forces_failed: int = 0
    force_seconds: LatencyHistogram = field(default_factory=LatencyHistogram)
    lac_writes: int = 0
    lac_writes_failed: int = 0
    write_lac_seconds: LatencyHistogram = field(default_factory=LatencyHistogram)
    lac_reads: int = 0
    lac_reads_failed: int = 0
    read_lac_seconds: LatencyHistogram = field(default_factory=LatencyHistogram)
    entry_lists: int = 0
    entry_lists_failed: int = 0
    info_requests: int = 0
    requests_refused: int = 0
    """Requests refused by the protocol layer: wrong version, missing body, unknown operation."""
    ledgers_created: int = 0
    ledgers_revived: int = 0
    """Ledgers deleted as superfluous copies and restored by a recovery add."""
