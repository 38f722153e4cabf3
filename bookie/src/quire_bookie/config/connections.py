"""Defines the limits of connections on a process's memory. BookKeeper and Pulsar have no such keys."""

from typing import ClassVar

from pydantic import Field

from quire_bookie.config.sources import ProcessConfig
from quire_bookie.settings.memory import MemorySettings


class ConnectionMemoryConfig(ProcessConfig):
    """Settings of the memory budget of a process, and of how long a peer may hold part of it without progress."""

    SETTINGS: ClassVar[tuple[type, ...]] = (MemorySettings,)

    connection_memory_mb: int = Field(
        0,
        alias="connectionMemoryMaxMb",
        ge=0,
        description="memory for incomplete requests and unsent responses of all connections, in MiB; 0: a quarter of "
        "the memory, at most 512",
    )
