"""Declares the settings of compaction."""

from enum import Enum

from quire_bookie import limits
from quire_bookie.dataclass import dataclass
from quire_bookie.errors import ConfigError
from quire_bookie.settings.declared import MILLISECONDS, setting


class Kind(Enum):
    """The kind of a run: see `server.upkeep.compaction_schedule`."""

    MINOR = "minor"
    MAJOR = "major"


def _off_below_zero(value: float) -> float:
    """Return 0, which means *off*, for values below it, as in BookKeeper."""
    return max(0.0, value)


@dataclass(frozen=True, slots=True)
class CompactionSettings:
    """Settings of both kinds. A log is selected if its live share is below the threshold.

    A threshold or an interval of 0 turns a kind off.
    """

    minor_threshold: float = setting(
        limits.MINOR_COMPACTION_THRESHOLD,
        "minorCompactionThreshold",
        "a minor compaction rewrites entry logs with less than this share of live data; 0: never",
        short="minor_compaction_threshold",
        key_default=limits.MINOR_COMPACTION_THRESHOLD,
        read=_off_below_zero,
    )
    minor_interval_s: float = setting(
        limits.MINOR_COMPACTION_INTERVAL_S,
        "minorCompactionInterval",
        "pause between minor compactions, in s; 0: never",
        short="minor_compaction_interval_s",
        key_default=limits.MINOR_COMPACTION_INTERVAL_S,
        read=_off_below_zero,
    )
    minor_time_max_s: float = setting(
        0.0,
        "minorCompactionMaxTimeMillis",
        "longest duration of a minor compaction, in ms; 0 or less: no limit",
        short="minor_compaction_time_max_ms",
        kind=int,
        key_default=-1,
        read=lambda value: _off_below_zero(value / 1000),
    )
    """0: no limit."""
    major_threshold: float = setting(
        limits.MAJOR_COMPACTION_THRESHOLD,
        "majorCompactionThreshold",
        "a major compaction rewrites entry logs with less than this share of live data; 0: never",
        short="major_compaction_threshold",
        key_default=limits.MAJOR_COMPACTION_THRESHOLD,
        read=_off_below_zero,
    )
    major_interval_s: float = setting(
        limits.MAJOR_COMPACTION_INTERVAL_S,
        "majorCompactionInterval",
        "pause between major compactions, in s; 0: never",
        short="major_compaction_interval_s",
        key_default=limits.MAJOR_COMPACTION_INTERVAL_S,
        read=_off_below_zero,
    )
    major_time_max_s: float = setting(
        0.0,
        "majorCompactionMaxTimeMillis",
        "longest duration of a major compaction, in ms; 0 or less: no limit",
        short="major_compaction_time_max_ms",
        kind=int,
        key_default=-1,
        read=lambda value: _off_below_zero(value / 1000),
    )
    throttle_by_bytes: bool = setting(
        True,
        "isThrottleByBytes",
        "limit compaction by compactionRateByBytes; false: by compactionRateByEntries",
        short="compaction_throttle_by_bytes",
    )
    rate_bytes_s: int = setting(
        limits.COMPACTION_RATE_BYTES_S,
        "compactionRateByBytes",
        "bytes of live entries that compaction moves per second",
        short="compaction_rate_bytes",
        ge=1,
    )
    rate_entries_s: int = setting(
        limits.COMPACTION_RATE_ENTRIES_S,
        "compactionRateByEntries",
        "live entries that compaction moves per second",
        short="compaction_rate_entries",
        ge=1,
    )
    latency_max_s: float = setting(
        limits.COMPACTION_LATENCY_MAX_S,
        "compactionLatencyMaxMillis",
        "compaction pauses while the 99th percentile of adds or reads exceeds this, in ms; 0: never",
        short="compaction_latency_max_ms",
        unit=MILLISECONDS,
        ge=0,
    )
    force_when_no_space: bool = setting(
        True,
        "isForceGCAllowWhenNoSpace",
        "a full disk starts a compaction, using reserved space; false: it suspends compaction",
        short="force_gc_when_no_space",
    )

    def __post_init__(self) -> None:
        for name in ("minor", "major"):
            if not 0.0 <= self.threshold(Kind(name)) < 1.0:
                raise ConfigError(f"{name}CompactionThreshold is {self.threshold(Kind(name))}; use 0 to below 1")
        if self.enabled(Kind.MINOR) and self.enabled(Kind.MAJOR):
            if self.minor_threshold >= self.major_threshold:
                raise ConfigError(
                    f"minorCompactionThreshold {self.minor_threshold} is not below majorCompactionThreshold "
                    f"{self.major_threshold}; lower it, as a major compaction must select more logs than a minor one"
                )
            if self.minor_interval_s >= self.major_interval_s:
                raise ConfigError(
                    f"minorCompactionInterval {self.minor_interval_s:g} is not below majorCompactionInterval "
                    f"{self.major_interval_s:g}; lower it, as a major compaction must run less often"
                )

    def threshold(self, kind: Kind) -> float:
        """Return the live share below which a log is selected."""
        return self.minor_threshold if kind is Kind.MINOR else self.major_threshold

    def interval_s(self, kind: Kind) -> float:
        """Return the time between two runs."""
        return self.minor_interval_s if kind is Kind.MINOR else self.major_interval_s

    def time_max_s(self, kind: Kind) -> float:
        """Return the time budget of a run; 0: unlimited."""
        return self.minor_time_max_s if kind is Kind.MINOR else self.major_time_max_s

    def enabled(self, kind: Kind) -> bool:
        """Whether this kind runs at intervals."""
        return self.threshold(kind) > 0 and self.interval_s(kind) > 0
