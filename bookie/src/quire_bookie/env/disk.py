"""The disk port: what a bookie may ask of a file system, and what a crash may take away.

Contract, which the simulated disk enforces: bytes written are durable only after `sync` of that file (or a
durable write of a `JournalFile`) has returned; a created, renamed or removed name is durable only after
`sync_dir` of its directory. A failed sync leaves the state unknown: never retry it (the page cache may have
dropped the bytes). All methods raise `DiskFullError` for no space and `OSError` for everything else.
Nothing here blocks the event loop.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from quire_bookie.model import Buffer


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """Bytes of the file system that holds a directory, without those kept back for root: what `df` shows."""

    total_bytes: int
    free_bytes: int
    file_system: int = 0
    """Which file system it is: two folders with the same number share their bytes. 0: not known."""


class DiskFile(Protocol):
    """An open file. Reads and writes are positioned; several may be under way at once."""

    @property
    def path(self) -> str:
        """The path it was opened with."""
        ...

    async def size(self) -> int:
        """Length in bytes."""
        ...

    async def read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes at `offset`; fewer only at the end of the file."""
        ...

    async def write(self, offset: int, buffers: Sequence[Buffer]) -> None:
        """Write all buffers one after the other from `offset` on. Not durable before `sync`."""
        ...

    async def sync(self) -> None:
        """Make everything written durable, the length included."""
        ...

    async def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes."""
        ...

    async def close(self) -> None:
        """Release the handle. Says nothing about durability."""
        ...


class JournalFile(Protocol):
    """A preallocated file to which durable groups are submitted: the *journal submit* port.

    One submission is in flight at a time. `done` is called on the event loop with None once the bytes are
    durable, or with the error; it is never called inside `submit`.
    """

    @property
    def path(self) -> str:
        """The path it was opened with."""
        ...

    @property
    def alignment_bytes(self) -> int:
        """Offsets and lengths of submissions are multiples of this."""
        ...

    def submit(self, offset: int, buffers: Sequence[Buffer], done: Callable[[BaseException | None], None]) -> None:
        """Write `buffers` at `offset`, durable when `done(None)` runs. Total length is aligned by the caller."""
        ...

    async def close(self) -> None:
        """Wait for the submission in flight, then release the handle."""
        ...


class DirectoryLock(Protocol):
    """An exclusive lock of a folder against other processes."""

    def release(self) -> None:
        """Give the folder free. A dead process gives it free by dying."""
        ...


class Disk(Protocol):
    """The file system. Paths are absolute strings with `/`."""

    async def make_dirs(self, path: str) -> None:
        """Create the folder and its missing parents, durably."""
        ...

    async def list_dir(self, path: str) -> list[str]:
        """Names in a folder, sorted; FileNotFoundError when there is none."""
        ...

    async def exists(self, path: str) -> bool:
        """Whether a file or folder has that path."""
        ...

    async def modified_ms(self, path: str) -> int | None:
        """When a file was last written, for people; None when that is not known, or there is no file."""
        ...

    async def open(self, path: str, *, create: bool = False) -> DiskFile:
        """Open for reading and writing. `create` makes an empty file and fails where one exists."""
        ...

    async def open_read_only(self, path: str) -> DiskFile:
        """Open for reading."""
        ...

    async def create_journal(self, path: str, size: int) -> None:
        """Make a file of `size` zeros, all written (not merely allocated) and durable, and its name too."""
        ...

    async def allocate(self, path: str, size: int) -> None:
        """Make a file that takes `size` bytes of the file system, durably; what it contains does not count."""
        ...

    async def open_journal(self, path: str, *, synced: bool = True) -> JournalFile:
        """Open an existing preallocated file for durable submissions.

        Without `synced` a submission is done once written; it is durable after `close` of the file at the earliest.
        """
        ...

    def boot_id(self) -> str | None:
        """Names the memory that holds what was written and not synced: another one, and that is lost.

        It outlives a process, and changes when the machine restarts. None: not known.
        """
        ...

    async def read_file(self, path: str) -> bytes:
        """The whole content of a small file."""
        ...

    async def replace_file(self, path: str, content: bytes) -> None:
        """Replace a small file in one step, durably: after a crash the old or the new content is there."""
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
        """Space of the file system below `path`."""
        ...

    def lock_dir(self, path: str) -> DirectoryLock:
        """Lock a folder; raises BlockingIOError when another process holds it."""
        ...
