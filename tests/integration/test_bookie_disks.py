"""A started bookie with several ledger folders: full ones, read-only and its reasons, over restarts."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from quire_bookie.limits import MIB
from quire_bookie.metadata import layout
from quire_bookie.metadata.ledger_metadata import encode_ledger_metadata
from quire_bookie.model import BookieId, EntryId, LedgerId, LedgerMetadata, Segment
from quire_bookie.server import BookieState
from quire_bookie.server.upkeep.read_only import ReadOnlyReason, set_stopped_read_only
from quire_bookie.settings.disks import DiskRules
from quire_bookie.settings.journal import JournalSettings
from quire_bookie.settings.storage import StorageSettings
from quire_bookie.wire import client_codec
from quire_bookie.wire.messages import Status
from tests.integration.test_bookie_server import KEY, LEDGER, Client, adds, entry, until
from tests.support.bookie_world import BookieWorld

FOLDERS = ("/ledgers/a", "/ledgers/b")
KIB = 1024


class _Clock:
    def now_ms(self) -> int:
        return 1_700_000_000_000


async def _world(*sizes_bytes: int, force_read_only: bool = False, **changes: object) -> BookieWorld:
    """A bookie with two ledger folders on disks of these sizes, which looks at them all the time."""
    world = BookieWorld().with_settings(
        ledger_dirs=FOLDERS,
        disks=DiskRules(interval_s=0.01, high_priority_bytes_min=64 * KIB),
        journal=JournalSettings(file_bytes=16 * MIB, group_bytes_max=6 * MIB, reserved_bytes=0),
        storage=StorageSettings(
            write_cache_bytes=24 * MIB, read_cache_bytes=4 * MIB, reserved_bytes=0, disk_full_retry_s=0.01
        ),
    )
    disks = replace(world.settings.disks, **changes)  # type: ignore[arg-type]
    world.settings = replace(world.settings, disks=disks, force_read_only=force_read_only)
    for folder, size in zip(FOLDERS, sizes_bytes, strict=True):
        await world.disk.make_dirs(folder)
        world.disk.mount(folder, size)
    await world.start()
    _name_ledgers(world)
    return world


def _name_ledgers(world: BookieWorld) -> None:
    """In the metadata: a full disk collects what the cluster does not have."""
    for ledger in (LEDGER, *range(1, 10)):
        segments = (Segment(EntryId(0), (BookieId("b"),)),)
        value = encode_ledger_metadata(LedgerMetadata(1, 1, 1, segments))
        world.metadata.write(layout.ledger_path(LedgerId(ledger)), value, None)


async def _fill(world: BookieWorld, *shares: float, sizes: Sequence[int]) -> None:
    for folder, share, size in zip(FOLDERS, shares, sizes, strict=True):
        path = f"{folder}/current/filling"
        if await world.disk.exists(path):
            await world.disk.remove(path)
        usage = await world.disk.usage(folder)
        await world.disk.replace_file(path, bytes(max(0, int(size * share) - (size - usage.free_bytes))))


def _recovered(entry_id: int) -> bytes:
    """An add as recovery sends it."""
    return b"".join(client_codec.v2_adds(KEY, [entry(entry_id)], recovery=True, high_priority=True))


def _state(world: BookieWorld) -> BookieState:
    assert world.running is not None
    return world.running.state


async def test_a_bookie_stays_writable_while_one_ledger_folder_has_room_and_turns_read_only_when_none_has() -> None:
    sizes = (1 * MIB, 1 * MIB)
    world = await _world(*sizes)
    running = world.running
    assert running is not None and running.disk_monitor is not None
    monitor = running.disk_monitor
    client = await Client.connect(world)
    assert await client.add(adds(0, 3), 3) == [Status.OK] * 3
    await _fill(world, 0.97, 0.2, sizes=sizes)
    await until(lambda: monitor.writable_folders == 1)
    assert await client.add(adds(3, 3), 3) == [Status.OK] * 3
    await running.storage.flush()
    assert any(name.endswith(".qlog") for name in await world.disk.list_dir(FOLDERS[1]))
    await _fill(world, 0.97, 0.97, sizes=sizes)
    await until(lambda: _state(world) is BookieState.READ_ONLY)
    assert running.read_only_mode.reasons == {ReadOnlyReason.DISK}
    assert await client.add(adds(6, 1), 1) == [Status.READ_ONLY]
    assert await client.add(_recovered(6), 1) == [Status.READ_ONLY], "no room for recovery adds either"
    await _fill(world, 0.93, 0.97, sizes=sizes)
    await until(lambda: running.bookie.accepts_high_priority)
    assert await client.add(_recovered(6), 1) == [Status.OK]
    assert _state(world) is BookieState.READ_ONLY
    await _fill(world, 0.5, 0.97, sizes=sizes)
    await until(lambda: _state(world) is BookieState.WRITABLE)
    assert await client.add(adds(7, 1), 1) == [Status.OK]
    await world.stop()


async def test_the_space_that_clients_are_told_is_that_of_all_ledger_folders() -> None:
    world = await _world(3 * MIB, 2 * MIB)
    assert world.running is not None
    monitor = world.running.disk_monitor
    assert monitor is not None
    total, free = monitor.total_bytes, monitor.free_bytes
    assert total == 5 * MIB and 4 * MIB < free < total
    await world.stop()


async def test_an_operators_wish_outlives_restarts_and_what_the_disks_say_of_themselves() -> None:
    sizes = (1 * MIB, 1 * MIB)
    world = await _world(*sizes)
    assert world.running is not None
    await world.running.set_read_only(True)
    await _fill(world, 0.97, 0.97, sizes=sizes)
    mode = world.running.read_only_mode
    await until(lambda: len(mode.reasons) == 2)
    await _fill(world, 0.1, 0.1, sizes=sizes)
    await until(lambda: len(mode.reasons) == 1)
    assert _state(world) is BookieState.READ_ONLY
    await world.crash()
    running = await world.restart()
    assert running.read_only_mode.reasons == {ReadOnlyReason.OPERATOR}
    assert layout.read_only_path(running.bookie_id) in world.metadata.nodes
    client = await Client.connect(world)
    assert await client.add(adds(0, 1), 1) == [Status.READ_ONLY]
    assert await client.add(_recovered(0), 1) == [Status.OK]
    await running.set_read_only(False)
    await world.crash()
    await world.restart()
    assert _state(world) is BookieState.WRITABLE
    await world.stop()


async def test_a_stopped_bookie_can_be_taken_out_of_service_and_put_back() -> None:
    world = await _world(2 * MIB, 2 * MIB)
    await world.stop()
    await set_stopped_read_only(world.disk, FOLDERS, True, _Clock())
    await world.start()
    assert _state(world) is BookieState.READ_ONLY
    await world.stop()
    await set_stopped_read_only(world.disk, FOLDERS, False, _Clock())
    await world.start()
    assert _state(world) is BookieState.WRITABLE
    await world.stop()


async def test_a_forced_bookie_stays_read_only_whatever_the_operator_asks_and_takes_recovery_adds() -> None:
    world = await _world(2 * MIB, 2 * MIB, force_read_only=True)
    assert world.running is not None
    await world.running.set_read_only(False)
    client = await Client.connect(world)
    assert await client.add(adds(0, 1), 1) == [Status.READ_ONLY]
    assert await client.add(_recovered(0), 1) == [Status.OK]
    await world.stop()


async def test_a_bookie_that_may_not_be_read_only_ends_when_its_disks_are_full() -> None:
    sizes = (1 * MIB, 1 * MIB)
    world = await _world(*sizes, read_only_enabled=False)
    assert world.running is not None
    await _fill(world, 0.97, 0.97, sizes=sizes)
    async with asyncio.timeout(60):
        error = await world.running.failed
    assert "readOnlyModeEnabled" in str(error)
    await world.stop()


async def test_a_disk_that_cannot_be_looked_at_any_more_ends_the_bookie() -> None:
    world = await _world(2 * MIB, 2 * MIB)
    assert world.running is not None
    for _ in range(4):
        world.disk.fail_next("usage", FOLDERS[1], OSError(5, "Input/output error"))
    async with asyncio.timeout(60):
        error = await world.running.failed
    assert FOLDERS[1] in str(error)
    await world.stop()


async def test_a_folder_that_runs_full_in_the_middle_costs_nothing_that_was_acknowledged() -> None:
    world = await _world(600 * KIB, 2 * MIB, high_priority_bytes_min=0)
    ledgers = [LedgerId(each) for each in range(1, 9)]
    client = await Client.connect(world)
    acknowledged: list[LedgerId] = []
    for ledger in ledgers:
        if await client.add(adds(0, 500, ledger=ledger), 500) == [Status.OK] * 500:
            acknowledged.append(ledger)
        assert world.running is not None
        await world.running.storage.flush()
    assert len(acknowledged) == len(ledgers)
    await world.crash()
    running = await world.restart()
    for ledger in acknowledged:
        info = await running.storage.load_ledger(ledger)
        assert info is not None and info.last_entry == 499
    assert running.storage.quarantined == []
    await world.stop()


RESERVED = StorageSettings(
    write_cache_bytes=1 * MIB,
    read_cache_bytes=1 * MIB,
    reserved_bytes=256 * KIB,
    compaction_reserved_bytes=128 * KIB,
    reserve_bytes=2 * MIB,
    disk_full_retry_s=0.01,
)
WITHOUT = replace(RESERVED, reserve_bytes=0)


async def _one_disk(storage: StorageSettings) -> BookieWorld:
    """A bookie of which journal, ledgers and index lie on one disk."""
    world = BookieWorld().with_settings(
        disks=DiskRules(interval_s=0.01),
        journal=JournalSettings(file_bytes=1 * MIB, group_bytes_max=256 * KIB, reserved_bytes=1 * MIB),
        storage=storage,
    )
    await world.start()
    _name_ledgers(world)
    return world


async def _take_every_byte(world: BookieWorld) -> None:
    world.disk.capacity_bytes = world.disk._used_bytes()
    assert (await world.disk.usage("/")).free_bytes == 0


async def test_without_a_free_byte_a_killed_bookie_starts_is_fenced_and_takes_recovery_adds() -> None:
    world = await _one_disk(RESERVED)
    client = await Client.connect(world)
    assert await client.add(adds(0, 200), 200) == [Status.OK] * 200
    for start in range(3):
        await _take_every_byte(world)
        await world.crash()
        await world.restart()
        client = await Client.connect(world)
        assert (await client.read(0, fence_with=KEY))[0] is Status.OK
        assert await client.add(_recovered(200 + start), 1) == [Status.OK]
        assert await client.add(adds(300, 1), 1) in ([Status.READ_ONLY], [Status.FENCED])
        assert world.running is not None
        info = await world.running.storage.load_ledger(LEDGER)
        assert info is not None and info.fenced and info.last_entry == 200 + start
    world.disk.capacity_bytes = 1 << 30
    await until(lambda: _state(world) is BookieState.WRITABLE)
    await world.stop()


async def test_a_bookie_of_an_earlier_version_starts_on_a_full_disk_and_makes_its_reserve_once_it_can() -> None:
    world = await _one_disk(WITHOUT)
    client = await Client.connect(world)
    assert await client.add(adds(0, 200), 200) == [Status.OK] * 200
    await _take_every_byte(world)
    await world.crash()
    world.with_settings(storage=RESERVED)
    await world.restart()
    assert _state(world) is BookieState.READ_ONLY
    assert world.running is not None
    info = await world.running.storage.load_ledger(LEDGER)
    assert info is not None and info.last_entry == 199
    world.disk.capacity_bytes = 1 << 30
    await until(lambda: _state(world) is BookieState.WRITABLE)
    names = await world.disk.list_dir(world.settings.ledger_paths[0])
    assert sum(name.startswith("reserve.") for name in names) == 16
    await world.stop()
