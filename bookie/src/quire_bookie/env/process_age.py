"""How long this process has existed, by the kernel's account. Knows nothing where there is no `/proc`."""

import os
import time

_STARTED_FIELD = 22
"""Of `/proc/<pid>/stat`: when the process started, in ticks after the boot."""


def process_age_s() -> float | None:
    """Seconds since the system started this process, to a hundredth; None where the system does not say."""
    try:
        with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
            # The second field is the name in brackets, and may hold anything.
            fields = file.read().rpartition(")")[2].split()
        ticks = int(fields[_STARTED_FIELD - 3])
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError, AttributeError):
        return None
