"""Declares when a bookie's folders count as full."""

from quire_bookie import limits
from quire_bookie.dataclass import dataclass
from quire_bookie.errors import ConfigError
from quire_bookie.settings.declared import MILLISECONDS, setting


@dataclass(frozen=True, slots=True)
class DiskRules:
    """Shares of a disk in use, 0 to 1. A folder above `threshold` is full."""

    threshold: float = setting(
        limits.DISK_USAGE_THRESHOLD,
        "diskUsageThreshold",
        "no new entry logs are created in a folder above this share of its disk; all above: read-only "
        "(a standalone's default: 0.99)",
        short="disk_usage_threshold",
        gt=0.0,
        le=1.0,
    )
    warn_threshold: float | None = setting(
        None,
        "diskUsageWarnThreshold",
        "a folder counts as almost full above this share; default: 0.9, or diskUsageThreshold if lower",
        short="disk_usage_warn_threshold",
        gt=0.0,
        le=1.0,
    )
    low_watermark: float | None = setting(
        None,
        "diskUsageLwmThreshold",
        "a full folder is used again below this share; default: 0.9, or diskUsageThreshold if lower",
        short="disk_usage_low_watermark",
        gt=0.0,
        le=1.0,
    )
    high_priority_bytes_min: int | None = setting(
        None,
        "minUsableSizeForHighPriorityWrites",
        "free bytes in a folder with which a full bookie accepts recovery adds; default: logSizeLimit",
        short="min_usable_size_for_high_priority_writes",
        ge=0,
    )
    read_only_enabled: bool = setting(
        True,
        "readOnlyModeEnabled",
        "false: a bookie without space exits, instead of being read-only",
        short="read_only_mode_enabled",
    )
    on_any_full: bool = setting(
        False,
        "readOnlyModeOnAnyDiskFullEnabled",
        "read-only as soon as one ledger folder is full",
        short="read_only_on_any_disk_full",
    )
    interval_s: float = setting(
        limits.DISK_CHECK_INTERVAL_S,
        "diskCheckInterval",
        "pause between checks of free space, in ms",
        short="disk_check_interval_ms",
        unit=MILLISECONDS,
        ge=100,
    )

    def __post_init__(self) -> None:
        """Raise ConfigError if a watermark is above the threshold."""
        for key, value in (
            ("diskUsageLwmThreshold", self.low_watermark),
            ("diskUsageWarnThreshold", self.warn_threshold),
        ):
            if value is not None and value > self.threshold:
                raise ConfigError(
                    f"{key} {value} is above diskUsageThreshold {self.threshold}; lower the first or raise the second"
                )

    @property
    def almost_full_above(self) -> float:
        """Share above which a folder is almost full, which suspends major compaction."""
        default = min(limits.DISK_USAGE_WARN_THRESHOLD, self.threshold)
        return default if self.warn_threshold is None else self.warn_threshold

    @property
    def writable_below(self) -> float:
        """Share below which a full folder becomes writable again."""
        default = min(limits.DISK_USAGE_LOW_WATERMARK, self.threshold)
        return default if self.low_watermark is None else self.low_watermark
