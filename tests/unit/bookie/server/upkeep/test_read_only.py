"""Tests of reasons for read-only: each is removed only by its source, and the administrator's survives restarts."""

import pytest

from quire_bookie.errors import DiskFullError, StartupError
from quire_bookie.server.upkeep.read_only import (
    WISH_NAME,
    ReadOnlyMode,
    ReadOnlyReason,
    operator_wish,
    set_stopped_read_only,
    write_operator_wish,
)
from tests.sim.disk import SimDisk

A, B = "/data/a", "/data/b"
DISK, OPERATOR, FORCED = ReadOnlyReason.DISK, ReadOnlyReason.OPERATOR, ReadOnlyReason.FORCED


class _Clock:
    def now_ms(self) -> int:
        return 1_700_000_000_000


class _World:
    def __init__(self, disk: SimDisk | None = None) -> None:
        self.disk = disk or SimDisk()
        self.applied: list[bool] = []
        self.mode = ReadOnlyMode(self.disk, (A, B), _Clock(), self._apply)

    async def start(self, *, forced: bool = False) -> "_World":
        for folder in (A, B):
            await self.disk.make_dirs(folder)
        await self.mode.load(forced=forced)
        return self

    async def _apply(self) -> None:
        self.applied.append(self.mode.on)


async def test_a_disk_check_never_removes_the_administrators_reason_or_the_reverse() -> None:
    world = await _World().start()
    await world.mode.set(OPERATOR, True)
    await world.mode.set(DISK, True)
    await world.mode.set(DISK, False)
    assert world.mode.reasons == {OPERATOR}
    await world.mode.set(DISK, True)
    await world.mode.set(OPERATOR, False)
    assert world.mode.reasons == {DISK} and world.mode.on
    await world.mode.set(DISK, False)
    assert not world.mode.on
    assert world.applied == [True, True, True, True, True, False]


async def test_repeating_a_setting_changes_and_applies_nothing() -> None:
    world = await _World().start()
    await world.mode.set(DISK, False)
    await world.mode.set(OPERATOR, False)
    assert world.applied == []
    await world.mode.set(DISK, True)
    await world.mode.set(DISK, True)
    assert world.applied == [True]


async def test_the_administrators_reason_survives_a_crash_and_the_disks_reason_does_not() -> None:
    world = await _World().start()
    await world.mode.set(OPERATOR, True)
    await world.mode.set(DISK, True)
    again = await _World(world.disk.crash()).start()
    assert again.mode.reasons == {OPERATOR}
    await again.mode.set(OPERATOR, False)
    last = await _World(again.disk.crash()).start()
    assert not last.mode.on


async def test_no_other_source_removes_a_configured_read_only_mode() -> None:
    world = await _World().start(forced=True)
    await world.mode.set(OPERATOR, False)
    await world.mode.set(DISK, False)
    assert world.mode.reasons == {FORCED} and world.mode.describe() == "forced"
    assert world.mode.accepts_high_priority


@pytest.mark.parametrize("reason", [OPERATOR, FORCED])
async def test_only_full_disks_refuse_adds_with_high_priority(reason: ReadOnlyReason) -> None:
    world = await _World().start()
    world.mode.disk_accepts_high_priority = False
    await world.mode.set(reason, True)
    assert world.mode.accepts_high_priority
    await world.mode.set(DISK, True)
    assert not world.mode.accepts_high_priority
    world.mode.disk_accepts_high_priority = True
    assert world.mode.accepts_high_priority


@pytest.mark.parametrize("content", [b"", b"\0" * 64, b"quire read-only 99\noff", bytes(range(256))])
async def test_a_damaged_request_file_keeps_the_bookie_read_only(content: bytes) -> None:
    world = await _World().start()
    await world.disk.replace_file(f"{B}/{WISH_NAME}", content)
    again = await _World(world.disk).start()
    assert again.mode.reasons == {OPERATOR}


async def test_the_request_is_written_to_the_next_folder_if_one_is_full() -> None:
    world = await _World().start()
    world.disk.mount(A, 0)
    await world.mode.set(OPERATOR, True)
    assert await world.disk.exists(f"{B}/{WISH_NAME}") and not await world.disk.exists(f"{A}/{WISH_NAME}")
    assert (await _World(world.disk.crash()).start()).mode.on


async def test_a_request_that_cannot_be_written_is_an_error_and_applies_until_the_restart() -> None:
    world = await _World().start()
    world.disk.capacity_bytes = 0
    with pytest.raises(DiskFullError):
        await world.mode.set(OPERATOR, True)
    assert world.mode.reasons == {OPERATOR} and world.applied == [True]


async def test_a_request_that_cannot_be_removed_stays() -> None:
    world = await _World().start()
    await world.mode.set(OPERATOR, True)
    world.disk.fail_next("remove", WISH_NAME, OSError(5, "Input/output error"))
    with pytest.raises(OSError, match="Input/output"):
        await world.mode.set(OPERATOR, False)
    assert world.mode.reasons == {OPERATOR} and world.applied == [True]


async def test_a_removal_covers_every_folder_despite_a_crash_at_any_step() -> None:
    for step in range(20):
        disk = SimDisk()
        for folder in (A, B):
            await disk.make_dirs(folder)
            await disk.replace_file(f"{folder}/{WISH_NAME}", b"on")
        disk.crash_after(step)
        try:
            await write_operator_wish(disk, (A, B), False, _Clock())
        except OSError:
            assert await operator_wish(disk.crash(), (A, B)), "not half removed"
            continue
        assert not await operator_wish(disk.crash(), (A, B))
        return
    raise AssertionError("the removal never ended")


async def test_a_stopped_bookie_is_taken_out_of_service_through_its_folders() -> None:
    world = await _World().start()
    for folder in (A, B):
        await world.disk.make_dirs(f"{folder}/current")
        await world.disk.replace_file(f"{folder}/current/VERSION", b"cookie")
    await set_stopped_read_only(world.disk, (A, B), True, _Clock())
    again = await _World(world.disk.crash()).start()
    assert again.mode.reasons == {OPERATOR}
    await set_stopped_read_only(again.disk, (A, B), True, _Clock())
    await set_stopped_read_only(again.disk, (A, B), False, _Clock())
    assert not (await _World(again.disk.crash()).start()).mode.on


async def test_a_running_bookies_folders_and_foreign_ones_are_refused() -> None:
    world = await _World().start()
    with pytest.raises(StartupError, match="not a ledger folder"):
        await set_stopped_read_only(world.disk, (A,), True, _Clock())
    await world.disk.make_dirs(f"{A}/current")
    await world.disk.replace_file(f"{A}/current/VERSION", b"cookie")
    lock = world.disk.lock_dir(f"{A}/current")
    with pytest.raises(StartupError, match="ask it over HTTP"):
        await set_stopped_read_only(world.disk, (A,), True, _Clock())
    lock.release()
    await set_stopped_read_only(world.disk, (A,), True, _Clock())
