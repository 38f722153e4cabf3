"""Reserves space for work that must continue on a full disk: empty files of a fixed size.

    <folder>/reserve.<k>    k from 0; allocated, never read

A threshold of free bytes is not a reserve if other programs fill the same file system; allocated blocks are. Work that
finds no space releases as many files as it needs (`release`, `ensure`), and `refill` allocates them again once there is
space. They are released one by one, so that a program that takes all free space does not get the whole reserve.

Owns these files. Must never release more than requested, nor allocate space that leaves less than a margin free.
"""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from quire_bookie.env.disk import Disk
from quire_bookie.errors import DiskFullError

FILES = 16
FILE_BYTES_MIN = 4096
_NAME = re.compile(r"reserve\.(\d+)")
_log = logging.getLogger("quire.disk.reserve")
T = TypeVar("T")


class SpaceReserve:
    """The reserve of one file system, in one of its folders. `size_bytes` 0: no reserve."""

    def __init__(self, disk: Disk, folder: str, size_bytes: int) -> None:
        self._disk = disk
        self.folder = folder
        self.file_system = 0
        """As `DiskUsage.file_system`; 0 before `open`, or if unknown."""
        part = -(-size_bytes // FILES)
        self._file_bytes = max(FILE_BYTES_MIN, part + -part % FILE_BYTES_MIN) if size_bytes else 0
        self._count = -(-size_bytes // self._file_bytes) if size_bytes else 0
        self._held: set[int] = set()
        self._lock = asyncio.Lock()
        self.on_release: Callable[[], None] | None = None
        """Called when files were released."""

    async def open(self) -> None:
        """Find the existing files, and remove those with another size or number. OSError."""
        self.file_system = (await self._disk.usage(self.folder)).file_system
        self._held = set()
        for name in await self._disk.list_dir(self.folder):
            if (found := _NAME.fullmatch(name)) is None:
                continue
            file = await self._disk.open_read_only(f"{self.folder}/{name}")
            try:
                size = await file.size()
            finally:
                await file.close()
            number = int(found[1])
            if number < self._count and size == self._file_bytes:
                self._held.add(number)
            else:
                await self._disk.remove(f"{self.folder}/{name}")

    @property
    def size_bytes(self) -> int:
        """Total size."""
        return self._count * self._file_bytes

    @property
    def held_bytes(self) -> int:
        """Bytes that are allocated now."""
        return len(self._held) * self._file_bytes

    @property
    def missing_bytes(self) -> int:
        """Bytes that were released and not allocated again."""
        return self.size_bytes - self.held_bytes

    async def release(self, needed_bytes: int) -> bool:
        """Free `needed_bytes`, or the rest. False: nothing was left. OSError."""
        async with self._lock:
            return await self._release(needed_bytes)

    async def ensure(self, needed_bytes: int, *, keep_bytes: int = 0) -> None:
        """Release until `needed_bytes` are free; `keep_bytes` of the reserve stay. OSError."""
        async with self._lock:
            free_bytes = (await self._disk.usage(self.folder)).free_bytes
            spendable = max(0, self.held_bytes - keep_bytes)
            if free_bytes < needed_bytes:
                await self._release(min(needed_bytes - free_bytes, spendable))

    async def _release(self, needed_bytes: int) -> bool:
        files = min(len(self._held), -(-needed_bytes // self._file_bytes)) if self._count else 0
        if files <= 0:
            return False
        for number in sorted(self._held, reverse=True)[:files]:
            await self._disk.remove(f"{self.folder}/reserve.{number}")
            self._held.discard(number)
        await self._disk.sync_dir(self.folder)
        _log.warning("%s: %d bytes of the reserve were released, %d are left", self.folder, files * self._file_bytes,
                     self.held_bytes)  # fmt: skip
        if self.on_release is not None:
            self.on_release()
        return True

    async def refill(self, margin_bytes: int) -> bool:
        """Allocate the missing files while the margin stays free; return whether the reserve is complete. OSError."""
        async with self._lock:
            added = 0
            for number in range(self._count):
                if number in self._held:
                    continue
                free_bytes = (await self._disk.usage(self.folder)).free_bytes
                if free_bytes < self._file_bytes + margin_bytes:
                    break
                try:
                    await self._disk.allocate(f"{self.folder}/reserve.{number}", self._file_bytes)
                except DiskFullError:
                    break
                self._held.add(number)
                added += 1
            if added:
                _log.info("%s: %d of %d reserved bytes are allocated", self.folder, self.held_bytes, self.size_bytes)
            return not self.missing_bytes


class SpaceReserves:
    """The reserves of one bookie, one per file system."""

    def __init__(self, reserves: Sequence[SpaceReserve] = ()) -> None:
        self.all = tuple(each for each in reserves if each.size_bytes)

    async def find(self, disk: Disk, path: str) -> SpaceReserve | None:
        """Return the reserve for a folder and its files: that of its file system. OSError."""
        below = [each for each in self.all if path == each.folder or path.startswith(each.folder + "/")]
        if below or not self.all:
            return max(below, key=lambda each: len(each.folder), default=None)
        while not await disk.exists(path) and "/" in path[1:]:
            path = path.rpartition("/")[0]
        file_system = (await disk.usage(path)).file_system
        return next((each for each in self.all if file_system and each.file_system == file_system), None)

    @property
    def complete(self) -> bool:
        """Whether nothing is missing."""
        return not any(each.missing_bytes for each in self.all)

    @property
    def missing_bytes(self) -> int:
        """Released and not yet allocated bytes of all reserves."""
        return self.size_bytes - self.held_bytes

    @property
    def held_bytes(self) -> int:
        """Allocated bytes of all reserves."""
        return sum(each.held_bytes for each in self.all)

    @property
    def size_bytes(self) -> int:
        """Total size of all reserves."""
        return sum(each.size_bytes for each in self.all)

    async def retry(self, disk: Disk, path: str, work: Callable[[], Awaitable[T]], needed_bytes: int = 1) -> T:
        """Run `work`, and again after each release while it finds no space. It must be repeatable.

        DiskFullError once nothing is left to release.
        """
        while True:
            try:
                return await work()
            except DiskFullError:
                reserve = await self.find(disk, path.rpartition("/")[0] or "/")
                if reserve is None or not await reserve.release(needed_bytes):
                    raise
