"""Declares the bounds of a bookie's request handling."""

from dataclasses import field

from quire_bookie import limits
from quire_bookie.dataclass import dataclass
from quire_bookie.errors import ConfigError
from quire_bookie.settings.declared import MILLISECONDS, setting
from quire_bookie.settings.memory import MemorySettings
from quire_bookie.settings.slow import SlowSettings
from quire_bookie.settings.traces import TraceSettings


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """Holds the bounds of request handling. Times in seconds."""

    frame_bytes_max: int = setting(
        limits.FRAME_BYTES_MAX,
        "nettyMaxFrameSizeBytes",
        "largest frame on a connection with its length field, in bytes",
        short="max_frame_size_bytes",
        # An entry that fits only without the length field could not be read back by a BookKeeper client.
        key_default=limits.FRAME_BYTES_MAX + limits.FRAME_LENGTH_BYTES,
        read=lambda value: value - limits.FRAME_LENGTH_BYTES,
        ge=128 * limits.KIB,
        le=limits.JOURNAL_GROUP_BYTES_MAX,
    )
    """Without the length field."""
    batch_read_bytes_max: int = setting(
        limits.BATCH_READ_BYTES_MAX,
        "maxBatchReadSize",
        "largest response to a batch read, in bytes; also limited by the largest frame",
        short="max_batch_read_size_bytes",
        ge=1,
    )
    adds_in_flight_bytes_max: int = limits.ADDS_IN_FLIGHT_BYTES_MAX
    """Budget of normal adds that are not answered yet."""
    priority_adds_in_flight_bytes_max: int = limits.ADDS_IN_FLIGHT_BYTES_MAX // 4
    """Budget of recovery and high-priority adds: separate, so that ledgers can be recovered on a full bookie."""
    backpressure_pause_s: float = setting(
        limits.BACKPRESSURE_PAUSE_S,
        "dbStorage_maxThrottleTimeMs",
        "longest time that an add waits for space in a full write cache before it is refused, in ms",
        short="add_wait_ms",
        unit=MILLISECONDS,
        ge=0,
    )
    socket_write_high_bytes: int = limits.SOCKET_WRITE_HIGH_BYTES
    reads_at_once_max: int = setting(
        limits.READS_AT_ONCE_MAX,
        "readsAtOnceMax",
        "reads that wait for the disk at once; those with high priority do not count",
        ge=1,
    )
    priority_reads_at_once_max: int = limits.PRIORITY_READS_AT_ONCE_MAX
    """The same for reads with high priority, which never wait for normal ones."""
    reads_at_once_per_connection: int = limits.READS_AT_ONCE_PER_CONNECTION
    reads_queued_per_connection: int = limits.READS_QUEUED_PER_CONNECTION
    long_polls_max: int = setting(
        limits.LONG_POLLS_MAX,
        "longPollsMax",
        "reads that wait for the LAC to advance; further ones receive ETOOMANYREQUESTS",
        ge=1,
    )
    long_polls_per_connection_max: int = setting(
        limits.LONG_POLLS_PER_CONNECTION_MAX, "longPollsPerConnectionMax", "the same for one connection", ge=1
    )
    first_request_s: float = setting(
        limits.FIRST_REQUEST_S,
        "firstRequestTimeoutSeconds",
        "time after which a connection without a request is closed if more than half of the allowed connections are "
        "open, in s; 0: never",
        ge=0,
    )
    memory: MemorySettings = field(default_factory=MemorySettings)
    """Budget of all connections together; a process with a broker or several bookies shares one."""
    slow: SlowSettings = field(default_factory=SlowSettings)
    traces: TraceSettings = field(default_factory=TraceSettings)

    def check(self) -> None:
        """Raise ConfigError for values that cannot work."""
        for name in self.__slots__:
            if (
                name not in ("backpressure_pause_s", "first_request_s", "memory", "slow", "traces")
                and getattr(self, name) <= 0
            ):
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be positive")
        self.memory.check(self.frame_bytes_max)
        if self.backpressure_pause_s < 0:
            raise ConfigError(f"backpressure_pause_s is {self.backpressure_pause_s}; it must not be negative")
