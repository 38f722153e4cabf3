"""The folders that entry logs lie in, their space, and which of them takes the next log. Never touches a log.

A flush writes to all folders that are equally good, each with a log of its own, so that they fill evenly also where
they share a file system. The rule for a new log: the folder with most free bytes that has no such log, among those that
the disk monitor does not call full; when it calls all of them full, among those that still have room above the reserve,
because entries that were acknowledged must reach an entry log; a folder in which a write found no space comes last. So
a full folder takes out only itself, and a flush is refused only when nothing above the reserve is left anywhere.

Space is counted by file system: two folders on one share its bytes and its reserve. Between two looks the bytes
that were given out are subtracted, so that one flush does not plan with the same room twice.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from quire_bookie.env.disk import Disk, DiskUsage
from quire_bookie.storage.index.index_commits import PROOF_NAME

_UNKNOWN = DiskUsage(0, 0)


@dataclass(slots=True)
class LogDirectory:
    """One folder and what is known of its space."""

    path: str
    usage: DiskUsage = _UNKNOWN
    over_threshold: bool = False
    """The disk monitor's word: no new log here while another folder takes it."""
    out_of_space: bool = False
    """A write found no space here, and no look since then said that it is back."""
    error: OSError | None = None
    """Why its space could not be read at the last look."""

    @property
    def file_system(self) -> object:
        """What it shares its bytes with; the folder itself when the disk cannot tell."""
        return self.usage.file_system or self.path


async def home_of(disk: Disk, paths: Sequence[str]) -> str:
    """The folder of what there is only one of, wherever it stands in the configuration by now; the first if new."""
    for path in paths:
        if PROOF_NAME in await disk.list_dir(path):
            return path
    return paths[0]


class LogDirectories:
    """The ledger folders of one bookie, in the order of its configuration."""

    def __init__(self, disk: Disk, paths: Sequence[str], reserved_bytes: int) -> None:
        assert paths, "a storage has at least one folder"
        self._disk = disk
        self.reserved_bytes = reserved_bytes
        """What flushes leave free of each file system."""
        self._free_bytes: dict[object, int] = {}
        self.all = [LogDirectory(path) for path in dict.fromkeys(paths)]
        self._by_path = {directory.path: directory for directory in self.all}

    def __getitem__(self, path: str) -> LogDirectory:
        return self._by_path[path]

    @property
    def first(self) -> LogDirectory:
        """Where files of which there is only one lie."""
        return self.all[0]

    async def look(self) -> None:
        """Read the free space of every folder. A folder whose space cannot be read is not used until it can."""
        free: dict[object, int] = {}
        for directory in self.all:
            try:
                directory.usage = await self._disk.usage(directory.path)
                directory.error = None
            except OSError as error:
                directory.usage, directory.error = DiskUsage(0, 0), error
            free[directory.file_system] = directory.usage.free_bytes
        self._free_bytes = free

    def room_bytes(self, excluded: Collection[str] = (), floor_bytes: int | None = None) -> int:
        """What may be written in all folders together, each file system counted once and left with its floor."""
        systems = {directory.file_system for directory in self._usable(excluded)}
        return sum(max(0, self._free_bytes.get(system, 0) - self._floor(floor_bytes)) for system in systems)

    def choose(self, size_bytes: int, excluded: Collection[str] = (), floor_bytes: int | None = None) -> str | None:
        """The folder that takes `size_bytes` of a new log; None when none has the room."""
        needed = size_bytes + self._floor(floor_bytes)
        fitting = [directory for directory in self._usable(excluded) if self._free(directory) >= needed]
        return max(fitting, key=self._rank).path if fitting else None

    def equally_good(self, floor_bytes: int | None = None) -> int:
        """How many folders a flush should write to at once: those with room, without those of last resort."""
        fitting = [directory for directory in self._usable(()) if self._free(directory) > self._floor(floor_bytes)]
        best = max((self._rank(directory)[:2] for directory in fitting), default=None)
        return sum(self._rank(directory)[:2] == best for directory in fitting)

    def has_better_than(self, path: str) -> bool:
        """Whether a full folder should be left, because another one is not full and has room."""
        present = self._by_path[path]
        return any(
            self._rank(other)[:2] > self._rank(present)[:2] and self._free(other) > self.reserved_bytes
            for other in self._usable(())
        )

    def take(self, path: str, size_bytes: int, floor_bytes: int | None = None) -> bool:
        """Whether `size_bytes` more fit this folder; they are subtracted from its room."""
        directory = self._by_path[path]
        left = self._free(directory) - size_bytes
        if directory.error is not None or left < self._floor(floor_bytes):
            return False
        self._free_bytes[directory.file_system] = left
        return True

    def note_out_of_space(self, path: str) -> None:
        """A write found no space here."""
        self._by_path[path].out_of_space = True

    def describe(self) -> str:
        """The free bytes of each folder, for a message."""
        return ", ".join(
            f"{directory.path}: {directory.usage.free_bytes} bytes free"
            if directory.error is None
            else f"{directory.path}: {directory.error}"
            for directory in self.all
        )

    def _floor(self, floor_bytes: int | None) -> int:
        return self.reserved_bytes if floor_bytes is None else floor_bytes

    def _usable(self, excluded: Collection[str]) -> list[LogDirectory]:
        return [directory for directory in self.all if directory.error is None and directory.path not in excluded]

    def _free(self, directory: LogDirectory) -> int:
        return self._free_bytes.get(directory.file_system, 0)

    def _rank(self, directory: LogDirectory) -> tuple[bool, bool, int]:
        return (not directory.out_of_space, not directory.over_threshold, self._free(directory))
