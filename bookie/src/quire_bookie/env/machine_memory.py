"""Reads how much memory this process may use: the machine's, or less in a container. Called once, at the start."""

import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_FILES = ("memory.max", "memory/memory.limit_in_bytes")  # of cgroup versions 2 and 1


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
