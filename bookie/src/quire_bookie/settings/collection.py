"""Declares the settings of garbage collection: interval, fuse, quarantine and superfluous copies."""

from dataclasses import field

from quire_bookie import limits
from quire_bookie.dataclass import dataclass
from quire_bookie.errors import ConfigError
from quire_bookie.settings.declared import MILLISECONDS, setting


@dataclass(frozen=True, slots=True)
class FuseSettings:
    """When the fuse blows. `share`: of the stored ledgers, 0 to 1; 1 turns the fuse off.

    It never blows with fewer than `ledgers_min` missing ledgers.
    """

    share: float = setting(
        limits.GC_FUSE_SHARE,
        "gcFuseShare",
        "delete nothing if more than this share of the held ledgers is missing at once; 1 turns that off",
        short="gc_fuse_share",
        gt=0.0,
        le=1.0,
    )
    ledgers_min: int = setting(
        limits.GC_FUSE_LEDGERS_MIN,
        "gcFuseMinLedgers",
        "if fewer ledgers than this are missing at once, the metadata is always trusted",
        short="gc_fuse_ledgers_min",
        ge=1,
    )

    def __post_init__(self) -> None:
        if not 0.0 < self.share <= 1.0:
            raise ConfigError(f"gcFuseShare is {self.share}; use more than 0 and at most 1")

    def blows(self, missing: int, held: int) -> bool:
        """Whether too many of the stored ledgers are missing."""
        return missing >= self.ledgers_min and missing > self.share * held


@dataclass(frozen=True, slots=True)
class QuarantineSettings:
    """Seconds in quarantine, and the minimum on a disk that is almost full. `keep_s` 0: no quarantine."""

    keep_s: float = setting(
        limits.GC_QUARANTINE_S,
        "gcQuarantineSeconds",
        "time between the removal of a ledger from the metadata and its deletion, in s; 0: it is deleted at once "
        "(a standalone's default: 3600)",
        short="gc_quarantine_s",
        ge=0,
    )
    keep_min_s: float = setting(
        limits.GC_QUARANTINE_MIN_S,
        "gcQuarantineMinSeconds",
        "above diskUsageWarnThreshold the oldest such ledgers are deleted after this time already, in s",
        short="gc_quarantine_min_s",
        ge=0,
    )

    def __post_init__(self) -> None:
        for name, value in (("gcQuarantineSeconds", self.keep_s), ("gcQuarantineMinSeconds", self.keep_min_s)):
            if value < 0:
                raise ConfigError(f"{name} is {value}; use 0 or more")

    @property
    def keep_ms(self) -> int:
        """Milliseconds in quarantine."""
        return int(self.keep_s * 1000)

    @property
    def keep_min_ms(self) -> int:
        """Minimum milliseconds in quarantine, never more than `keep_ms`."""
        return min(int(self.keep_min_s * 1000), self.keep_ms)


@dataclass(frozen=True, slots=True)
class OverReplicatedSettings:
    """`interval_s` between two searches (0: never), and the number of ledgers checked concurrently."""

    interval_s: float = setting(
        limits.GC_OVER_REPLICATED_INTERVAL_S,
        "gcOverreplicatedLedgerWaitTime",
        "pause between searches for copies that no ensemble names, in ms; 0: never",
        short="gc_over_replicated_wait_ms",
        unit=MILLISECONDS,
        ge=0,
    )
    at_once: int = setting(
        limits.GC_OVER_REPLICATED_AT_ONCE,
        "gcOverreplicatedLedgerMaxConcurrentRequests",
        "ledgers that such a search examines at once",
        short="gc_over_replicated_at_once",
        ge=1,
    )


@dataclass(frozen=True, slots=True)
class GarbageCollectionSettings:
    """The interval of rounds in seconds, and the settings of fuse, quarantine and superfluous copies."""

    interval_s: float = setting(
        limits.GC_INTERVAL_S,
        "gcWaitTime",
        "pause between garbage collections, in ms",
        short="gc_wait_time_ms",
        unit=MILLISECONDS,
        ge=100,
    )
    fuse: FuseSettings = field(default_factory=FuseSettings)
    quarantine: QuarantineSettings = field(default_factory=QuarantineSettings)
    over_replicated: OverReplicatedSettings = field(default_factory=OverReplicatedSettings)
