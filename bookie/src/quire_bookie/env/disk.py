"""The disk port: operations of a bookie on a file system, and their guarantees after a crash.

Contract, which the simulated disk enforces: bytes written are durable only after `sync` of that file (or a
durable write of a `JournalFile`) has returned; a created, renamed or removed name is durable only after
`sync_dir` of its directory. A failed sync leaves the state unknown: never retry it (the page cache may have
dropped the bytes). All methods raise `DiskFullError` if there is no space and `OSError` for other errors.
Nothing here blocks the event loop.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from quire_bookie.dataclass import dataclass
from quire_bookie.model import Buffer


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """Bytes of a directory's file system, without those reserved for root, as in `df`."""

    total_bytes: int
    free_bytes: int
    file_system: int = 0
    """Id of the file system: folders with the same id share their space. 0: unknown."""


class DiskFile(Protocol):
    """An open file. Reads and writes are positioned; several may run at once."""

    @property
    def path(self) -> str:
        """The path with which it was opened."""
        ...

    async def size(self) -> int:
        """Return the length in bytes."""
        ...

    async def read(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes at `offset`; fewer only at the end of the file."""
        ...

    async def write(self, offset: int, buffers: Sequence[Buffer]) -> None:
        """Write all buffers consecutively from `offset` on. Not durable before `sync`."""
        ...

    async def sync(self) -> None:
        """Make all written bytes and the length durable."""
        ...

    async def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes."""
        ...

    async def close(self) -> None:
        """Close the file. Does not make it durable."""
        ...


class JournalFile(Protocol):
    """A preallocated file to which durable groups are submitted: the *journal submit* port.

    One submission is in flight at a time. `done` is called on the event loop with None once the bytes are
    durable, or with the error; it is never called inside `submit`.
    """

    @property
    def path(self) -> str:
        """The path with which it was opened."""
        ...

    @property
    def alignment_bytes(self) -> int:
        """Offsets and lengths of submissions are multiples of this."""
        ...

    def submit(self, offset: int, buffers: Sequence[Buffer], done: Callable[[BaseException | None], None]) -> None:
        """Write `buffers` at `offset`, durable when `done(None)` runs. Total length is aligned by the caller."""
        ...

    async def close(self) -> None:
        """Wait for the submission in flight, then close the file."""
        ...


class DirectoryLock(Protocol):
    """An exclusive lock of a folder against other processes."""

    def release(self) -> None:
        """Unlock the folder. The lock also ends with the process."""
        ...


class Disk(Protocol):
    """The file system. Paths are absolute strings with `/`."""

    async def make_dirs(self, path: str) -> None:
        """Create the folder and its missing parents, durably."""
        ...

    async def list_dir(self, path: str) -> list[str]:
        """Return the names in a folder, sorted; FileNotFoundError if it does not exist."""
        ...

    async def exists(self, path: str) -> bool:
        """Return whether a file or folder has this path."""
        ...

    async def modified_ms(self, path: str) -> int | None:
        """Return when a file was last written, for display; None if unknown or if the file is missing."""
        ...

    async def open(self, path: str, *, create: bool = False) -> DiskFile:
        """Open for reading and writing. `create` creates an empty file and fails if one exists."""
        ...

    async def open_read_only(self, path: str) -> DiskFile:
        """Open for reading."""
        ...

    async def create_journal(self, path: str, size: int) -> None:
        """Create a file of `size` zeros, all written (not merely allocated); file and name are durable."""
        ...

    async def allocate(self, path: str, size: int) -> None:
        """Create a file that occupies `size` bytes of the file system, durably; its content is undefined."""
        ...

    async def open_journal(self, path: str, *, synced: bool = True) -> JournalFile:
        """Open an existing preallocated file for durable submissions.

        Without `synced` a submission is done once written; it is durable after `close` of the file at the earliest.
        """
        ...

    def boot_id(self) -> str | None:
        """Return the id of the memory that contains written but unsynced bytes: if it changes, they are lost.

        It survives a process, and changes when the machine restarts. None: unknown.
        """
        ...

    async def read_file(self, path: str) -> bytes:
        """Return the whole content of a small file."""
        ...

    async def replace_file(self, path: str, content: bytes) -> None:
        """Replace a small file atomically and durably: after a crash the old or the new content exists."""
        ...

    async def rename(self, source: str, target: str) -> None:
        """Rename, replacing the target. Durable after `sync_dir` of both folders."""
        ...

    async def remove(self, path: str) -> None:
        """Remove a file. Durable after `sync_dir`."""
        ...

    async def sync_dir(self, path: str) -> None:
        """Make creations, renames and removals in this folder durable."""
        ...

    async def usage(self, path: str) -> DiskUsage:
        """Return the space of the file system of `path`."""
        ...

    def lock_dir(self, path: str) -> DirectoryLock:
        """Lock a folder; BlockingIOError if another process has locked it."""
        ...
