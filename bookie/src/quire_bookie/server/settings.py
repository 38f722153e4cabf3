"""Combines the settings of a bookie's parts, and counts what it serves."""

from dataclasses import field, replace

from quire_bookie import limits
from quire_bookie.dataclass import dataclass
from quire_bookie.metrics import LatencyHistogram
from quire_bookie.model import BookieId
from quire_bookie.settings.collection import GarbageCollectionSettings
from quire_bookie.settings.compaction import CompactionSettings
from quire_bookie.settings.disks import DiskRules
from quire_bookie.settings.journal import JournalSettings
from quire_bookie.settings.metadata import MetadataSettings
from quire_bookie.settings.rack import RackSettings
from quire_bookie.settings.scrubbing import ScrubbingSettings
from quire_bookie.settings.security import SecuritySettings
from quire_bookie.settings.service import ServiceSettings
from quire_bookie.settings.storage import StorageSettings


@dataclass(frozen=True, slots=True)
class BookieSettings:
    """Holds everything that `start_bookie` needs. `advertise` is the host that clients connect to."""

    data_dir: str
    listen: str = "0.0.0.0"
    port: int = 3181
    advertise: str = "localhost"
    machine: str = ""
    """Published as the failure domain; empty: the host `advertise`."""
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
    disks: DiskRules = field(default_factory=DiskRules)
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
        """The rules by which a folder counts as full, with the default of `high_priority_bytes_min` filled in."""
        if self.disks.high_priority_bytes_min is not None:
            return self.disks
        return replace(self.disks, high_priority_bytes_min=self.storage.entry_log_bytes_max)

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
