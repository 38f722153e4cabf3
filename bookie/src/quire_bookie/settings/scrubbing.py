"""Declares the settings of the scrub."""

from quire_bookie import limits
from quire_bookie.dataclass import dataclass
from quire_bookie.errors import ConfigError
from quire_bookie.settings.declared import setting


@dataclass(frozen=True, slots=True)
class ScrubbingSettings:
    """Interval and rate of the scrub. ConfigError for impossible values."""

    interval_s: float = setting(
        limits.SCRUB_INTERVAL_S,
        "scrubIntervalSeconds",
        "pause between two checks of all stored entries, in seconds; 0 turns them off",
        short="scrub_interval_s",
        ge=0,
    )
    """From the end of one round to the start of the next."""
    bytes_per_second: int = setting(
        limits.SCRUB_BYTES_PER_SECOND,
        "scrubBytesPerSecond",
        "rate at which entry logs are read for these checks",
        short="scrub_bytes_per_second",
        ge=1024,
    )

    def __post_init__(self) -> None:
        if self.interval_s < 0:
            raise ConfigError(f"scrubIntervalSeconds is {self.interval_s}; it must not be negative")
        if self.bytes_per_second <= 0:
            raise ConfigError(f"scrubBytesPerSecond is {self.bytes_per_second}; it must be positive")
