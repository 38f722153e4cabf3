"""Reads how long this process has existed according to the kernel. Needs `/proc`."""

import os
import time

_STARTED_FIELD = 22
"""Field of `/proc/<pid>/stat`: start of the process, in ticks after the boot."""


def process_age_s() -> float | None:
    """Return the seconds since the system started this process, to a hundredth; None if unknown."""
    try:
        with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
            # The second field is the name in brackets, and may contain any character.
            fields = file.read().rpartition(")")[2].split()
        ticks = int(fields[_STARTED_FIELD - 3])
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError, AttributeError):
        return None
