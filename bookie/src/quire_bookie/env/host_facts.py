"""Measures what decides how well a bookie or etcd runs on this host: disk, kernel, limits, clock. Changes nothing.

A value that this system does not tell is None: containers hide some, and other systems than Linux have other files.
"""

import ctypes
import os
import platform
import resource
import tempfile
import time
from pathlib import Path

from quire_bookie.dataclass import dataclass
from quire_bookie.env.durable import sync_data

SYNCS = 20
_SYNC_BYTES = 4096
_STA_UNSYNC = 0x40
_TIMEX_BYTES = 208
_TIMEX_STATUS_AT = 40
"""Size, and offset of `status`, of `struct timex` on 64-bit Linux; see adjtimex(2)."""


@dataclass(frozen=True, slots=True)
class DiskFacts:
    """A folder's file system. `sync_ms`: durations of writing and syncing 4 KiB, sorted."""

    folder: str
    kind: str | None
    free_bytes: int
    total_bytes: int
    sync_ms: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class HostFacts:
    """Kernel, limits and clock."""

    kernel: str
    swappiness: int | None
    huge_pages: str | None
    open_files: int | None
    """The hard limit, up to which a process raises its own; None: unlimited."""
    clock_is_synchronised: bool | None


def host_facts(proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> HostFacts:
    """Return the facts of this host."""
    swappiness = _text(proc / "sys/vm/swappiness")
    pages = _text(sys / "kernel/mm/transparent_hugepage/enabled")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return HostFacts(
        kernel=f"{platform.system()} {platform.release()} {platform.machine()}",
        swappiness=int(swappiness) if swappiness is not None and swappiness.isdigit() else None,
        huge_pages=pages.partition("[")[2].partition("]")[0] if pages is not None and "[" in pages else None,
        open_files=None if hard == resource.RLIM_INFINITY else hard,
        clock_is_synchronised=_clock_is_synchronised(),
    )


def disk_facts(folder: str, mounts: Path = Path("/proc/self/mounts")) -> DiskFacts:
    """Measure the file system of a folder that exists and may be written. Raises OSError."""
    space = os.statvfs(folder)
    return DiskFacts(
        folder=folder,
        kind=_kind_of(os.path.realpath(folder), mounts),
        free_bytes=space.f_bavail * space.f_frsize,
        total_bytes=space.f_blocks * space.f_frsize,
        sync_ms=_sync_ms(folder),
    )


def _sync_ms(folder: str) -> tuple[float, ...]:
    found = []
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(SYNCS):
            began = time.perf_counter()
            file.write(bytes(_SYNC_BYTES))
            file.flush()
            sync_data(file.fileno())
            found.append((time.perf_counter() - began) * 1000)
    return tuple(sorted(found))


def _kind_of(path: str, mounts: Path) -> str | None:
    """Return the kind of the file system whose mount point is the longest that contains the path."""
    best, kind = "", None
    for line in (_text(mounts) or "").splitlines():
        point, name = line.split(" ")[1:3]
        if (path == point or path.startswith(point.rstrip("/") + "/")) and len(point) >= len(best):
            best, kind = point, name
    return kind


def _clock_is_synchronised() -> bool | None:
    """Return whether the kernel's clock follows a time server; None if the kernel does not tell."""
    if platform.system() != "Linux" or ctypes.sizeof(ctypes.c_long) != 8:
        return None
    buffer = ctypes.create_string_buffer(_TIMEX_BYTES)  # no mode is set: it only reads
    if ctypes.CDLL(None).adjtimex(buffer) < 0:
        return None
    status = int.from_bytes(buffer.raw[_TIMEX_STATUS_AT : _TIMEX_STATUS_AT + 4], "little")
    return not status & _STA_UNSYNC


def _text(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None
