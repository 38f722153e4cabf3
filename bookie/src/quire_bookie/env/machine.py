"""Reads from the system what this process may use and uses of memory and processor, and since when it exists."""

import os
import time
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_FILES = ("memory.max", "memory/memory.limit_in_bytes")  # of cgroup versions 2 and 1
_STARTED_FIELD = 22
"""Field of `/proc/<pid>/stat`: start of the process, in ticks after the boot."""


def machine_memory_bytes(cgroup: Path = _CGROUP) -> int:
    """Return the smaller of the machine's memory and the container's limit."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in _FILES:
        try:
            text = (cgroup / name).read_text().strip()
        except OSError:
            continue  # another version of control groups, or none
        if text.isdigit():
            return min(machine, int(text))
    return machine


def machine_cpus(cgroup: Path = _CGROUP) -> float:
    """Return the processors that this process may use: of the machine, or by the container's limit."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    machine = float(usable or 1)
    try:
        quota, _, period = (cgroup / "cpu.max").read_text().strip().partition(" ")
    except OSError:
        return machine  # version 1 of control groups, or none
    if not quota.isdigit() or not period.isdigit() or int(period) == 0:
        return machine
    return min(machine, int(quota) / int(period))


def process_memory_bytes() -> int:
    """Return the memory that this process occupies; 0 without `/proc`."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def process_age_s() -> float | None:
    """Return the seconds since the system started this process, to a hundredth; None without `/proc`."""
    try:
        with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
            # The second field is the name in brackets, and may contain any character.
            fields = file.read().rpartition(")")[2].split()
        ticks = int(fields[_STARTED_FIELD - 3])
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError, AttributeError):
        return None


def process_cpu_s() -> float:
    """Return the CPU time that this process has used, in all threads."""
    return time.process_time()
