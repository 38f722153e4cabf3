"""When a bookie turns read-only and back."""

import pytest

from quire_bookie.env.disk import DiskUsage
from quire_bookie.server.disk_monitor import DiskMonitor, should_be_read_only
from tests.sim.disk import SimDisk


@pytest.mark.parametrize(
    ("read_only", "used", "expected"),
    [
        (False, (10, 94), False),
        (False, (10, 95), True),
        (False, (96, 10), True),
        (True, (10, 94), True),
        (True, (10, 90), True),
        (True, (89, 10), False),
        (False, (), False),
    ],
)
def test_the_fullest_disk_decides_and_the_way_back_is_below_the_low_watermark(
    read_only: bool, used: tuple[int, ...], expected: bool
) -> None:
    usages = [DiskUsage(100, 100 - each) for each in used]
    assert should_be_read_only(read_only, usages, 0.95, 0.90) is expected


async def test_a_write_without_space_turns_read_only_and_a_look_at_an_empty_disk_turns_back() -> None:
    disk = SimDisk()
    await disk.make_dirs("/data")
    modes: list[bool] = []

    async def set_read_only(read_only: bool) -> None:
        modes.append(read_only)

    monitor = DiskMonitor(disk, ["/data"], set_read_only, threshold=0.95, low_watermark=0.9, interval_s=10.0)
    assert not await monitor.first_look()
    await monitor.look()
    assert modes == []
    monitor.disk_full()
    await monitor.look()
    await monitor.look()
    assert modes == [True, False]
    assert monitor.total_bytes == disk.capacity_bytes


async def test_while_storage_finds_no_space_the_bookie_stays_read_only_however_empty_the_disk_looks() -> None:
    disk = SimDisk()
    await disk.make_dirs("/data")
    modes: list[bool] = []
    stuck = [True]

    async def set_read_only(read_only: bool) -> None:
        modes.append(read_only)

    monitor = DiskMonitor(
        disk,
        ["/data"],
        set_read_only,
        threshold=0.95,
        low_watermark=0.9,
        interval_s=10.0,
        out_of_space=lambda: stuck[0],
    )
    await monitor.look()
    await monitor.look()
    stuck[0] = False
    await monitor.look()
    assert modes == [True, False]
