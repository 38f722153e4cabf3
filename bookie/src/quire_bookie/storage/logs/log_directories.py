"""The folders of the entry logs, their free space, and the choice of a folder for a new log. Never accesses a log.

A flush writes to all equally good folders, to one log in each, so that they fill evenly even if they share a file
system. A new log goes to the folder with the most free bytes that has no such log yet, among those that the disk
monitor does not report as full; if it reports all as full, among those that still have space above the reserve, because
acknowledged entries must reach an entry log. A folder in which a write found no space comes last. A full folder
therefore affects only itself, and a flush is refused only if no folder has space above the reserve.

Space is counted by file system: two folders on one file system share its bytes and its reserve. Between two readings
allocated bytes are subtracted, so that a flush does not count the same space twice.
"""

from collections.abc import Collection, Sequence

from quire_bookie.dataclass import dataclass
from quire_bookie.env.disk import Disk, DiskUsage
from quire_bookie.storage.index.index_commits import PROOF_NAME

_UNKNOWN = DiskUsage(0, 0)


@dataclass(slots=True)
class LogDirectory:
    """One folder and the last known state of its space."""

    path: str
    usage: DiskUsage = _UNKNOWN
    over_threshold: bool = False
    """Set by the disk monitor: no new log here while another folder can receive it."""
    out_of_space: bool = False
    """Whether a write found no space here, and no reading since then showed free space."""
    error: OSError | None = None
    """Why its space could not be read the last time."""

    @property
    def file_system(self) -> object:
        """The file system whose bytes it shares; the folder itself if the file system is unknown."""
        return self.usage.file_system or self.path


async def home_of(disk: Disk, paths: Sequence[str]) -> str:
    """Return the folder of the singletons, wherever it is in the configuration now; the first one for a new storage."""
    for path in paths:
        if PROOF_NAME in await disk.list_dir(path):
            return path
    return paths[0]


class LogDirectories:
    """Tracks the space of a bookie's ledger folders, in the order of the configuration."""

    def __init__(self, disk: Disk, paths: Sequence[str], reserved_bytes: int) -> None:
        assert paths, "a storage has at least one folder"
        self._disk = disk
        self.reserved_bytes = reserved_bytes
        """The space that flushes leave free on each file system."""
        self._free_bytes: dict[object, int] = {}
        self.all = [LogDirectory(path) for path in dict.fromkeys(paths)]
        self._by_path = {directory.path: directory for directory in self.all}

    def __getitem__(self, path: str) -> LogDirectory:
        return self._by_path[path]

    @property
    def first(self) -> LogDirectory:
        """The first folder of the configuration."""
        return self.all[0]

    async def refresh(self) -> None:
        """Read the free space of every folder. A folder whose space cannot be read is not used until it can be."""
        free: dict[object, int] = {}
        for directory in self.all:
            try:
                directory.usage = await self._disk.usage(directory.path)
                directory.error = None
            except OSError as error:
                directory.usage, directory.error = DiskUsage(0, 0), error
            free[directory.file_system] = directory.usage.free_bytes
        self._free_bytes = free

    def available_bytes(self, excluded: Collection[str] = (), floor_bytes: int | None = None) -> int:
        """Return the bytes that may be written to all folders; each file system counts once, minus its floor."""
        systems = {directory.file_system for directory in self._usable(excluded)}
        return sum(max(0, self._free_bytes.get(system, 0) - self._floor(floor_bytes)) for system in systems)

    def choose(self, size_bytes: int, excluded: Collection[str] = (), floor_bytes: int | None = None) -> str | None:
        """Return the folder for `size_bytes` of a new log; None if no folder has the space."""
        needed = size_bytes + self._floor(floor_bytes)
        fitting = [directory for directory in self._usable(excluded) if self._free(directory) >= needed]
        return max(fitting, key=self._rank).path if fitting else None

    def equally_good(self, floor_bytes: int | None = None) -> int:
        """Return how many folders a flush should write to at once: the best-ranked ones with space."""
        fitting = [directory for directory in self._usable(()) if self._free(directory) > self._floor(floor_bytes)]
        best = max((self._rank(directory)[:2] for directory in fitting), default=None)
        return sum(self._rank(directory)[:2] == best for directory in fitting)

    def has_better_than(self, path: str) -> bool:
        """Return whether another folder ranks better than this one and has space."""
        present = self._by_path[path]
        return any(
            self._rank(other)[:2] > self._rank(present)[:2] and self._free(other) > self.reserved_bytes
            for other in self._usable(())
        )

    def take(self, path: str, size_bytes: int, floor_bytes: int | None = None) -> bool:
        """Allocate `size_bytes` in a folder: subtract them from its space. Return whether they fit."""
        directory = self._by_path[path]
        left = self._free(directory) - size_bytes
        if directory.error is not None or left < self._floor(floor_bytes):
            return False
        self._free_bytes[directory.file_system] = left
        return True

    def note_out_of_space(self, path: str) -> None:
        """Record that a write found no space in a folder."""
        self._by_path[path].out_of_space = True

    def describe(self) -> str:
        """Return the free bytes of each folder, for a message."""
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
