"""Declares when ledgers are offloaded, where to, and how they are written and read. The defaults are Pulsar's."""

from dataclasses import field
from enum import Enum
from typing import Literal

from quire_bookie.dataclass import dataclass
from quire_bookie.errors import ConfigError
from quire_bookie.limits import KIB, MIB
from quire_bookie.settings.declared import MEBIBYTES, setting
from quire_broker.errors import OffloadError
from quire_broker.offload.format import BLOCK_BYTES_LIMIT, BLOCK_BYTES_MAX_DEFAULT, BLOCK_BYTES_MIN
from quire_broker.offload.target import OffloadTarget

OFF = -1
"""As a threshold: it triggers no offload. As a lag: the bookies' copies stay."""


class ReadFirst(Enum):
    """The copy that is read first while there are two."""

    BUCKET = "tiered-storage-first"
    BOOKIES = "bookkeeper-first"


@dataclass(frozen=True, slots=True)
class WriteSettings:
    """How a segment is written. `part_bytes` grows if an upload would have too many parts."""

    block_bytes_max: int = setting(
        BLOCK_BYTES_MAX_DEFAULT,
        "managedLedgerOffloadMaxBlockSizeInBytes",
        "largest block of a data object, in bytes; an entry is found from the start of its block",
        short="offload_block_bytes",
        ge=BLOCK_BYTES_MIN,
        le=BLOCK_BYTES_LIMIT,
    )
    part_bytes: int = setting(
        8 * MIB,
        "offloadUploadPartSizeMB",
        "size of a part of an upload, in MiB",
        short="offload_part_mb",
        unit=MEBIBYTES,
        ge=5,
        le=512,
    )
    parts_at_once: int = setting(
        4, "offloadUploadPartsAtOnce", "concurrent parts of one upload", short="offload_parts_at_once", ge=1, le=64
    )
    read_bytes: int = 4 * MIB
    """Of one read from the bookies."""

    def __post_init__(self) -> None:
        """Refuse values that no service accepts."""
        if not BLOCK_BYTES_MIN <= self.block_bytes_max <= BLOCK_BYTES_LIMIT:
            raise OffloadError(
                f"a block of at most {self.block_bytes_max} bytes: use {BLOCK_BYTES_MIN} to {BLOCK_BYTES_LIMIT}"
            )
        if self.part_bytes < BLOCK_BYTES_MIN or self.parts_at_once < 1 or self.read_bytes < 1:
            raise OffloadError(
                f"parts of {self.part_bytes} bytes, {self.parts_at_once} at once, read by {self.read_bytes}: "
                f"use parts of at least {BLOCK_BYTES_MIN} bytes, and at least 1 of the others"
            )


@dataclass(frozen=True, slots=True)
class WindowSettings:
    """Limits of the cache. `ahead`: windows fetched ahead of a sequential reader."""

    capacity_bytes: int = setting(
        64 * MIB,
        "offloadReadCacheSizeMB",
        "cached and prefetched data, all topics, in MiB",
        short="offload_read_cache_mb",
        unit=MEBIBYTES,
        ge=1,
    )
    window_bytes: int = setting(
        MIB,
        "managedLedgerOffloadReadBufferSizeInBytes",
        "bytes of one range request",
        short="offload_read_bytes",
        ge=64 * KIB,
        le=64 * MIB,
    )
    ahead: int = setting(
        4,
        "managedLedgerOffloadPrefetchRounds",
        "range requests ahead of a reader",
        short="offload_prefetch",
        ge=0,
        le=64,
    )

    def __post_init__(self) -> None:
        """Refuse values that cannot work together."""
        if self.window_bytes < 64 * KIB or self.ahead < 0:
            raise ConfigError(
                f"reads of offloaded ledgers by {self.window_bytes} bytes, {self.ahead} ahead: "
                "use 65536 bytes or more, and 0 or more"
            )
        if self.capacity_bytes < 4 * self.window_bytes:
            raise ConfigError(
                f"offloadReadCacheSizeMB {self.capacity_bytes / MIB:g} must hold 4 times "
                f"managedLedgerOffloadReadBufferSizeInBytes {self.window_bytes}"
            )


@dataclass(frozen=True, slots=True)
class OffloadSettings:
    """Settings of one managed ledger; a namespace's policies override them. Durations in seconds, sizes in bytes."""

    target: OffloadTarget | None = None
    """None: this broker starts no offloads. Jobs provide their own target."""
    threshold_bytes: int = setting(
        OFF,
        "managedLedgerOffloadAutoTriggerSizeThresholdBytes",
        "newest bytes of each topic that stay only on bookies; 0: none, -1: no offload by size",
        short="offload_threshold_bytes",
        ge=OFF,
    )
    threshold_s: float = setting(
        OFF,
        "managedLedgerOffloadThresholdInSeconds",
        "ledgers closed for this time are offloaded; -1: no offload by age",
        short="offload_threshold_s",
        kind=int,
        ge=OFF,
    )
    deletion_lag_s: float = setting(
        4 * 3600.0,
        "managedLedgerOffloadDeletionLagMs",
        "time after the offload until the bookies' copy is deleted, in ms; -1: never",
        short="offload_deletion_lag_ms",
        kind=int,
        read=lambda lag_ms: OFF if lag_ms < 0 else lag_ms / 1000,
        key_default=4 * 3600 * 1000,
        ge=OFF,
    )
    read_first: ReadFirst = setting(
        ReadFirst.BUCKET,
        "managedLedgerDataReadPriority",
        "which copy is read first",
        short="offload_read_priority",
        kind=Literal["tiered-storage-first", "bookkeeper-first"],
        read=ReadFirst,
        key_default=ReadFirst.BUCKET.value,
    )
    abandoned_after_s: float = setting(
        6 * 3600.0,
        "offloadAttemptAbandonedAfterSeconds",
        "after this time an unfinished attempt may be replaced, and no longer blocks its ledger, in s",
        short="offload_abandoned_s",
        kind=int,
        ge=60,
    )
    write: WriteSettings = field(default_factory=WriteSettings)

    def __post_init__(self) -> None:
        """Refuse invalid values."""
        if self.threshold_bytes < OFF or self.threshold_s < OFF or self.deletion_lag_s < OFF:
            raise ConfigError("offload thresholds and the deletion lag are -1 (off), 0 or positive")
        if self.abandoned_after_s < 60:
            raise ConfigError(f"attempts abandoned after {self.abandoned_after_s} s: use 60 s or more")


@dataclass(frozen=True, slots=True)
class TierSettings:
    """Settings of a broker, for all its topics."""

    at_once: int = setting(
        2, "managedLedgerOffloadMaxThreads", "concurrent offloads of this broker", short="offload_at_once", ge=1, le=64
    )
    read_timeout_s: float = setting(
        30.0,
        "offloadReadTimeoutSeconds",
        "time after which a bucket counts as failed, in s",
        short="offload_read_timeout_s",
        kind=int,
        ge=1,
    )
    away_s: float = 10.0
    """A copy that could not be read is not tried again for this time while there is another."""
    windows: WindowSettings = field(default_factory=WindowSettings)

    def __post_init__(self) -> None:
        """Refuse invalid values."""
        if self.at_once < 1 or self.read_timeout_s <= 0 or self.away_s < 0:
            raise ConfigError("offloads at once must be 1 or more, the read timeout above 0 s, the pause 0 s or more")
