"""The settings of a bookie, under BookKeeper's key names where it has one."""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from quire_bookie import limits
from quire_bookie.config.bookie_security import BookieSecurityConfig
from quire_bookie.config.connections import ConnectionMemoryConfig
from quire_bookie.config.http_server import HttpServerConfig
from quire_bookie.config.ledger_client import LedgerClientConfig
from quire_bookie.config.metadata_access import MetadataAccessConfig
from quire_bookie.config.recovery import AutoRecoveryConfig

MIB = limits.MIB
_BOOKIE_ID = re.compile(r"[A-Za-z0-9:._-]+")


def _split(value: Any) -> Any:
    """BookKeeper writes lists with commas; a file may also hold a real list."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


PathList = Annotated[list[str], BeforeValidator(_split)]
Port = Annotated[int, Field(ge=0, le=65535)]
Fraction = Annotated[float, Field(gt=0.0, le=1.0)]


class StorageConfig(ConnectionMemoryConfig):
    """What a bookie's journal and storage can be told; shared by `quire bookie` and `quire standalone`."""

    journal_max_size_mb: int = Field(
        limits.JOURNAL_FILE_BYTES // MIB,
        alias="journalMaxSizeMB",
        ge=32,
        description="size of a journal file in MiB; files are recycled",
    )
    journal_submit: Literal["auto", "aio", "thread"] = Field(
        "auto",
        alias="journalSubmit",
        description="how a journal group reaches the disk; auto takes what was measured best",
    )
    journal_sync_data: bool = Field(
        True,
        alias="journalSyncData",
        description="false: adds are answered once written, not once durable; needs acknowledgeDataLossRisk",
    )
    journal_write_data: bool = Field(
        True,
        alias="journalWriteData",
        description="false: adds are answered from memory, without a journal; needs acknowledgeDataLossRisk",
    )
    acknowledge_data_loss_risk: bool = Field(
        False,
        alias="acknowledgeDataLossRisk",
        description="allows journalSyncData=false and journalWriteData=false, which can lose acknowledged entries",
    )
    journal_group_wait_ms: int = Field(
        0,
        alias="journalMaxGroupWaitMSec",
        ge=0,
        description="longest wait for a journal group to fill, in ms; always kept: a group never waits to fill",
    )
    journal_group_bytes_max: int | None = Field(
        None,
        alias="journalBufferedWritesThreshold",
        ge=1,
        description="most bytes of one journal group; default: 8 MiB, and a group takes what has queued",
    )
    journal_group_entries_max: int = Field(
        0, alias="journalBufferedEntriesThreshold", ge=0, description="most entries of one journal group; 0: 32768"
    )
    accept_lost_volumes: bool = Field(
        False,
        alias="acceptLostVolumes",
        description="start in limbo with the intact data when folders of the bookie are empty or its journal is "
        "damaged; set it for one start",
    )
    write_cache_mb: int = Field(
        limits.WRITE_CACHE_BYTES // MIB,
        alias="dbStorage_writeCacheMaxSizeMb",
        ge=24,
        description="both halves of the write cache together, in MiB",
    )
    read_cache_mb: int = Field(
        limits.READ_CACHE_BYTES // MIB,
        alias="dbStorage_readAheadCacheMaxSizeMb",
        ge=1,
        description="read cache in MiB",
    )
    add_wait_ms: int = Field(
        int(limits.BACKPRESSURE_PAUSE_S * 1000),
        alias="dbStorage_maxThrottleTimeMs",
        ge=0,
        description="an add waits so long for room in a full bookie before it is refused, in ms",
    )
    index_cache_bytes: int = Field(
        limits.INDEX_CACHE_BYTES,
        alias="dbStorage_rocksDB_blockCacheSize",
        ge=MIB,
        description="memory of the index in bytes: block cache and write buffers",
    )
    scrub_interval_s: float = Field(
        limits.SCRUB_INTERVAL_S,
        alias="scrubIntervalSeconds",
        ge=0,
        description="pause between two checks of everything stored, in seconds; 0 turns them off",
    )
    scrub_bytes_per_second: int = Field(
        limits.SCRUB_BYTES_PER_SECOND,
        alias="scrubBytesPerSecond",
        ge=1024,
        description="how fast entry logs are read to check them",
    )
    rebuild_index_on_damage: bool = Field(
        False,
        alias="rebuildIndexOnDamage",
        description="a start with a damaged or missing index rebuilds it from the entry logs; false: it is refused",
    )
    entry_log_size_bytes: int = Field(
        limits.ENTRY_LOG_BYTES_MAX,
        alias="logSizeLimit",
        ge=2 * limits.FRAME_BYTES_MAX,
        le=1024 * MIB,
        description="an entry log is sealed at this size in bytes",
    )
    flush_interval_ms: int = Field(
        int(limits.FLUSH_INTERVAL_S * 1000),
        alias="flushInterval",
        ge=10,
        description="the write cache is flushed at least this often, in ms",
    )
    gc_wait_time_ms: int = Field(
        int(limits.GC_INTERVAL_S * 1000),
        alias="gcWaitTime",
        ge=100,
        description="pause between garbage collections, in ms",
    )
    gc_fuse_share: Fraction = Field(
        limits.GC_FUSE_SHARE,
        alias="gcFuseShare",
        description="more of the held ledgers than this share gone at once: nothing is deleted; 1 turns that off",
    )
    gc_fuse_ledgers_min: int = Field(
        limits.GC_FUSE_LEDGERS_MIN,
        alias="gcFuseMinLedgers",
        ge=1,
        description="fewer ledgers than this gone at once are always believed",
    )
    gc_quarantine_s: float = Field(
        limits.GC_QUARANTINE_S,
        alias="gcQuarantineSeconds",
        ge=0,
        description="a ledger that the metadata no longer names is kept for so long before it is deleted, in s; 0: "
        "it is deleted at once (a standalone's default: 3600)",
    )
    gc_quarantine_min_s: float = Field(
        limits.GC_QUARANTINE_MIN_S,
        alias="gcQuarantineMinSeconds",
        ge=0,
        description="above diskUsageWarnThreshold the oldest such ledgers go after so long already, in s",
    )
    gc_over_replicated_wait_ms: int = Field(
        int(limits.GC_OVER_REPLICATED_INTERVAL_S * 1000),
        alias="gcOverreplicatedLedgerWaitTime",
        ge=0,
        description="pause between searches for copies that no ensemble names any more, in ms; 0: never",
    )
    gc_over_replicated_at_once: int = Field(
        limits.GC_OVER_REPLICATED_AT_ONCE,
        alias="gcOverreplicatedLedgerMaxConcurrentRequests",
        ge=1,
        description="ledgers that such a search looks at together",
    )
    minor_compaction_threshold: float = Field(
        limits.MINOR_COMPACTION_THRESHOLD,
        alias="minorCompactionThreshold",
        description="a minor compaction rewrites entry logs of which less than this share lives; 0: never",
    )
    minor_compaction_interval_s: float = Field(
        limits.MINOR_COMPACTION_INTERVAL_S,
        alias="minorCompactionInterval",
        description="pause between minor compactions, in s; 0: never",
    )
    minor_compaction_time_max_ms: int = Field(
        -1,
        alias="minorCompactionMaxTimeMillis",
        description="a minor compaction ends after so long, in ms; 0 or less: no bound",
    )
    major_compaction_threshold: float = Field(
        limits.MAJOR_COMPACTION_THRESHOLD,
        alias="majorCompactionThreshold",
        description="a major compaction rewrites entry logs of which less than this share lives; 0: never",
    )
    major_compaction_interval_s: float = Field(
        limits.MAJOR_COMPACTION_INTERVAL_S,
        alias="majorCompactionInterval",
        description="pause between major compactions, in s; 0: never",
    )
    major_compaction_time_max_ms: int = Field(
        -1,
        alias="majorCompactionMaxTimeMillis",
        description="a major compaction ends after so long, in ms; 0 or less: no bound",
    )
    compaction_throttle_by_bytes: bool = Field(
        True,
        alias="isThrottleByBytes",
        description="compaction is bounded by compactionRateByBytes; false: by compactionRateByEntries",
    )
    compaction_rate_bytes: int = Field(
        limits.COMPACTION_RATE_BYTES_S,
        alias="compactionRateByBytes",
        ge=1,
        description="bytes of living entries that compaction moves in a second",
    )
    compaction_rate_entries: int = Field(
        limits.COMPACTION_RATE_ENTRIES_S,
        alias="compactionRateByEntries",
        ge=1,
        description="living entries that compaction moves in a second",
    )
    compaction_latency_max_ms: int = Field(
        int(limits.COMPACTION_LATENCY_MAX_S * 1000),
        alias="compactionLatencyMaxMillis",
        ge=0,
        description="compaction pauses while one add or read in a hundred takes longer than this, in ms; 0: never",
    )
    force_gc_when_no_space: bool = Field(
        True,
        alias="isForceGCAllowWhenNoSpace",
        description="a full disk starts a compaction, out of reserved space; false: it suspends compaction",
    )
    deleted_ledger_memory_s: float = Field(
        limits.DELETED_LEDGER_MEMORY_S,
        alias="deletedLedgerMemorySeconds",
        ge=0,
        description="a deleted ledger refuses late writers for so long, in s",
    )
    disk_usage_threshold: Fraction = Field(
        limits.DISK_USAGE_THRESHOLD,
        alias="diskUsageThreshold",
        description="a ledger folder above this share of its disk takes no new entry logs; all above: read-only "
        "(a standalone's default: 0.99)",
    )
    disk_usage_warn_threshold: Fraction | None = Field(
        None,
        alias="diskUsageWarnThreshold",
        description="almost full above this share; default: 0.9, or diskUsageThreshold where that is lower",
    )
    disk_usage_low_watermark: Fraction | None = Field(
        None,
        alias="diskUsageLwmThreshold",
        description="a full folder is taken back below this; default: 0.9, or diskUsageThreshold where that is lower",
    )
    min_usable_size_for_high_priority_writes: int | None = Field(
        None,
        alias="minUsableSizeForHighPriorityWrites",
        ge=0,
        description="a full bookie takes recovery adds while a folder has so many bytes free; default: logSizeLimit",
    )
    read_only_mode_enabled: bool = Field(
        True, alias="readOnlyModeEnabled", description="false: a bookie without space ends instead of turning read-only"
    )
    read_only_on_any_disk_full: bool = Field(
        False, alias="readOnlyModeOnAnyDiskFullEnabled", description="read-only as soon as one ledger folder is full"
    )
    disk_check_interval_ms: int = Field(
        int(limits.DISK_CHECK_INTERVAL_S * 1000),
        alias="diskCheckInterval",
        ge=100,
        description="pause between looks at free space, in ms",
    )
    max_frame_size_bytes: int = Field(
        limits.FRAME_BYTES_MAX + limits.FRAME_LENGTH_BYTES,
        alias="nettyMaxFrameSizeBytes",
        ge=128 * 1024,
        le=limits.JOURNAL_GROUP_BYTES_MAX,
        description="largest frame on a connection with its length field, in bytes",
    )
    max_batch_read_size_bytes: int = Field(
        limits.BATCH_READ_BYTES_MAX,
        alias="maxBatchReadSize",
        ge=1,
        description="largest answer to a batch read, in bytes; the largest frame bounds it too",
    )
    reads_at_once_max: int = Field(
        limits.READS_AT_ONCE_MAX,
        alias="readsAtOnceMax",
        ge=1,
        description="reads that wait for the disk at the same time; those with high priority do not count",
    )
    long_polls_max: int = Field(
        limits.LONG_POLLS_MAX,
        alias="longPollsMax",
        ge=1,
        description="reads parked until the LAC moves; more are answered ETOOMANYREQUESTS",
    )
    long_polls_per_connection_max: int = Field(
        limits.LONG_POLLS_PER_CONNECTION_MAX,
        alias="longPollsPerConnectionMax",
        ge=1,
        description="the same of one connection",
    )
    first_request_s: float = Field(
        limits.FIRST_REQUEST_S,
        alias="firstRequestTimeoutSeconds",
        ge=0,
        description="a connection that has sent no request by then is closed if more than half of those allowed are "
        "open, in s; 0: never",
    )
    metadata_session_timeout_ms: int = Field(
        int(limits.METADATA_SESSION_TIMEOUT_S * 1000),
        alias="zkTimeout",
        ge=1000,
        description="lease of the registration in the metadata store, in ms",
    )

    @model_validator(mode="after")
    def _risks_are_acknowledged(self) -> "StorageConfig":
        for key, value, risk in (
            ("journalWriteData", self.journal_write_data, "every end but a clean stop"),
            ("journalSyncData", self.journal_sync_data, "a loss of power"),
        ):
            if not value and not self.acknowledge_data_loss_risk:
                raise ValueError(
                    f"{key}=false loses acknowledged entries at {risk}; set acknowledgeDataLossRisk=true to run so, or "
                    f"{key}=true"
                )
        return self

    @model_validator(mode="after")
    def _watermarks_are_ordered(self) -> "StorageConfig":
        for key, value in (
            ("diskUsageLwmThreshold", self.disk_usage_low_watermark),
            ("diskUsageWarnThreshold", self.disk_usage_warn_threshold),
        ):
            if value is not None and value > self.disk_usage_threshold:
                raise ValueError(
                    f"{key} {value} is above diskUsageThreshold {self.disk_usage_threshold}; "
                    "lower the first or raise the second"
                )
        return self


