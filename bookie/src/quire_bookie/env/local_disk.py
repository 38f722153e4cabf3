"""The disk port on a real file system.

Owns a small pool of threads for all blocking calls, and the choice of the journal submit. Must never return before a
name's folder is synced if the port promises durability, and never retry a sync.
"""

import asyncio
import contextlib
import errno
import fcntl
import logging
import mmap
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Literal, TypeVar

from quire_bookie.env import journal_submit_aio
from quire_bookie.env.disk import DirectoryLock, DiskFile, DiskUsage, JournalFile
from quire_bookie.env.durable import allocate, preallocate, sync_all, sync_data, sync_path, write_all, zero_pieces
from quire_bookie.env.file_modes import FILE_MODE, make_private_dirs
from quire_bookie.env.journal_submit_aio import AioContexts, AioJournalFile
from quire_bookie.env.journal_submit_thread import ThreadJournalFile
from quire_bookie.errors import DiskFullError
from quire_bookie.limits import LOCAL_DISK_THREADS
from quire_bookie.model import Buffer

log = logging.getLogger("quire.disk")

JournalSubmit = Literal["auto", "aio", "thread"]
T = TypeVar("T")
_BOOT_ID_FILE = "/proc/sys/kernel/random/boot_id"
_DIRECT_BYTES_MIN = 64 * 1024  # below it the page cache is not more expensive


