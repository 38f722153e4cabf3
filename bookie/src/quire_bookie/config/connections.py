"""The settings of what connections may hold of a process's memory. BookKeeper and Pulsar have no keys for it."""

from pydantic import Field

from quire_bookie import limits
from quire_bookie.config.sources import ProcessConfig


class ConnectionMemoryConfig(ProcessConfig):
    """One budget of a process, and how long a peer may hold a part of it without progress."""

    connection_memory_mb: int = Field(
        0,
        alias="connectionMemoryMaxMb",
        ge=0,
        description="incomplete requests and unsent answers of all connections, in MiB; 0: a quarter of the memory, "
        "at most 512",
    )
    stalled_peer_s: float = Field(
        limits.STALLED_PEER_S,
        alias="stalledPeerTimeoutSeconds",
        ge=0,
        description="a peer that stops inside a request, or takes nothing of its answers, is closed, in s; 0: never",
    )
    slow_peer_s: float = Field(
        limits.SLOW_PEER_S,
        alias="slowPeerTimeoutSeconds",
        ge=0,
        description="so long one request may arrive, or what waits be taken, however steadily, in s; 0: for ever",
    )
