"""Computes sizes that suit a bookie's disk, and opens the space reserve on it.

With the default sizes a bookie needs several hundred MiB before it stores anything. On a small file system the write
cache and journal files are at most a sixteenth of it, entry logs and index cache half of that, down to minimums that
fit every entry. The reserve is then enough to compact an entry log of a small disk.

The reserve holds one flush of the whole write cache, the space that the index needs to open and commit, and one short
journal file: with it, fencing, recovery, deletion and a start work on a disk without a free byte.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace

from quire_bookie import limits
from quire_bookie.env.disk import Disk, DiskUsage
from quire_bookie.env.space_reserve import SpaceReserve, SpaceReserves
from quire_bookie.errors import StartupError
from quire_bookie.server.settings import BookieSettings

_log = logging.getLogger("quire.server.disk")
_PARTS = 16
"""The divisor of a small file system's size."""


def fitted(settings: BookieSettings, total_bytes: int) -> BookieSettings:
    """Return settings with sizes that suit a file system of `total_bytes`, and with the reserve that they need."""
    part = total_bytes // settings.shares_disk_with // _PARTS
    write_cache = _at_most(settings.storage.write_cache_bytes, part, limits.SMALL_WRITE_CACHE_BYTES)
    entry_log = _at_most(settings.storage.entry_log_bytes_max, part // 2, limits.SMALL_FILE_BYTES)
    reserved = _at_most(settings.storage.reserved_bytes, part // 2, limits.SMALL_RESERVED_BYTES)
    journal_file = _at_most(settings.journal.file_bytes, part, limits.SMALL_FILE_BYTES)
    journal_file -= journal_file % limits.JOURNAL_ALIGNMENT_BYTES
    index_cache = _at_most(settings.index_cache_bytes, part // 2, limits.SMALL_INDEX_CACHE_BYTES)
    return replace(
        settings,
        index_cache_bytes=index_cache,
        journal=replace(
            settings.journal, file_bytes=max(journal_file, 2 * settings.journal.group_bytes_max),
            reserved_bytes=reserved + write_cache // 2,
        ),
        storage=replace(
            settings.storage,
            write_cache_bytes=write_cache,
            entry_log_bytes_max=entry_log,
            reserved_bytes=reserved,
            compaction_reserved_bytes=min(settings.storage.compaction_reserved_bytes, reserved // 2),
            reserve_bytes=write_cache + index_cache // 2 + limits.INDEX_RESERVE_BYTES,
        ),
    )  # fmt: skip


def _at_most(configured: int, part: int, floor: int) -> int:
    """Return the configured size, limited to a part of the disk, which is never below `floor`."""
    return min(configured, max(floor, part))


async def fit_to_disk(settings: BookieSettings, disk: Disk) -> BookieSettings:
    """Return settings fitted to the smallest file system of the bookie's folders. OSError."""
    totals = [usage.total_bytes for usage in (await _usages(settings, disk)).values() if usage.total_bytes]
    found = fitted(settings, min(totals, default=1 << 62))
    for name, before, now in (
        ("write cache", settings.storage.write_cache_bytes, found.storage.write_cache_bytes),
        ("journal files", settings.journal.file_bytes, found.journal.file_bytes),
        ("entry logs", settings.storage.entry_log_bytes_max, found.storage.entry_log_bytes_max),
    ):
        if now < before:
            _log.info("small disk: %s of %d bytes instead of %d", name, now, before)
    return found


async def _usages(settings: BookieSettings, disk: Disk) -> dict[str, DiskUsage]:
    """Return the usage of each folder, or of its nearest existing parent."""
    usages: dict[str, DiskUsage] = {}
    for folder in dict.fromkeys((*settings.ledger_paths, *settings.journal_paths, *_index_folders(settings))):
        path = folder
        while not await disk.exists(path) and "/" in path[1:]:
            path = path.rpartition("/")[0]
        usages[folder] = await disk.usage(path)
    return usages


def _index_folders(settings: BookieSettings) -> Sequence[str]:
    return () if settings.index_dir is None else (settings.index_dir,)


async def open_reserves(settings: BookieSettings, disk: Disk) -> SpaceReserves:
    """Open the existing reserves, one per file system. Allocates nothing. OSError."""
    if not settings.storage.reserve_bytes:
        return SpaceReserves()
    journal_bytes = settings.journal.short_file_bytes + limits.JOURNAL_RESERVE_BYTES
    wanted = [
        (settings.ledger_paths[0], settings.storage.reserve_bytes),
        *((folder, journal_bytes) for folder in settings.journal_paths),
        *((folder, limits.INDEX_RESERVE_BYTES) for folder in _index_folders(settings)),
    ]  # fmt: skip
    sizes: dict[object, tuple[str, int]] = {}
    for folder, size in wanted:
        file_system = (await disk.usage(folder)).file_system or folder
        first, before = sizes.get(file_system, (folder, 0))
        sizes[file_system] = (first, before + size)
    found = [SpaceReserve(disk, folder, size) for folder, size in sizes.values()]
    for reserve in found:
        await reserve.open()
    return SpaceReserves(found)


async def make_first_reserves(reserves: SpaceReserves, settings: BookieSettings, disk: Disk) -> None:
    """Allocate the whole reserve of a new bookie, with space left for journals. StartupError with the sizes."""
    with_journals = [await reserves.find(disk, folder) for folder in settings.journal_paths]
    for reserve in reserves.all:
        usage = await disk.usage(reserve.folder)
        journal_files = 2 * with_journals.count(reserve)
        journal_bytes = journal_files * settings.journal.file_bytes + settings.journal.reserved_bytes
        needed = reserve.missing_bytes + journal_bytes
        if usage.free_bytes < needed or not await reserve.refill(0):
            raise StartupError(
                f"{reserve.folder}: {usage.free_bytes} of {usage.total_bytes} bytes are free; a new bookie of these "
                f"sizes needs {needed}: {reserve.missing_bytes} for its reserve, and {journal_bytes} for journal files "
                "and to keep free; use a larger disk, or lower dbStorage_writeCacheMaxSizeMb and journalMaxSizeMB"
            )
