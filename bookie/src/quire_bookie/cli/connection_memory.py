"""Derives the memory budget of a process's connections from the settings and the machine's memory."""

import logging

from quire_bookie.config.connections import ConnectionMemoryConfig
from quire_bookie.limits import (
    CONNECTION_MEMORY_BYTES_MAX,
    CONNECTION_MEMORY_FRAMES_MIN,
    CONNECTION_MEMORY_SHARE,
    FRAME_BYTES_MAX,
    MIB,
)
from quire_bookie.settings.memory import MemorySettings

_log = logging.getLogger("quire.config")


def memory_settings(config: ConnectionMemoryConfig, machine_bytes: int) -> MemorySettings:
    """Return the budget: as configured, or a bounded share of `machine_bytes`. Warns if it exceeds the machine."""
    share = int(machine_bytes * CONNECTION_MEMORY_SHARE)
    bytes_max = config.connection_memory_mb * MIB or min(CONNECTION_MEMORY_BYTES_MAX, share)
    if not config.connection_memory_mb:
        bytes_max = max(bytes_max, CONNECTION_MEMORY_FRAMES_MIN * FRAME_BYTES_MAX)
    elif bytes_max > machine_bytes:
        _log.warning(
            "connectionMemoryMaxMb %d is more than the memory of this machine or container, %d MiB; lower it",
            config.connection_memory_mb,
            machine_bytes // MIB,
        )
    return config.part(MemorySettings, bytes_max=bytes_max)