@contextmanager
def _no_space_as_disk_full(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFullError(f"{path}: {error.strerror}") from error
        raise


def _read_all(fd: int, offset: int, size: int) -> bytes:
    data = os.pread(fd, size, offset)
    if len(data) == size or not data:
        return data
    parts = [data]
    have = len(data)
    while have < size and (data := os.pread(fd, size - have, offset + have)):
        parts.append(data)
        have += len(data)
    return b"".join(parts)


def _folder_bytes(path: str) -> int:
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                total += os.stat(os.path.join(folder, name)).st_blocks * 512
            except FileNotFoundError:
                continue  # removed since it was listed
    return total


def _make_dirs(path: str) -> None:
    for folder in make_private_dirs(path):
        sync_path(os.path.dirname(folder) or ".")


class _Abandoned(Exception):
    """No caller waits any more for the result of a thread."""


def _create_journal(path: str, size: int, abandoned: threading.Event, direct_writes: bool) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
    try:
        try:
            # Allocate in one piece first: fewer extents, and a full disk is detected before anything is written.
            preallocate(fd, size)
            _write_zeros(fd, size, abandoned, direct_writes)
            sync_all(fd)
        finally:
            os.close(fd)
        sync_path(os.path.dirname(path))
    except (OSError, _Abandoned):
        # An incomplete file is useless, and on a full disk it would keep the space.
        os.unlink(path)
        raise


def _write_zeros(fd: int, size: int, abandoned: threading.Event, direct_writes: bool) -> None:
    """Write zeros, large pieces directly: through the page cache the sync would write all, and delay the journal."""
    with contextlib.closing(_DirectWrites(fd)) as direct:
        for offset, zeros in zero_pieces(size):
            if abandoned.is_set():
                raise _Abandoned
            if direct_writes and direct.takes(offset, [zeros]):
                direct.write_all(offset, zeros)
            else:
                write_all(fd, offset, [zeros])


def _allocate(path: str, size: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
    try:
        try:
            allocate(fd, size)
            sync_all(fd)
        finally:
            os.close(fd)
        sync_path(os.path.dirname(path))
    except OSError:
        os.unlink(path)
        raise


def _replace_file(path: str, content: bytes) -> None:
    temporary = f"{path}.new"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
    try:
        write_all(fd, 0, [content])
        sync_all(fd)
    finally:
        os.close(fd)
    os.replace(temporary, path)
    sync_path(os.path.dirname(path))


def _read_file(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


class _Pool:
    """Runs blocking calls on threads and maps no-space errors to DiskFullError."""

    def __init__(self, threads: int) -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="disk")

    async def run(self, path: str, call: Callable[..., T], *arguments: object) -> T:
        with _no_space_as_disk_full(path):
            return await asyncio.get_running_loop().run_in_executor(self._executor, call, *arguments)

    def close(self) -> None:
        self._executor.shutdown(wait=True)


class _DirectWrites:
    """A second handle of a file for writes around the page cache: avoids a copy of the bytes, and a burst at the sync.
    Only for page-aligned memory and offsets; everything else is refused. Used on several threads at once.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._opening = threading.Lock()
        self._direct_fd: int | None = None
        self._works = hasattr(os, "O_DIRECT")

    def takes(self, offset: int, buffers: Sequence[Buffer]) -> bool:
        """Return whether these bytes are page-aligned and large enough to be worth it."""
        if not self._works or len(buffers) != 1:
            return False
        buffer = buffers[0]
        if not isinstance(buffer, memoryview) or not isinstance(buffer.obj, mmap.mmap):
            return False
        return len(buffer) >= _DIRECT_BYTES_MIN and not (len(buffer) % mmap.PAGESIZE or offset % mmap.PAGESIZE)

    def write_all(self, offset: int, buffer: memoryview) -> None:
        """Write every byte, those that the file system does not take directly through the page cache."""
        written = self._write(offset, buffer)
        if written < len(buffer):
            write_all(self._fd, offset + written, [buffer[written:]])

    def _write(self, offset: int, buffer: memoryview) -> int:
        """Return the bytes written: none if the file system refuses."""
        try:
            with self._opening:
                if self._direct_fd is None:
                    self._direct_fd = os.open(f"/proc/self/fd/{self._fd}", os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC)
            return os.pwrite(self._direct_fd, buffer, offset)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOTSUP):
                raise
            self._works = False  # not supported here, or memory that is not page-aligned
            return 0

    def close(self) -> None:
        if self._direct_fd is not None:
            os.close(self._direct_fd)
            self._direct_fd = None


class LocalFile:
    """Implements `DiskFile`. A cancelled call may still happen; wait for all calls before `close`."""

    def __init__(self, pool: _Pool, path: str, fd: int, *, direct_writes: bool = False) -> None:
        self._pool = pool
        self._path = path
        self._fd = fd
        self._direct = _DirectWrites(fd) if direct_writes else None

    @property
    def path(self) -> str:
        """The path with which it was opened."""
        return self._path

    async def size(self) -> int:
        """Return the length in bytes."""
        return (await self._pool.run(self._path, os.fstat, self._fd)).st_size

    async def read(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes at `offset`; fewer only at the end of the file."""
        return await self._pool.run(self._path, _read_all, self._fd, offset, size)

    async def write(self, offset: int, buffers: Sequence[Buffer]) -> None:
        """Write all buffers consecutively. Not durable before `sync`. Whole pages bypass the page cache."""
        if self._direct is not None and self._direct.takes(offset, buffers):
            await self._pool.run(self._path, self._direct.write_all, offset, buffers[0])
        else:
            await self._pool.run(self._path, write_all, self._fd, offset, buffers)

    async def sync(self) -> None:
        """Make all written bytes and the length durable."""
        await self._pool.run(self._path, sync_data, self._fd)

    async def truncate(self, size: int) -> None:
        """Cut or extend the file to `size` bytes."""
        await self._pool.run(self._path, os.ftruncate, self._fd, size)

    async def close(self) -> None:
        """Close the file. Does not make it durable."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            await self._pool.run(self._path, self._close, fd)

    def _close(self, fd: int) -> None:
        if self._direct is not None:
            self._direct.close()
        os.close(fd)


class LocalDirectoryLock:
    """Implements `DirectoryLock` with `flock` on the folder itself: leaves no file behind."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._fd)
            raise

    def release(self) -> None:
        """Unlock the folder; a second call does nothing."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class LocalDisk:
    """Implements `Disk`. `journal_submit` selects how groups are submitted; see docs/decisions/0002. `direct_writes`:
    whole pages of other files bypass the page cache."""

    def __init__(
        self,
        *,
        journal_submit: JournalSubmit = "auto",
        direct_writes: bool = True,
        threads: int = LOCAL_DISK_THREADS,
    ) -> None:
        self._direct_writes = direct_writes
        self._pool = _Pool(threads)
        self._journal_submit = journal_submit
        self._aio_works: dict[int, bool] = {}
        self._aio_contexts = AioContexts()

    def close(self) -> None:
        """End the threads once every call has returned."""
        self._pool.close()
        self._aio_contexts.close()

    async def folder_bytes(self, path: str) -> int:
        """Return the space used by the files below a folder. Not part of the port: for display, not for decisions."""
        return await self._pool.run(path, _folder_bytes, path)

    async def make_dirs(self, path: str) -> None:
        """Create the folder and its missing parents, durably."""
        await self._pool.run(path, _make_dirs, path)

    async def list_dir(self, path: str) -> list[str]:
        """Return the names in a folder, sorted; FileNotFoundError if it does not exist."""
        return sorted(await self._pool.run(path, os.listdir, path))

    async def exists(self, path: str) -> bool:
        """Return whether a file or folder has this path."""
        return await self._pool.run(path, os.path.exists, path)

    async def modified_ms(self, path: str) -> int | None:
        """Return the file system's time of the last write."""
        try:
            return (await self._pool.run(path, os.stat, path)).st_mtime_ns // 1_000_000
        except FileNotFoundError:
            return None

    async def open(self, path: str, *, create: bool = False) -> DiskFile:
        """Open for reading and writing. `create` creates an empty file and fails if one exists."""
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if create else 0)
        fd = await self._pool.run(path, os.open, path, flags, FILE_MODE)
        return LocalFile(self._pool, path, fd, direct_writes=self._direct_writes)

    async def open_read_only(self, path: str) -> DiskFile:
        """Open for reading."""
        return LocalFile(self._pool, path, await self._pool.run(path, os.open, path, os.O_RDONLY | os.O_CLOEXEC))

    async def create_journal(self, path: str, size: int) -> None:
        """Create a file of `size` zeros, all written; file and name are durable. After an error nothing is left.

        After a cancellation it ends soon, and the file exists completely or not at all.
        """
        abandoned = threading.Event()
        making = asyncio.ensure_future(
            self._pool.run(path, _create_journal, path, size, abandoned, self._direct_writes)
        )
        try:
            await asyncio.shield(making)
        except asyncio.CancelledError:
            # Do not spend seconds writing zeros to an unwanted file: a process that was asked to stop must not wait.
            abandoned.set()
            with contextlib.suppress(_Abandoned, OSError, DiskFullError):
                await making
            raise

    async def allocate(self, path: str, size: int) -> None:
        """Create a file that occupies `size` bytes, durably. After an error nothing is left."""
        await self._pool.run(path, _allocate, path, size)

    async def open_journal(self, path: str, *, synced: bool = True) -> JournalFile:
        """Open an existing preallocated file for durable submissions, with the selected submit."""
        if not synced:
            return ThreadJournalFile(path, synced=False)
        if self._journal_submit != "thread" and await self._aio_is_possible(os.path.dirname(path)):
            return AioJournalFile(path, self._aio_contexts)
        return ThreadJournalFile(path)

    def boot_id(self) -> str | None:
        """Return the kernel's id of this boot, or None if it has none."""
        try:
            with open(_BOOT_ID_FILE, encoding="ascii") as file:
                return file.read().strip() or None
        except OSError:
            return None

    async def _aio_is_possible(self, folder: str) -> bool:
        device = (await self._pool.run(folder, os.stat, folder)).st_dev
        known = self._aio_works.get(device)
        if known is None:
            known = True
            try:
                await self._pool.run(folder, journal_submit_aio.probe, folder, self._aio_contexts)
            except OSError as error:
                known = False
                log.warning("%s: direct asynchronous writes do not work (%s); the journal uses a thread", folder, error)
            self._aio_works[device] = known
        return known

    async def read_file(self, path: str) -> bytes:
        """Return the whole content of a small file."""
        return await self._pool.run(path, _read_file, path)

    async def replace_file(self, path: str, content: bytes) -> None:
        """Replace a small file atomically and durably: after a crash the old or the new content exists."""
        await self._pool.run(path, _replace_file, path, content)

    async def rename(self, source: str, target: str) -> None:
        """Rename, replacing the target. Durable after `sync_dir` of both folders."""
        await self._pool.run(target, os.replace, source, target)

    async def remove(self, path: str) -> None:
        """Remove a file. Durable after `sync_dir`."""
        await self._pool.run(path, os.unlink, path)

    async def sync_dir(self, path: str) -> None:
        """Make creations, renames and removals in this folder durable."""
        await self._pool.run(path, sync_path, path)

    async def usage(self, path: str) -> DiskUsage:
        """Return the space of the file system of `path`."""
        return await self._pool.run(path, _usage, path)

    def lock_dir(self, path: str) -> DirectoryLock:
        """Lock a folder; BlockingIOError if another process (or this one) has locked it."""
        return LocalDirectoryLock(path)


def _usage(path: str) -> DiskUsage:
    found = os.statvfs(path)
    usable = found.f_blocks - found.f_bfree + found.f_bavail  # blocks reserved for root do not count
    return DiskUsage(usable * found.f_frsize, found.f_bavail * found.f_frsize, os.stat(path).st_dev)
