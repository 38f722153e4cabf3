"""Watches the free space of a bookie's folders; decides which are full and when the bookie must be read-only.

Owns the rules of fullness, which are BookKeeper's (semantics section 6), and the figures shown to administrators. A
ledger folder above the threshold gets no new entry logs. When all are full, the bookie turns read-only, and the folders
become writable again only once all together are below the low watermark. Journals have no threshold, as their files are
recycled: a journal reports itself that it has no space, and counts as full until another file fits. Never deletes
anything.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from quire_bookie.env.disk import Disk, DiskUsage
from quire_bookie.env.space_reserve import SpaceReserves
from quire_bookie.errors import StartupError, StorageError
from quire_bookie.settings.disks import DiskRules
from quire_bookie.storage.logs.log_directories import LogDirectories, LogDirectory

_log = logging.getLogger("quire.server.disk")
_FAILED_CHECKS_MAX = 2


def used_share(usage: DiskUsage) -> float:
    """Return the share of a file system in use, 0 to 1; 0 if its size is unknown."""
    return 1.0 - usage.free_bytes / usage.total_bytes if usage.total_bytes else 0.0


def full_folders(usages: Sequence[DiskUsage], full_before: Sequence[bool], rules: DiskRules) -> list[bool]:
    """Return which folders are full now, given which ones were full at the last check.

    While another folder is writable, a full one becomes writable again below the low watermark. If none is writable,
    all of them together must be below it, and the folder at or below the threshold.
    """
    shares = [used_share(usage) for usage in usages]
    if all(full_before):
        together = used_share(sum_of(usages))
        return [share > rules.threshold or together >= rules.writable_below for share in shares]
    return [
        share >= rules.writable_below if before else share > rules.threshold
        for share, before in zip(shares, full_before, strict=True)
    ]


def sum_of(usages: Sequence[DiskUsage]) -> DiskUsage:
    """Return the usage of all folders together. Each file system counts once; a folder of an unknown one as its own."""
    distinct = {usage.file_system or -1 - at: usage for at, usage in enumerate(usages)}
    return DiskUsage(
        sum(usage.total_bytes for usage in distinct.values()), sum(usage.free_bytes for usage in distinct.values())
    )


class DiskMonitor:
    """Checks the folders at intervals. `set_read_only` is called on each change of the mode.

    `reserves`: the bookie is read-only while a part of them is missing. `relieve` is called before each check: it fills
    them again and frees space. `storage_full`: whether the last flush found no space in any folder; storage retries it.
    `on_failure` must end the bookie: a folder can no longer be read, or there is no space and read-only mode is not
    allowed. `on_look` is called after each check.
    """

    def __init__(
        self,
        disk: Disk,
        directories: LogDirectories,
        rules: DiskRules,
        set_read_only: Callable[[bool], Awaitable[None]],
        *,
        journal_folders: Sequence[str] = (),
        journal_needs_bytes: int = 0,
        storage_full: Callable[[], bool] = lambda: False,
        reserves: SpaceReserves | None = None,
        write_cache_bytes: int = 0,
        relieve: Callable[[], Awaitable[None]] | None = None,
        on_failure: Callable[[BaseException], None] = lambda _error: None,
        on_look: Callable[[], None] = lambda: None,
    ) -> None:
        self._disk = disk
        self._directories = directories
        self._rules = rules
        assert rules.high_priority_bytes_min is not None, "filled in by BookieSettings.disk_rules"
        self._high_priority_bytes_min = rules.high_priority_bytes_min
        self._set_read_only = set_read_only
        self._journal_folders = tuple(dict.fromkeys(journal_folders))
        self._journal_needs_bytes = journal_needs_bytes
        self._storage_full = storage_full
        self._reserves = reserves or SpaceReserves()
        self._write_cache_bytes = write_cache_bytes
        self._relieve = relieve
        self._on_failure = on_failure
        self._on_look = on_look
        self._reported = asyncio.Event()
        self._journal_full = False
        self._failed_checks = 0
        self.read_only = False
        self.accepts_high_priority = True
        self.total_bytes = 0
        self.free_bytes = 0

    @property
    def folders(self) -> Sequence[LogDirectory]:
        """The ledger folders, with their usage at the last check."""
        return self._directories.all

    @property
    def any_full(self) -> bool:
        """Whether a ledger folder is full and gets no new entry logs."""
        return any(_is_full(folder) for folder in self.folders)

    @property
    def any_almost_full(self) -> bool:
        """Whether a ledger folder is above the warning threshold."""
        return any(used_share(folder.usage) > self._rules.almost_full_above for folder in self.folders)

    @property
    def excess_bytes(self) -> int:
        """Bytes in use above the warning threshold, over all file systems of the ledger folders; while read-only, at
        least the bytes that its reserve and its next journal file lack."""
        usages = {folder.usage.file_system or -1 - at: folder.usage for at, folder in enumerate(self.folders)}
        share = 1.0 - self._rules.almost_full_above
        excess = sum(max(0, int(usage.total_bytes * share) - usage.free_bytes) for usage in usages.values())
        lacking = self._reserves.missing_bytes + self._journal_needs_bytes - self.free_bytes if self.read_only else 0
        return max(excess, lacking)

    @property
    def writable_folders(self) -> int:
        """The number of ledger folders that accept new entry logs."""
        return sum(not _is_full(folder) and folder.error is None for folder in self.folders)

    def disk_full(self) -> None:
        """Turn read-only now: the journal found no space."""
        self._journal_full = True
        self._reported.set()

    async def first_look(self) -> bool:
        """Check; return whether to start read-only. StartupError if that is needed but not allowed."""
        self.read_only = await self._wanted()
        if self.read_only and not self._rules.read_only_enabled:
            raise StartupError(f"no space, and readOnlyModeEnabled is false: {self._directories.describe()}")
        self._on_look()
        return self.read_only

    async def check(self) -> None:
        """Check the folders once, and adjust the mode."""
        wanted = await self._wanted()
        self._on_look()
        if wanted == self.read_only:
            return
        if wanted and not self._rules.read_only_enabled:
            self._on_failure(
                StorageError(f"no space, and readOnlyModeEnabled is false: {self._directories.describe()}")
            )
            return
        self.read_only = wanted
        mode = "full" if wanted else "writable again"
        _log.warning("the disks are %s: %d of %d bytes are free", mode, self.free_bytes, self.total_bytes)
        await self._set_read_only(wanted)

    async def _wanted(self) -> bool:
        reported = self._reported.is_set()
        self._reported.clear()
        if self._relieve is not None:
            await self._relieve()
        await self._directories.refresh()
        self._check_errors()
        self._evaluate([folder for folder in self.folders if folder.error is None])
        if self._journal_full:
            self._journal_full = not await self._journal_has_space()
        full = [_is_full(folder) or folder.error is not None for folder in self.folders]
        no_space = any(full) if self._rules.on_any_full else all(full)
        return no_space or reported or self._journal_full or self._storage_full() or not self._reserves.complete

    def _evaluate(self, folders: Sequence[LogDirectory]) -> None:
        usages = [folder.usage for folder in folders]
        total = sum_of(usages)
        self.total_bytes, self.free_bytes = total.total_bytes, total.free_bytes
        spacious = any(usage.free_bytes >= self._high_priority_bytes_min for usage in usages)
        self.accepts_high_priority = spacious or self._can_flush()
        fulls = full_folders(usages, [_is_full(folder) for folder in folders], self._rules)
        for folder, full in zip(folders, fulls, strict=True):
            if full != _is_full(folder):
                share = 100.0 * used_share(folder.usage)
                _log.warning("%s is %s: %.1f %% in use", folder.path, "full" if full else "writable again", share)
            folder.over_threshold = full
            folder.out_of_space = folder.out_of_space and full

    def _can_flush(self) -> bool:
        """Whether a whole write cache still fits the reserve: then recovery continues on a full disk."""
        reserve = next(iter(self._reserves.all), None)
        if reserve is None:
            return False
        return reserve.held_bytes + self.folders[0].usage.free_bytes >= self._write_cache_bytes

    def _check_errors(self) -> None:
        """Fail the bookie if a folder could not be read in two consecutive checks."""
        failed = [folder for folder in self.folders if folder.error is not None]
        self._failed_checks = self._failed_checks + 1 if failed else 0
        for folder in failed:
            _log.error("could not read the free space of %s: %s", folder.path, folder.error)
        if self._failed_checks >= _FAILED_CHECKS_MAX:
            self._on_failure(StorageError(f"the disk of {failed[0].path} has failed: {failed[0].error}"))

    async def _journal_has_space(self) -> bool:
        for folder in self._journal_folders:
            try:
                usage = await self._disk.usage(folder)
            except OSError as error:
                _log.error("could not read the free space of %s: %s", folder, error)
                return False
            if usage.free_bytes < self._journal_needs_bytes:
                return False
        return True

    async def run(self) -> None:
        """Check the folders until cancelled."""
        while True:
            try:
                async with asyncio.timeout(self._rules.interval_s):
                    await self._reported.wait()
            except TimeoutError:
                pass
            await self.check()
            if self.read_only:
                # A full disk reports itself with every write: one check per interval is enough.
                await asyncio.sleep(self._rules.interval_s)


def _is_full(folder: LogDirectory) -> bool:
    return folder.over_threshold or folder.out_of_space
