"""Declares the memory budget of all connections of a process."""

from quire_bookie import limits
from quire_bookie.dataclass import dataclass
from quire_bookie.errors import ConfigError
from quire_bookie.settings.declared import setting


@dataclass(frozen=True, slots=True)
class MemorySettings:
    """The budget, in bytes, and how long peers may hold parts of it, in seconds. 0: no time limit."""

    bytes_max: int = limits.CONNECTION_MEMORY_BYTES_MAX
    stalled_s: float = setting(
        limits.STALLED_PEER_S,
        "stalledPeerTimeoutSeconds",
        "close a peer that stops within a request, or reads no response, after this time, in s; 0: never",
        short="stalled_peer_s",
        ge=0,
    )
    slow_s: float = setting(
        limits.SLOW_PEER_S,
        "slowPeerTimeoutSeconds",
        "longest time to receive one request, or to send queued responses, in s; 0: no limit",
        short="slow_peer_s",
        ge=0,
    )
    pressure_s: float = limits.PRESSURE_STALLED_S

    def check(self, frame_bytes_max: int) -> None:
        """Raise ConfigError for a budget that a few frames fill."""
        needed = limits.CONNECTION_MEMORY_FRAMES_MIN * frame_bytes_max
        if self.bytes_max < needed:
            raise ConfigError(
                f"the memory of connections is {self.bytes_max} bytes; with frames of {frame_bytes_max} it must be "
                f"at least {needed}: raise connectionMemoryMaxMb or lower the frame size"
            )