def _bookie_id(value: str) -> str:
    """Return the id as given. ValueError: it could not be a node of the metadata, or stock clients refuse it."""
    if value and (not _BOOKIE_ID.fullmatch(value) or len(value) > limits.BOOKIE_ID_CHARACTERS_MAX):
        raise ValueError(
            f"{value!r} is not an id; use at most {limits.BOOKIE_ID_CHARACTERS_MAX} letters, digits and any of . _ : -"
        )
    if value.lower() == "readonly" or value in (".", ".."):
        raise ValueError(f"{value!r} is reserved; choose another id, e.g. bookie-1")
    return value


class BookieConfig(
    HttpServerConfig, MetadataAccessConfig, BookieSecurityConfig, LedgerClientConfig, AutoRecoveryConfig, StorageConfig
):
    """`quire bookie start`."""

    data: str = Field("./quire-data", description="folder for journal and ledgers, unless those are set apart")
    metadata: str = Field(
        "", alias="metadataServiceUri", description="etcd://host:port,host:port: where the cluster's metadata is"
    )
    port: Port = Field(3181, alias="bookiePort", description="port of the BookKeeper protocol; 0 takes a free one")
    listen: str = Field("0.0.0.0", alias="listeningAddress", description="address to listen on")
    advertise: str = Field(
        "", alias="advertisedAddress", description="host that clients connect to; default: host name"
    )
    bookie_id: Annotated[str, AfterValidator(_bookie_id)] = Field(
        "", alias="bookieId", description="id of a new bookie; empty: as bookieIdScheme says"
    )
    bookie_id_scheme: Literal["address", "storage"] = Field(
        "address",
        alias="bookieIdScheme",
        description="id of a new bookie: address is host:port, as in BookKeeper; storage is the host name and eight "
        "random hex digits, for hosts whose volumes may be replaced by empty ones",
    )
    use_host_name_as_bookie_id: bool = Field(
        True,
        alias="useHostNameAsBookieID",
        description="the host in host:port is advertisedAddress or the host name; false: the IP address of that",
    )
    journal_directories: PathList = Field(
        [],
        alias="journalDirectories",
        description="folders of the journals, which share the ledgers by id; default: <data>/journal",
    )
    ledger_directories: PathList = Field(
        [], alias="ledgerDirectories", description="folders of the entry logs; default: <data>/ledgers"
    )
    index_directories: PathList = Field(
        [], alias="indexDirectories", description="folder of the index, one; default: the first of ledgerDirectories"
    )
    allow_storage_expansion: bool = Field(
        False,
        alias="allowStorageExpansion",
        description="empty folders behind the known ones of the two lists become the bookie's",
    )
    force_read_only_bookie: bool = Field(
        False, alias="forceReadOnlyBookie", description="start read-only and stay so, whatever the disks say"
    )
    rack: str = Field(
        "", alias="bookieRack", description="where the bookie stands, /zone/rack or a rack; empty: it says nothing"
    )
    rack_annotations_file: str = Field(
        "",
        alias="bookieRackAnnotationsFile",
        description="Kubernetes: file of the pod's annotations, one of which names the rack when bookieRack is empty",
    )
    rack_annotation: str = Field(
        limits.RACK_ANNOTATION, alias="bookieRackAnnotation", description="key of that annotation"
    )
    rack_wait_s: float = Field(
        limits.RACK_WAIT_S,
        alias="bookieRackWaitSeconds",
        ge=0,
        description="so long a start waits for it, in s; then a bookie keeps the rack it had, and a new one ends",
    )
    http_port: int = Field(
        -1, alias="httpServerPort", ge=-1, le=65535, description="health and metrics over HTTP; -1 turns it off"
    )
    auto_recovery: bool = Field(
        False,
        alias="autoRecoveryDaemonEnabled",
        description="auditor and replication workers run in this process, too",
    )

    @classmethod
    def from_java_file(cls, found: dict[str, Any]) -> dict[str, Any]:
        """With `journalDirectory` (old, one folder) and `httpServerEnabled` (a switch of its own) in our keys.

        Both stand in the files that BookKeeper and Pulsar ship: passing over the first would put the journal
        elsewhere, over the second open a port that was switched off.
        """
        keys = dict(found)
        folder = keys.pop("journalDirectory", None)
        if folder is not None:
            keys.setdefault("journalDirectories", folder)
        switch = keys.pop("httpServerEnabled", None)
        if switch is not None and str(switch).lower() != "true":
            keys.pop(cls.key_of("http_port"), None)
        elif switch is not None:
            keys.setdefault(cls.key_of("http_port"), limits.JAVA_HTTP_PORT)
        return keys

    @model_validator(mode="after")
    def _folders_are_distinct(self) -> "BookieConfig":
        for key, value in (
            ("journalDirectories", self.journal_directories),
            ("ledgerDirectories", self.ledger_directories),
        ):
            twice = next((folder for folder in value if value.count(folder) > 1), None)
            if twice is not None:
                raise ValueError(f"{key} names {twice} twice")
        if len(self.index_directories) > 1:
            raise ValueError(f"indexDirectories names {len(self.index_directories)} folders; the index takes one")
        return self
