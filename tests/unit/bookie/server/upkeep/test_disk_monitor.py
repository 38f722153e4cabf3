"""Tests when folders count as full, and when the bookie turns read-only and writable again."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire_bookie.env.disk import DiskUsage
from quire_bookie.errors import StartupError, StorageError
from quire_bookie.server.upkeep.disk_monitor import DiskMonitor, full_folders, sum_of, used_share
from quire_bookie.settings.disks import DiskRules
from quire_bookie.storage.logs.log_directories import LogDirectories
from tests.sim.disk import SimDisk

RULES = DiskRules(threshold=0.95, warn_threshold=0.9, low_watermark=0.8, interval_s=10.0, high_priority_bytes_min=8)
FOLDERS = ("/data/a", "/data/b")


def _usages(*used: int) -> list[DiskUsage]:
    return [DiskUsage(100, 100 - each, file_system=at + 1) for at, each in enumerate(used)]


@pytest.mark.parametrize(
    ("before", "used", "expected"),
    [
        ((False, False), (95, 10), [False, False]),
        ((False, False), (96, 10), [True, False]),
        ((False, False), (96, 97), [True, True]),
        ((True, False), (90, 10), [True, False]),
        ((True, False), (80, 10), [True, False]),
        ((True, False), (79, 10), [False, False]),
        ((True, True), (94, 70), [True, True]),  # together 82 %: above the low watermark
        ((True, True), (94, 50), [False, False]),  # together 72 %, and neither is above the threshold
        ((True, True), (96, 50), [True, False]),
        ((True,), (85,), [True]),
        ((True,), (79,), [False]),
        ((), (), []),
    ],
)
def test_a_full_folder_is_writable_again_below_the_low_watermark_of_itself_or_of_all_together(
    before: tuple[bool, ...], used: tuple[int, ...], expected: list[bool]
) -> None:
    assert full_folders(_usages(*used), before, RULES) == expected


@given(st.lists(st.tuples(st.integers(0, 100), st.booleans()), min_size=1, max_size=5))
def test_no_folder_above_the_threshold_is_writable_and_none_below_the_watermark_is_full_beside_a_writable_one(
    folders: list[tuple[int, bool]],
) -> None:
    usages = _usages(*(used for used, _ in folders))
    before = [full for _, full in folders]
    after = full_folders(usages, before, RULES)
    for usage, full in zip(usages, after, strict=True):
        if used_share(usage) > RULES.threshold:
            assert full
        if used_share(usage) < RULES.writable_below and not all(before):
            assert not full
    assert full_folders(usages, after, RULES) == after or all(before), "a second check changes nothing"


def test_folders_on_one_file_system_are_counted_once() -> None:
    one = DiskUsage(100, 40, file_system=7)
    assert sum_of([one, one, DiskUsage(50, 5, file_system=8)]) == DiskUsage(150, 45)
    assert sum_of([DiskUsage(100, 40), DiskUsage(100, 40)]) == DiskUsage(200, 80), "unknown ones may be different"
    assert sum_of([]) == DiskUsage(0, 0)


class _World:
    """Holds two ledger folders on separate disks, and a journal on a third."""

    def __init__(self, rules: DiskRules = RULES) -> None:
        self.disk = SimDisk()
        self.modes: list[bool] = []
        self.failures: list[BaseException] = []
        self.storage_full = False
        self.directories = LogDirectories(self.disk, FOLDERS, 0)
        self.monitor = DiskMonitor(
            self.disk,
            self.directories,
            rules,
            self._set,
            journal_folders=["/data/journal"],
            journal_needs_bytes=64,
            storage_full=lambda: self.storage_full,
            on_failure=self.failures.append,
        )

    async def make(self) -> "_World":
        for path in (*FOLDERS, "/data/journal"):
            await self.disk.make_dirs(path)
            self.disk.mount(path, 100)
        return self

    async def fill(self, *sizes: int) -> None:
        for path, size in zip(FOLDERS, sizes, strict=True):
            await self.disk.replace_file(f"{path}/filling", b"")
            await self.disk.replace_file(f"{path}/filling", bytes(size))

    async def _set(self, read_only: bool) -> None:
        self.modes.append(read_only)


async def test_one_full_folder_is_not_used_and_the_bookie_turns_read_only_when_all_are_full() -> None:
    world = await _World().make()
    await world.fill(96, 10)
    assert not await world.monitor.first_look()
    assert [folder.over_threshold for folder in world.directories.all] == [True, False]
    assert (world.monitor.writable_folders, world.monitor.any_full, world.monitor.any_almost_full) == (1, True, True)
    assert (world.monitor.total_bytes, world.monitor.free_bytes) == (200, 94)
    await world.fill(96, 96)
    await world.monitor.check()
    await world.monitor.check()
    assert world.modes == [True] and world.monitor.writable_folders == 0
    assert not world.monitor.accepts_high_priority, "4 bytes free, 8 are needed"
    await world.fill(96, 92)
    await world.monitor.check()
    assert world.modes == [True] and world.monitor.accepts_high_priority
    await world.fill(60, 92)
    await world.monitor.check()
    assert world.modes == [True, False]
    assert not world.monitor.any_full and world.monitor.any_almost_full


async def test_with_the_setting_for_any_full_disk_one_full_folder_is_enough() -> None:
    world = await _World(replace(RULES, on_any_full=True)).make()
    await world.fill(96, 10)
    assert await world.monitor.first_look()
    await world.fill(20, 10)
    await world.monitor.check()
    assert world.modes == [False]


async def test_a_bookie_that_may_not_be_read_only_ends_instead() -> None:
    world = await _World(replace(RULES, read_only_enabled=False)).make()
    await world.monitor.first_look()
    await world.fill(96, 97)
    await world.monitor.check()
    assert world.modes == [] and isinstance(world.failures[0], StorageError)
    with pytest.raises(StartupError, match="readOnlyModeEnabled"):
        await world.monitor.first_look()


async def test_a_journal_without_space_turns_read_only_until_another_file_fits() -> None:
    world = await _World().make()
    assert not await world.monitor.first_look()
    await world.disk.replace_file("/data/journal/file", bytes(50))
    await world.monitor.check()
    assert world.modes == [], "journals have no threshold"
    world.monitor.disk_full()
    await world.monitor.check()
    await world.monitor.check()
    assert world.modes == [True]
    await world.disk.remove("/data/journal/file")
    await world.monitor.check()
    assert world.modes == [True, False]


async def test_a_write_without_space_turns_read_only_until_the_next_check_even_if_the_disks_have_space() -> None:
    world = await _World().make()
    await world.monitor.first_look()
    world.monitor.disk_full()
    await world.monitor.check()
    await world.monitor.check()
    assert world.modes == [True, False]


async def test_while_storage_finds_no_space_the_bookie_stays_read_only_even_if_the_disk_has_space() -> None:
    world = await _World().make()
    world.storage_full = True
    await world.monitor.check()
    await world.monitor.check()
    world.storage_full = False
    await world.monitor.check()
    assert world.modes == [True, False]


async def test_a_folder_whose_writes_found_no_space_is_writable_again_once_a_check_finds_space() -> None:
    world = await _World().make()
    await world.fill(85, 10)
    await world.monitor.first_look()
    world.directories.note_out_of_space(FOLDERS[0])
    await world.monitor.check()
    assert world.directories[FOLDERS[0]].out_of_space
    await world.fill(20, 10)
    await world.monitor.check()
    assert not world.directories[FOLDERS[0]].out_of_space and world.modes == []


async def test_a_folder_that_cannot_be_checked_gets_no_logs_and_fails_the_bookie_the_second_time() -> None:
    world = await _World().make()
    await world.monitor.first_look()
    for checks, failed in ((1, False), (2, True)):
        world.disk.fail_next("usage", FOLDERS[1], OSError(5, "Input/output error"))
        await world.monitor.check()
        assert bool(world.failures) is failed, checks
        assert world.directories.choose(1) == FOLDERS[0]
    assert FOLDERS[1] in str(world.failures[0]) and world.modes == []


async def test_a_single_failed_check_is_ignored_after_a_successful_one() -> None:
    world = await _World().make()
    for _ in range(3):
        world.disk.fail_next("usage", FOLDERS[1], OSError(5, "Input/output error"))
        await world.monitor.check()
        await world.monitor.check()
    assert world.failures == [] and world.monitor.writable_folders == 2


async def test_the_monitor_calls_back_after_each_check() -> None:
    seen: list[bool] = []
    world = await _World().make()
    monitor = DiskMonitor(world.disk, world.directories, RULES, world._set, on_look=lambda: seen.append(True))
    await monitor.first_look()
    await monitor.check()
    assert seen == [True, True]
