"""Makes files durable and reserves their space, with the calls that the system has.

Linux has `fdatasync`, `posix_fallocate` and `pwritev`. On macOS `fsync` leaves the bytes in the cache of the drive, and
a power cut loses them: only `F_FULLFSYNC` writes them (man 2 fsync of macOS). All functions block and raise OSError.
"""

import errno
import fcntl
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from quire_bookie.env.page_memory import page_memory
from quire_bookie.limits import MIB
from quire_bookie.model import Buffer

BUFFERS_PER_CALL_MAX = 512
"""Below IOV_MAX everywhere."""
_ZEROS = page_memory(2 * MIB)


def sync_all(fd: int) -> None:
    """Make the written bytes and all attributes of a file durable."""
    full_sync = getattr(fcntl, "F_FULLFSYNC", None)
    if full_sync is not None:
        try:
            fcntl.fcntl(fd, full_sync)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY):
                raise  # a failed sync is never repeated
            # The file system, one on a network for example, has no such cache.
    os.fsync(fd)


def sync_data(fd: int) -> None:
    """Make the written bytes and the length of a file durable."""
    if hasattr(os, "fdatasync"):
        os.fdatasync(fd)
    else:
        sync_all(fd)


def sync_path(path: str | Path) -> None:
    """Make a file durable that another library has written, or the names in a folder."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        sync_all(fd)
    finally:
        os.close(fd)


def preallocate(fd: int, size: int) -> bool:
    """Reserve the first `size` bytes of an empty file, which then is as long. Return False if the system cannot."""
    if not hasattr(os, "posix_fallocate"):
        return False
    os.posix_fallocate(fd, 0, size)
    return True


def allocate(fd: int, size: int) -> None:
    """Reserve the first `size` bytes of an empty file, by zeros if the system cannot do without. Not durable."""
    if not preallocate(fd, size):
        for offset, zeros in zero_pieces(size):
            write_all(fd, offset, [zeros])


def zero_pieces(size: int) -> Iterator[tuple[int, memoryview]]:
    """Yield the offset and the content of the pieces of a file of zeros. Their memory can be written directly."""
    for offset in range(0, size, len(_ZEROS)):
        yield offset, memoryview(_ZEROS)[: size - offset]


def write_all(fd: int, offset: int, buffers: Sequence[Buffer], flags: int = 0) -> None:
    """Write every byte, even if the system accepts only a part per call. `flags`: of `pwritev`, where it exists."""
    for start in range(0, len(buffers), BUFFERS_PER_CALL_MAX):
        part = buffers[start : start + BUFFERS_PER_CALL_MAX]
        size = sum(map(len, part))
        written = os.pwritev(fd, part, offset, flags) if hasattr(os, "pwritev") else 0
        if written < size:
            rest = memoryview(b"".join(part))
            while written < size:
                written += _write_some(fd, rest[written:], offset + written, flags)
        offset += size


def _write_some(fd: int, buffer: memoryview, offset: int, flags: int) -> int:
    return os.pwritev(fd, [buffer], offset, flags) if flags else os.pwrite(fd, buffer, offset)
