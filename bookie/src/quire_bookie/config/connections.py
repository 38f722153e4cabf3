"""Defines the limits of connections on a process's memory. BookKeeper and Pulsar have no such keys."""

from pydantic import Field

from quire_bookie import limits
from quire_bookie.config.sources import ProcessConfig


class ConnectionMemoryConfig(ProcessConfig):
    """Settings of the memory budget of a process, and of how long a peer may hold part of it without progress."""

    connection_memory_mb: int = Field(
        0,
        alias="connectionMemoryMaxMb",
        ge=0,
        description="memory for incomplete requests and unsent responses of all connections, in MiB; 0: a quarter of "
        "the memory, at most 512",
    )
    stalled_peer_s: float = Field(
        limits.STALLED_PEER_S,
        alias="stalledPeerTimeoutSeconds",
        ge=0,
        description="close a peer that stops within a request, or reads no response, after this time, in s; 0: never",
    )
    slow_peer_s: float = Field(
        limits.SLOW_PEER_S,
        alias="slowPeerTimeoutSeconds",
        ge=0,
        description="longest time to receive one request, or to send queued responses, in s; 0: no limit",
    )
