"""Defines the settings of a bookie, under BookKeeper's key names if it has one."""

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
    """Split a list written with commas, as in BookKeeper; a file may also contain a real list."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


PathList = Annotated[list[str], BeforeValidator(_split)]
Port = Annotated[int, Field(ge=0, le=65535)]
Fraction = Annotated[float, Field(gt=0.0, le=1.0)]


class StorageConfig(ConnectionMemoryConfig):
    """Settings of a bookie's journal and storage; shared by `quire bookie` and `quire standalone`."""

    journal_max_size_mb: int = Field(
        limits.JOURNAL_FILE_BYTES // MIB,
        alias="journalMaxSizeMB",
        ge=32,
        description="size of a journal file in MiB; files are recycled",
    )
    journal_submit: Literal["auto", "aio", "thread"] = Field(
        "auto",
        alias="journalSubmit",
        description="how a journal group is written to disk; auto uses the method that measured best",
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
        description="longest wait for a journal group to fill, in ms; always satisfied: a group never waits to fill",
    )
    journal_group_bytes_max: int | None = Field(
        None,
        alias="journalBufferedWritesThreshold",
        ge=1,
        description="most bytes of one journal group; default: 8 MiB, and a group contains all queued entries",
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
        description="longest time that an add waits for space in a full write cache before it is refused, in ms",
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
        description="pause between two checks of all stored entries, in seconds; 0 turns them off",
    )
    scrub_bytes_per_second: int = Field(
        limits.SCRUB_BYTES_PER_SECOND,
        alias="scrubBytesPerSecond",
        ge=1024,
        description="rate at which entry logs are read for these checks",
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
        description="delete nothing if more than this share of the held ledgers is missing at once; 1 turns that off",
    )
    gc_fuse_ledgers_min: int = Field(
        limits.GC_FUSE_LEDGERS_MIN,
        alias="gcFuseMinLedgers",
        ge=1,
        description="if fewer ledgers than this are missing at once, the metadata is always trusted",
    )
    gc_quarantine_s: float = Field(
        limits.GC_QUARANTINE_S,
        alias="gcQuarantineSeconds",
        ge=0,
        description="time between the removal of a ledger from the metadata and its deletion, in s; 0: it is "
        "deleted at once (a standalone's default: 3600)",
    )
    gc_quarantine_min_s: float = Field(
        limits.GC_QUARANTINE_MIN_S,
        alias="gcQuarantineMinSeconds",
        ge=0,
        description="above diskUsageWarnThreshold the oldest such ledgers are deleted after this time already, in s",
    )
    gc_over_replicated_wait_ms: int = Field(
        int(limits.GC_OVER_REPLICATED_INTERVAL_S * 1000),
        alias="gcOverreplicatedLedgerWaitTime",
        ge=0,
        description="pause between searches for copies that no ensemble names, in ms; 0: never",
    )
    gc_over_replicated_at_once: int = Field(
        limits.GC_OVER_REPLICATED_AT_ONCE,
        alias="gcOverreplicatedLedgerMaxConcurrentRequests",
        ge=1,
        description="ledgers that such a search examines at once",
    )
    minor_compaction_threshold: float = Field(
        limits.MINOR_COMPACTION_THRESHOLD,
        alias="minorCompactionThreshold",
        description="a minor compaction rewrites entry logs with less than this share of live data; 0: never",
    )
    minor_compaction_interval_s: float = Field(
        limits.MINOR_COMPACTION_INTERVAL_S,
        alias="minorCompactionInterval",
        description="pause between minor compactions, in s; 0: never",
    )
    minor_compaction_time_max_ms: int = Field(
        -1,
        alias="minorCompactionMaxTimeMillis",
        description="longest duration of a minor compaction, in ms; 0 or less: no limit",
    )
    major_compaction_threshold: float = Field(
        limits.MAJOR_COMPACTION_THRESHOLD,
        alias="majorCompactionThreshold",
        description="a major compaction rewrites entry logs with less than this share of live data; 0: never",
    )
    major_compaction_interval_s: float = Field(
        limits.MAJOR_COMPACTION_INTERVAL_S,
        alias="majorCompactionInterval",
        description="pause between major compactions, in s; 0: never",
    )
    major_compaction_time_max_ms: int = Field(
        -1,
        alias="majorCompactionMaxTimeMillis",
        description="longest duration of a major compaction, in ms; 0 or less: no limit",
    )
    compaction_throttle_by_bytes: bool = Field(
        True,
        alias="isThrottleByBytes",
        description="limit compaction by compactionRateByBytes; false: by compactionRateByEntries",
    )
    compaction_rate_bytes: int = Field(
        limits.COMPACTION_RATE_BYTES_S,
        alias="compactionRateByBytes",
        ge=1,
        description="bytes of live entries that compaction moves per second",
    )
    compaction_rate_entries: int = Field(
        limits.COMPACTION_RATE_ENTRIES_S,
        alias="compactionRateByEntries",
        ge=1,
        description="live entries that compaction moves per second",
    )
    compaction_latency_max_ms: int = Field(
        int(limits.COMPACTION_LATENCY_MAX_S * 1000),
        alias="compactionLatencyMaxMillis",
        ge=0,
        description="compaction pauses while the 99th percentile of adds or reads exceeds this, in ms; 0: never",
    )
    force_gc_when_no_space: bool = Field(
        True,
        alias="isForceGCAllowWhenNoSpace",
        description="a full disk starts a compaction, using reserved space; false: it suspends compaction",
    )
    deleted_ledger_memory_s: float = Field(
        limits.DELETED_LEDGER_MEMORY_S,
        alias="deletedLedgerMemorySeconds",
        ge=0,
        description="time for which a deleted ledger refuses late writers, in s",
    )
    disk_usage_threshold: Fraction = Field(
        limits.DISK_USAGE_THRESHOLD,
        alias="diskUsageThreshold",
        description="no new entry logs are created in a folder above this share of its disk; all above: read-only "
        "(a standalone's default: 0.99)",
    )
    disk_usage_warn_threshold: Fraction | None = Field(
        None,
        alias="diskUsageWarnThreshold",
        description="a folder counts as almost full above this share; default: 0.9, or diskUsageThreshold if lower",
    )
    disk_usage_low_watermark: Fraction | None = Field(
        None,
        alias="diskUsageLwmThreshold",
        description="a full folder is used again below this share; default: 0.9, or diskUsageThreshold if lower",
    )
    min_usable_size_for_high_priority_writes: int | None = Field(
        None,
        alias="minUsableSizeForHighPriorityWrites",
        ge=0,
        description="free bytes in a folder with which a full bookie accepts recovery adds; default: logSizeLimit",
    )
    read_only_mode_enabled: bool = Field(
        True, alias="readOnlyModeEnabled", description="false: a bookie without space exits, instead of being read-only"
    )
    read_only_on_any_disk_full: bool = Field(
        False, alias="readOnlyModeOnAnyDiskFullEnabled", description="read-only as soon as one ledger folder is full"
    )
    disk_check_interval_ms: int = Field(
        int(limits.DISK_CHECK_INTERVAL_S * 1000),
        alias="diskCheckInterval",
        ge=100,
        description="pause between checks of free space, in ms",
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
        description="largest response to a batch read, in bytes; also limited by the largest frame",
    )
    reads_at_once_max: int = Field(
        limits.READS_AT_ONCE_MAX,
        alias="readsAtOnceMax",
        ge=1,
        description="reads that wait for the disk at once; those with high priority do not count",
    )
    long_polls_max: int = Field(
        limits.LONG_POLLS_MAX,
        alias="longPollsMax",
        ge=1,
        description="reads that wait for the LAC to advance; further ones receive ETOOMANYREQUESTS",
    )
    long_polls_per_connection_max: int = Field(
        limits.LONG_POLLS_PER_CONNECTION_MAX,
        alias="longPollsPerConnectionMax",
        ge=1,
        description="the same for one connection",
    )
    first_request_s: float = Field(
        limits.FIRST_REQUEST_S,
        alias="firstRequestTimeoutSeconds",
        ge=0,
        description="time after which a connection without a request is closed if more than half of the allowed "
        "connections are open, in s; 0: never",
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
            ("journalWriteData", self.journal_write_data, "any end but a clean stop"),
            ("journalSyncData", self.journal_sync_data, "a loss of power"),
        ):
            if not value and not self.acknowledge_data_loss_risk:
                raise ValueError(
                    f"{key}=false loses acknowledged entries at {risk}; set acknowledgeDataLossRisk=true to accept it, "
                    f"or {key}=true"
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
    """Return the id. ValueError if it is not a valid node name of the metadata, or stock clients refuse it."""
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
    """Settings of `quire bookie start`."""

    data: str = Field("./quire-data", description="folder for journal and ledgers, unless they have separate settings")
    metadata: str = Field(
        "", alias="metadataServiceUri", description="etcd://host:port,host:port: the cluster's metadata store"
    )
    port: Port = Field(3181, alias="bookiePort", description="port of the BookKeeper protocol; 0: a free one")
    listen: str = Field("0.0.0.0", alias="listeningAddress", description="address to listen on")
    advertise: str = Field(
        "", alias="advertisedAddress", description="host that clients connect to; default: host name"
    )
    bookie_id: Annotated[str, AfterValidator(_bookie_id)] = Field(
        "", alias="bookieId", description="id of a new bookie; empty: according to bookieIdScheme"
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
        description="the host in host:port is advertisedAddress or the host name; false: its IP address",
    )
    journal_directories: PathList = Field(
        [],
        alias="journalDirectories",
        description="folders of the journals; ledgers are distributed over them by id; default: <data>/journal",
    )
    ledger_directories: PathList = Field(
        [], alias="ledgerDirectories", description="folders of the entry logs; default: <data>/ledgers"
    )
    index_directories: PathList = Field(
        [], alias="indexDirectories", description="the one folder of the index; default: the first of ledgerDirectories"
    )
    allow_storage_expansion: bool = Field(
        False,
        alias="allowStorageExpansion",
        description="add empty folders that follow the known ones in the two lists to the bookie",
    )
    force_read_only_bookie: bool = Field(
        False, alias="forceReadOnlyBookie", description="start read-only and stay read-only, regardless of the disks"
    )
    rack: str = Field(
        "", alias="bookieRack", description="rack of the bookie, /zone/rack or only a rack; empty: not published"
    )
    rack_annotations_file: str = Field(
        "",
        alias="bookieRackAnnotationsFile",
        description="Kubernetes: file with the pod's annotations, one of which is the rack if bookieRack is empty",
    )
    rack_annotation: str = Field(
        limits.RACK_ANNOTATION, alias="bookieRackAnnotation", description="key of that annotation"
    )
    rack_wait_s: float = Field(
        limits.RACK_WAIT_S,
        alias="bookieRackWaitSeconds",
        ge=0,
        description="time that a start waits for it, in s; then a bookie keeps its previous rack, and a new one exits",
    )
    http_port: int = Field(
        -1, alias="httpServerPort", ge=-1, le=65535, description="health and metrics over HTTP; -1 turns it off"
    )
    auto_recovery: bool = Field(
        False,
        alias="autoRecoveryDaemonEnabled",
        description="also run the auditor and replication workers in this process",
    )

    @classmethod
    def from_java_file(cls, found: dict[str, Any]) -> dict[str, Any]:
        """Map `journalDirectory` (old, one folder) and `httpServerEnabled` (a separate switch) to our keys.

        The files that BookKeeper and Pulsar ship contain both: ignoring the first would move the journal elsewhere,
        ignoring the second would open a port that was switched off.
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
                raise ValueError(f"{key} contains {twice} twice; remove one of them")
        if len(self.index_directories) > 1:
            raise ValueError(f"indexDirectories contains {len(self.index_directories)} folders; give one")
        return self
