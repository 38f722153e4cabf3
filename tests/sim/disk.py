"""A simulated disk that loses unsynced data.

It keeps two images: the files as the process sees them, and as a power cut would leave them. A write is in the second
only after a sync of its file (or a completed journal submission); a name only after a sync of its folder. `crash`
freezes the disk and returns the disk that the next process finds: unsynced writes are dropped, kept, or torn by sector,
as chosen.

Every change counts as one step; `crash_after(k)` dies in the middle of step k+1, so that a test can stop at every k.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from quire_bookie.env.disk import DirectoryLock, DiskFile, DiskUsage, JournalFile
from quire_bookie.env.journal_submission import Done, JournalSubmission
from quire_bookie.errors import DiskFullError
from quire_bookie.model import Buffer

SECTOR_BYTES = 512
Survival = Literal["none", "all", "random"]


class SimCrashError(OSError):
    """The simulated process is dead; its further operations have no effect."""


@dataclass(slots=True)
class _Inode:
    """Holds a file's bytes as the process sees them and as a crash leaves them, and the unsynced writes between."""

    current: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    unsynced: list[tuple[int, bytes]] = field(default_factory=list)
    in_flight: tuple[int, bytes, bool] | None = None
    """An uncompleted submission, and whether its file syncs."""
    writing: list[tuple[int, bytes]] = field(default_factory=list)
    """Writes that have not returned: several of one file may run at the same time and end in any order."""
    lost_writes: bool = False
    """Whether a sync failed: bytes written before it never become durable, even if later syncs succeed."""

    def write(self, offset: int, data: bytes) -> None:
        self.unsynced.append((offset, data))
        _put(self.current, offset, data)

    def sync(self) -> None:
        if self.lost_writes:
            for offset, data in self.unsynced:
                _put(self.durable, offset, data)
        else:
            self.durable = bytearray(self.current)
        self.unsynced.clear()

    def fail_sync(self) -> None:
        """Fail as a page cache does: the bytes count as clean from now on, but the device does not have them."""
        self.unsynced.clear()
        self.lost_writes = True

    def settle_in_flight(self, chance: random.Random) -> None:
        """Choose the fate of a submission after the process died: lost, durable, torn, or present but unsynced."""
        if self.in_flight is None:
            return
        (offset, data, synced), self.in_flight = self.in_flight, None
        self.unsynced.remove((offset, data))
        fate = chance.randrange(4)
        if fate == 3 or (fate and not synced):
            self.write(offset, data)
        elif fate == 2:
            _put(self.current, offset, data)
            _put(self.durable, offset, data)
        elif fate == 1:
            _put_torn(self.durable, offset, data, chance)
            _put(self.current, offset, bytes(self.durable[offset : offset + len(data)]))

    def settle_writing(self, chance: random.Random) -> None:
        """Choose the fate of unfinished writes after the process died: partial, complete or lost, but unsynced."""
        writing, self.writing = self.writing, []
        for offset, data in writing:
            kept = chance.choice((0, len(data) // 2, len(data)))
            if kept:
                self.write(offset, data[:kept])

    def survivor(self, survival: Survival, chance: random.Random) -> "_Inode":
        left = bytearray(self.current if survival == "all" else self.durable)
        if survival == "random":
            for offset, data in [*self.unsynced, *self.writing]:
                _put_torn(left, offset, data, chance)
        return _Inode(left, bytearray(left))


def _put(image: bytearray, offset: int, data: bytes) -> None:
    if len(image) < offset:
        image.extend(bytes(offset - len(image)))
    image[offset : offset + len(data)] = data


def _put_torn(image: bytearray, offset: int, data: bytes, chance: random.Random) -> None:
    """Write a random part of the sectors; the file length may change without the bytes."""
    style = chance.randrange(4)
    if style == 0:
        return
    for start in range(0, len(data), SECTOR_BYTES):
        if style == 1 or chance.random() < 0.5:
            _put(image, offset + start, data[start : start + SECTOR_BYTES])


class SimDisk:
    """Implements the `Disk` port. `latency_s` is drawn per operation when a chance source is given."""

    def __init__(self, *, chance: random.Random | None = None, latency_s: float = 0.0) -> None:
        self._chance = chance or random.Random(0)
        self._latency_s = latency_s
        self._names: dict[str, _Inode] = {}
        self._durable_names: dict[str, _Inode] = {}
        self._folders: set[str] = {"/"}
        self._locked: set[str] = set()
        self._crash_at: int | None = None
        self._faults: list[tuple[str, str, BaseException]] = []
        self.fault: Callable[[str, str], BaseException | None] | None = None
        """Called at every change (operation, path); an exception that it returns is raised."""
        self.short_writes = False
        """Whether a failing write leaves half of its bytes."""
        self.on_crash: Callable[[], None] | None = None
        """Called when `crash_after` ends the process."""
        self.indexes: dict[str, object] = {}
        self.steps = 0
        self.crashed = False
        self.capacity_bytes = 1 << 40
        self._mounts: dict[str, int] = {}
        self.boot: str | None = "boot-1"

    def mount(self, folder: str, capacity_bytes: int) -> None:
        """Make a folder a file system of its own; its files no longer count against `capacity_bytes`."""
        self._mounts[folder] = capacity_bytes

    # ---- faults
    def crash_after(self, steps: int) -> None:
        """Die at the step after `steps` more changes."""
        self._crash_at = self.steps + steps

    def fail_next(self, operation: str, path_part: str, error: BaseException) -> None:
        """Raise `error` at the next `operation` (write, sync, submit, create, read, ...) on a path with that part."""
        self._faults.append((operation, path_part, error))

    def forget_planned(self) -> None:
        """Cancel the errors planned by `fail_next`."""
        self._faults.clear()

    def corrupt(self, path: str, offset: int, mask: int = 0x01) -> None:
        """Flip bits of a durable byte, as a failing device would."""
        inode = self._names[path]
        inode.current[offset] ^= mask
        if offset < len(inode.durable):
            inode.durable[offset] ^= mask

    def cut(self, path: str, size: int) -> None:
        """Shorten a file behind the process's back."""
        inode = self._names[path]
        del inode.current[size:], inode.durable[size:]

    def content(self, path: str) -> bytes:
        """Return a file's bytes as the process sees them."""
        return bytes(self._names[path].current)

    def crash(self, survival: Survival = "none", seed: int = 0) -> "SimDisk":
        """Kill this disk's process and return the disk that the next one finds."""
        self.crashed = True
        chance = random.Random(seed)
        heir = SimDisk(chance=self._chance, latency_s=self._latency_s)
        names = dict(self._durable_names)
        if survival != "none":
            for path in sorted(set(self._names) | set(self._durable_names)):
                if survival == "all" or chance.random() < 0.5:
                    if path in self._names:
                        names[path] = self._names[path]
                    else:
                        names.pop(path, None)
        kept: dict[int, _Inode] = {}
        for path in sorted(names):
            inode = names[path]
            if id(inode) not in kept:
                kept[id(inode)] = inode.survivor(survival, chance)
            heir._names[path] = kept[id(inode)]
        heir._durable_names = dict(heir._names)
        heir._folders = set(self._folders)
        heir.capacity_bytes = self.capacity_bytes
        heir._mounts = dict(self._mounts)
        heir.boot = None if self.boot is None else f"boot-{int(self.boot.removeprefix('boot-')) + 1}"
        for path, index in self.indexes.items():
            heir.indexes[path] = index.survivor(survival, chance)  # type: ignore[attr-defined]
        return heir

    def kill(self) -> "SimDisk":
        """Kill this disk's process but not the machine: its unsynced writes remain in the page cache."""
        self.crashed = True
        heir = SimDisk(chance=self._chance, latency_s=self._latency_s)
        for inode in self._names.values():
            inode.settle_in_flight(self._chance)
            inode.settle_writing(self._chance)
        heir._names, heir._durable_names = dict(self._names), dict(self._durable_names)
        heir._folders, heir.indexes = set(self._folders), dict(self.indexes)
        heir._mounts = dict(self._mounts)
        heir.capacity_bytes, heir.boot = self.capacity_bytes, self.boot
        return heir

    def step(self, operation: str, path: str) -> bool:
        """Count one change and raise planned faults. Returns True if the process dies in the middle of it."""
        self.check_alive()
        self.raise_planned(operation, path)
        self.steps += 1
        if self._crash_at is not None and self.steps > self._crash_at:
            self.crashed = True
            if self.on_crash is not None:
                self.on_crash()
            return True
        if self.fault is not None and (error := self.fault(operation, path)) is not None:
            raise error
        return False

    def check_alive(self) -> None:
        """Raise once the process is dead."""
        if self.crashed:
            raise SimCrashError("the simulated process has crashed")

    def raise_planned(self, operation: str, path: str) -> None:
        """Raise a fault planned by `fail_next`."""
        for index, (planned, part, error) in enumerate(self._faults):
            if planned == operation and part in path:
                del self._faults[index]
                raise error

    async def pause(self) -> None:
        """Take the time of one operation."""
        await asyncio.sleep(self._delay_s())
        self.check_alive()

    def _delay_s(self) -> float:
        return self._chance.uniform(0.2, 1.8) * self._latency_s if self._latency_s else 0.0

    # ---- the port
    async def make_dirs(self, path: str) -> None:
        """Create folders; they survive at once."""
        await self.pause()
        parts = path.strip("/").split("/")
        for depth in range(1, len(parts) + 1):
            self._folders.add("/" + "/".join(parts[:depth]))

    async def list_dir(self, path: str) -> list[str]:
        """Names of files and folders directly below."""
        await self.pause()
        base = path.rstrip("/")
        if (base or "/") not in self._folders:
            raise FileNotFoundError(path)
        found = {p[len(base) + 1 :].split("/")[0] for p in [*self._names, *self._folders] if p.startswith(base + "/")}
        return sorted(name for name in found if name)

    async def exists(self, path: str) -> bool:
        """Whether a file or folder is there."""
        await self.pause()
        return path in self._names or path in self._folders

    async def modified_ms(self, path: str) -> int | None:
        """Return None: modification times are not simulated."""
        return None

    async def open(self, path: str, *, create: bool = False) -> DiskFile:
        """Open, or create an empty file whose name is not durable yet."""
        await self.pause()
        if create:
            if path in self._names:
                raise FileExistsError(path)
            if path.rpartition("/")[0] not in self._folders:
                raise FileNotFoundError(path)
            if self.step("create", path):
                raise SimCrashError(path)
            self._names[path] = _Inode()
        return SimFile(self, path, self._inode(path))

    async def open_read_only(self, path: str) -> DiskFile:
        """Open an existing file."""
        await self.pause()
        return SimFile(self, path, self._inode(path))

    async def create_journal(self, path: str, size: int) -> None:
        """Create a file of durable zeros with a durable name; a crash in the middle leaves a short file or none."""
        await self.pause()
        self.reserve(size, path)
        died = self.step("create", path)
        inode = _Inode(bytearray(size), bytearray(size if not died else self._chance.randrange(size)))
        self._names[path] = inode
        if died:
            raise SimCrashError(path)
        self._durable_names[path] = inode

    async def allocate(self, path: str, size: int) -> None:
        """Create a file of that size with a durable name; a crash in the middle leaves it or nothing."""
        await self.pause()
        self.reserve(size, path)
        died = self.step("create", path)
        if not died or self._chance.random() < 0.5:
            self._names[path] = self._durable_names[path] = _Inode(bytearray(size), bytearray(size))
        if died:
            raise SimCrashError(path)

    async def open_journal(self, path: str, *, synced: bool = True) -> JournalFile:
        """Open a preallocated file for durable submissions, or for submissions that become durable by `close`."""
        await self.pause()
        return SimJournalFile(self, path, self._inode(path), synced)

    def boot_id(self) -> str | None:
        """Return an id that changes with each power cut."""
        return self.boot

    async def read_file(self, path: str) -> bytes:
        """Return all bytes."""
        await self.pause()
        self.raise_planned("read", path)
        return bytes(self._inode(path).current)

    async def replace_file(self, path: str, content: bytes) -> None:
        """Replace the content atomically: the old or the new content survives, never a mixture."""
        await self.pause()
        self.reserve(len(content), path)
        if self.step("replace", path):
            raise SimCrashError(path)
        self._names[path] = self._durable_names[path] = _Inode(bytearray(content), bytearray(content))

    async def rename(self, source: str, target: str) -> None:
        """Rename; durable after a sync of the folder."""
        await self.pause()
        inode = self._inode(source)
        if self.step("rename", source):
            raise SimCrashError(source)
        self._names[target] = inode
        del self._names[source]

    async def remove(self, path: str) -> None:
        """Remove; durable after a sync of the folder."""
        await self.pause()
        self._inode(path)
        if self.step("remove", path):
            raise SimCrashError(path)
        del self._names[path]

    async def sync_dir(self, path: str) -> None:
        """Make the names of this folder durable."""
        await self.pause()
        if self.step("sync_dir", path):
            raise SimCrashError(path)
        folder = path.rstrip("/")
        for name in [p for p in self._durable_names if p.rpartition("/")[0] == folder and p not in self._names]:
            del self._durable_names[name]
        self._durable_names.update({p: i for p, i in self._names.items() if p.rpartition("/")[0] == folder})

    async def usage(self, path: str) -> DiskUsage:
        """Return the usage of a path's file system; files outside all mounts share one capacity."""
        await self.pause()
        self.raise_planned("usage", path)
        mount = self._mount_of(path)
        capacity = self.capacity_bytes if mount is None else self._mounts[mount]
        number = 1 if mount is None else 2 + sorted(self._mounts).index(mount)
        return DiskUsage(capacity, max(0, capacity - self._used_bytes(mount)), number)

    def lock_dir(self, path: str) -> DirectoryLock:
        """Lock a folder; one holder at a time."""
        if path in self._locked:
            raise BlockingIOError(f"{path} is locked")
        self._locked.add(path)
        return SimDirectoryLock(self._locked, path)

    def reserve(self, growth_bytes: int, path: str = "/") -> None:
        """Raise DiskFullError if `growth_bytes` more do not fit the file system of a path."""
        mount = self._mount_of(path)
        capacity = self.capacity_bytes if mount is None else self._mounts[mount]
        if growth_bytes > 0 and self._used_bytes(mount) + growth_bytes > capacity:
            raise DiskFullError("no space left on the simulated disk")

    def _mount_of(self, path: str) -> str | None:
        """Return the innermost mount that contains a path."""
        found = [mount for mount in self._mounts if path == mount or path.startswith(mount + "/")]
        return max(found, key=len, default=None)

    def _used_bytes(self, mount: str | None = None) -> int:
        if not self._mounts:
            return sum(len(inode.current) for inode in self._names.values())
        return sum(len(inode.current) for path, inode in self._names.items() if self._mount_of(path) == mount)

    def _inode(self, path: str) -> _Inode:
        if path not in self._names:
            raise FileNotFoundError(path)
        return self._names[path]


class SimDirectoryLock:
    """A lock held until released; a new SimDisk starts without locks."""

    def __init__(self, locked: set[str], path: str) -> None:
        self._locked = locked
        self._path = path

    def release(self) -> None:
        """Release the lock."""
        self._locked.discard(self._path)


class SimFile:
    """Implements `DiskFile`."""

    def __init__(self, disk: SimDisk, path: str, inode: _Inode) -> None:
        self._disk = disk
        self._path = path
        self._inode = inode

    @property
    def path(self) -> str:
        """The path it was opened with."""
        return self._path

    async def size(self) -> int:
        """Length in bytes."""
        await self._disk.pause()
        return len(self._inode.current)

    async def read(self, offset: int, size: int) -> bytes:
        """Read bytes as the process sees them."""
        await self._disk.pause()
        self._disk.raise_planned("read", self._path)
        return bytes(self._inode.current[offset : offset + size])

    async def write(self, offset: int, buffers: Sequence[Buffer]) -> None:
        """Write; a crash in the middle leaves part of the bytes, unsynced. The buffers are read until the end."""
        data = b"".join(buffers)
        writing = self._inode.writing
        writing.append((offset, data))
        try:
            await self._write(offset, data)
        finally:
            if not self._disk.crashed:
                writing.remove((offset, data))
        assert b"".join(buffers) == data, "bytes changed while they were being written"

    async def _write(self, offset: int, data: bytes) -> None:
        await self._disk.pause()
        self._disk.reserve(offset + len(data) - len(self._inode.current), self._path)
        try:
            died = self._disk.step("write", self._path)
        except (OSError, DiskFullError):
            if self._disk.short_writes and not self._disk.crashed:
                self._inode.write(offset, data[: len(data) // 2])
            raise
        if died:
            self._inode.write(offset, data[: len(data) // 2])
            raise SimCrashError(self._path)
        self._inode.write(offset, data)

    async def sync(self) -> None:
        """Sync; a crash in the middle syncs nothing (though the crash may keep some of the bytes)."""
        await self._disk.pause()
        try:
            died = self._disk.step("sync", self._path)
        except OSError:
            if not self._disk.crashed:
                self._inode.fail_sync()
            raise
        if died:
            raise SimCrashError(self._path)
        self._inode.sync()

    async def truncate(self, size: int) -> None:
        """Truncate; durable after the next sync."""
        await self._disk.pause()
        self._disk.reserve(size - len(self._inode.current), self._path)
        if self._disk.step("truncate", self._path):
            raise SimCrashError(self._path)
        current = self._inode.current
        if size < len(current):
            del current[size:]
        else:
            current.extend(bytes(size - len(current)))

    async def close(self) -> None:
        """Nothing to release."""
        await self._disk.pause()


class SimJournalFile(JournalSubmission):
    """Implements `JournalFile`."""

    def __init__(self, disk: SimDisk, path: str, inode: _Inode, synced: bool = True) -> None:
        super().__init__(path)
        self._disk = disk
        self._inode = inode
        self._synced = synced

    @property
    def alignment_bytes(self) -> int:
        """The size of a sector."""
        return SECTOR_BYTES

    def submit(self, offset: int, buffers: Sequence[Buffer], done: Done) -> None:
        """Submit bytes; they are durable when `done(None)` runs. A crash while in flight tears them by sector."""
        data = b"".join(buffers)
        assert offset % SECTOR_BYTES == 0 and len(data) % SECTOR_BYTES == 0, "unaligned submission"
        assert offset + len(data) <= len(self._inode.current), "submission past the end of a preallocated file"
        self._begin(done)
        if not self._disk.crashed:  # late work of a dead process must not affect its successor
            self._inode.unsynced.append((offset, data))
            self._inode.in_flight = (offset, data, self._synced)
        self._loop.call_later(self._disk._delay_s(), self._complete, offset, data)

    def _complete(self, offset: int, data: bytes) -> None:
        if self._disk.crashed:
            self._finish(SimCrashError("the simulated process has crashed"))
            return
        try:
            died = self._disk.step("submit", self._path)
        except OSError as error:
            self._inode.in_flight = None
            if self._disk.short_writes and not self._disk.crashed:
                _put(self._inode.current, offset, data[: len(data) // 2])
                _put(self._inode.durable, offset, data[: len(data) // 2])
            self._finish(error)
            return
        if died:
            self._finish(SimCrashError(self._path))
            return
        self._inode.in_flight = None
        _put(self._inode.current, offset, data)
        if self._synced:
            self._inode.unsynced.remove((offset, data))
            _put(self._inode.durable, offset, data)
        self._finish(None)

    async def close(self) -> None:
        """Wait until nothing is in flight, then sync as `SimFile.sync` does."""
        await self._settled()
        if not self._synced and self._inode.unsynced:
            if self._disk.step("sync", self._path):
                raise SimCrashError(self._path)
            self._inode.sync()
