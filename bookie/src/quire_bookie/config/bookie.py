"""The settings of a bookie, under BookKeeper's key names where it has one."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from quire_bookie import limits
from quire_bookie.config.bookie_security import BookieSecurityConfig
from quire_bookie.config.sources import ProcessConfig

MIB = limits.MIB


def _split(value: Any) -> Any:
    """BookKeeper writes lists with commas; a file may also hold a real list."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


PathList = Annotated[list[str], BeforeValidator(_split)]
Port = Annotated[int, Field(ge=0, le=65535)]
Fraction = Annotated[float, Field(gt=0.0, le=1.0)]


class StorageConfig(ProcessConfig):
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
    index_cache_bytes: int = Field(
        limits.INDEX_CACHE_BYTES,
        alias="dbStorage_rocksDB_blockCacheSize",
        ge=MIB,
        description="memory of the index in bytes: block cache and write buffers",
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
    disk_usage_threshold: Fraction = Field(
        limits.DISK_USAGE_THRESHOLD, alias="diskUsageThreshold", description="read-only above this share of the disk"
    )
    disk_usage_low_watermark: Fraction = Field(
        limits.DISK_USAGE_LOW_WATERMARK,
        alias="diskUsageLwmThreshold",
        description="writable again below this share of the disk",
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
    metadata_session_timeout_ms: int = Field(
        int(limits.METADATA_SESSION_TIMEOUT_S * 1000),
        alias="zkTimeout",
        ge=1000,
        description="lease of the registration in the metadata store, in ms",
    )

    @model_validator(mode="after")
    def _watermarks_are_ordered(self) -> "StorageConfig":
        if self.disk_usage_low_watermark > self.disk_usage_threshold:
            raise ValueError(
                f"diskUsageLwmThreshold {self.disk_usage_low_watermark} is above diskUsageThreshold "
                f"{self.disk_usage_threshold}; lower the first or raise the second"
            )
        return self


class BookieConfig(BookieSecurityConfig, StorageConfig):
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
    journal_directories: PathList = Field(
        [],
        alias="journalDirectories",
        description="folders of the journals, which share the ledgers by id; default: <data>/journal",
    )
    ledger_directories: PathList = Field([], alias="ledgerDirectories", description="default: <data>/ledgers")
    http_port: int = Field(
        -1, alias="httpServerPort", ge=-1, le=65535, description="health and metrics over HTTP; -1 turns it off"
    )

    @model_validator(mode="after")
    def _folders_are_distinct(self) -> "BookieConfig":
        for key, value in (
            ("journalDirectories", self.journal_directories),
            ("ledgerDirectories", self.ledger_directories),
        ):
            twice = next((folder for folder in value if value.count(folder) > 1), None)
            if twice is not None:
                raise ValueError(f"{key} names {twice} twice")
        if len(self.ledger_directories) > 1:
            raise ValueError(f"ledgerDirectories names {len(self.ledger_directories)} folders; this version takes one")
        return self
