"""When ledgers are offloaded, where to, and how they are read. Values only; the defaults are Pulsar's."""

from dataclasses import dataclass, field
from enum import Enum

from quire_bookie.errors import ConfigError
from quire_broker.offload.segment_writer import WriteSettings
from quire_broker.offload.target import OffloadTarget
from quire_broker.offload.windows import WindowSettings

OFF = -1
"""As a threshold: it triggers no offload. As a lag: the bookies' copies stay."""


class ReadFirst(Enum):
    """The copy that is read first while there are two."""

    BUCKET = "tiered-storage-first"
    BOOKIES = "bookkeeper-first"


@dataclass(frozen=True, slots=True)
class OffloadSettings:
    """Settings of one managed ledger; a namespace's policies override them. Durations in seconds, sizes in bytes."""

    target: OffloadTarget | None = None
    """None: this broker starts no offloads. Jobs provide their own target."""
    threshold_bytes: int = OFF
    threshold_s: float = OFF
    deletion_lag_s: float = 4 * 3600.0
    read_first: ReadFirst = ReadFirst.BUCKET
    abandoned_after_s: float = 6 * 3600.0
    """After this time an unfinished attempt may be replaced, and no longer blocks its ledger."""
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

    at_once: int = 2
    read_timeout_s: float = 30.0
    """A bucket that does not answer within this time counts as failed."""
    away_s: float = 10.0
    """A copy that could not be read is not tried again for this time while there is another."""
    windows: WindowSettings = field(default_factory=WindowSettings)

    def __post_init__(self) -> None:
        """Refuse invalid values."""
        if self.at_once < 1 or self.read_timeout_s <= 0 or self.away_s < 0:
            raise ConfigError("offloads at once must be 1 or more, the read timeout above 0 s, the pause 0 s or more")
