"""Tests of sizes that suit a disk, and of the reserve that follows from them."""

import pytest

from quire_bookie.errors import ConfigError, StartupError
from quire_bookie.limits import MIB
from quire_bookie.server.settings import BookieSettings
from quire_bookie.server.start.disk_fit import fit_to_disk, fitted, make_first_reserves, open_reserves
from quire_bookie.settings.storage import StorageSettings
from tests.sim.disk import SimDisk

GIB = 1024 * MIB
PLAIN = BookieSettings(data_dir="/data")


@pytest.mark.parametrize("total_mib", [64, 200, 400, 1000, 2000, 4000, 100_000])
@pytest.mark.parametrize("bookies", [1, 3])
def test_sizes_fit_each_other_on_disks_of_every_size(total_mib: int, bookies: int) -> None:
    settings = BookieSettings(data_dir="/data", shares_disk_with=bookies)
    found = fitted(settings, total_mib * MIB)
    found.journal.check()
    assert found.storage.reserve_bytes >= found.storage.write_cache_bytes + found.index_cache_bytes // 2
    assert found.storage.compaction_reserved_bytes <= found.storage.reserved_bytes
    # Half of the reserve is enough for the copies of a compaction of the fullest log, on a disk with small logs.
    if total_mib <= 2000:
        reserve = found.storage.reserve_bytes + found.journal.short_file_bytes
        assert reserve // 2 >= found.storage.entry_log_bytes_max * found.compaction.major_threshold


def test_a_large_disk_keeps_the_configured_sizes() -> None:
    found = fitted(PLAIN, 100 * GIB)
    assert found.storage.write_cache_bytes == PLAIN.storage.write_cache_bytes
    assert found.journal.file_bytes == PLAIN.journal.file_bytes
    assert found.index_cache_bytes == PLAIN.index_cache_bytes


async def test_the_smallest_disk_of_a_bookie_counts() -> None:
    disk = SimDisk()
    await disk.make_dirs("/data/journal")
    disk.mount("/data/journal", 400 * MIB)
    found = await fit_to_disk(PLAIN, disk)
    assert found.journal.file_bytes == 25 * MIB
    assert found.storage.write_cache_bytes == 25 * MIB


async def test_a_new_bookie_on_a_disk_that_is_too_small_is_refused_with_the_sizes() -> None:
    disk = SimDisk()
    disk.capacity_bytes = 100 * MIB
    await disk.make_dirs("/data/ledgers")
    await disk.make_dirs("/data/journal")
    settings = await fit_to_disk(PLAIN, disk)
    reserves = await open_reserves(settings, disk)
    with pytest.raises(
        StartupError, match=r"104857600 of 104857600 bytes are free; a new bookie .* needs \d+: \d+ for"
    ):
        await make_first_reserves(reserves, settings, disk)
    assert reserves.held_bytes == 0


async def test_each_file_system_of_a_bookie_has_a_reserve() -> None:
    disk = SimDisk()
    disk.mount("/j", 1 * GIB)
    for folder in ("/j/0", "/l/0", "/x"):
        await disk.make_dirs(folder)
    settings = BookieSettings(data_dir="", journal_dirs=("/j/0",), ledger_dirs=("/l/0",), index_dir="/x")
    reserves = await open_reserves(await fit_to_disk(settings, disk), disk)
    assert [each.folder for each in reserves.all] == ["/l/0", "/j/0"]
    assert reserves.all[1].size_bytes >= settings.journal.short_file_bytes


def test_a_reserve_that_cannot_hold_the_write_cache_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot hold a write cache"):
        StorageSettings(write_cache_bytes=2 * MIB, reserve_bytes=1 * MIB)
