"""The reserve of a file system: files that are released one by one and allocated again."""

import pytest

from quire_bookie.env.reserved_disk import ReservedDisk
from quire_bookie.env.reserved_index import ReservedIndexStore
from quire_bookie.env.space_reserve import FILES, SpaceReserve, SpaceReserves
from quire_bookie.errors import DiskFullError
from quire_bookie.limits import KIB
from tests.sim.disk import SimDisk
from tests.sim.index_store import SimIndexStore

FOLDER = "/ledgers"
SIZE = FILES * 4 * KIB


async def make(capacity_bytes: int = 1 << 30) -> tuple[SimDisk, SpaceReserve]:
    disk = SimDisk()
    disk.capacity_bytes = capacity_bytes
    await disk.make_dirs(FOLDER)
    reserve = SpaceReserve(disk, FOLDER, SIZE)
    await reserve.open()
    return disk, reserve


async def fill(disk: SimDisk) -> None:
    """Use up all free bytes."""
    free = (await disk.usage(FOLDER)).free_bytes
    await disk.replace_file("/ballast", bytes(free))
    assert (await disk.usage(FOLDER)).free_bytes == 0


async def test_it_allocates_its_space_releases_as_requested_and_allocates_again() -> None:
    disk, reserve = await make()
    assert reserve.missing_bytes == SIZE
    assert await reserve.refill(0)
    assert reserve.held_bytes == SIZE == reserve.size_bytes
    assert await reserve.release(5 * KIB)
    assert reserve.missing_bytes == 8 * KIB
    assert await reserve.refill(0)
    assert len(await disk.list_dir(FOLDER)) == FILES


async def test_a_restart_finds_the_files_and_removes_those_of_another_size() -> None:
    disk, reserve = await make()
    await reserve.refill(0)
    await reserve.release(1)
    await disk.replace_file(f"{FOLDER}/reserve.0", b"cut")
    disk = disk.crash("none")
    again = SpaceReserve(disk, FOLDER, SIZE)
    await again.open()
    assert again.missing_bytes == 8 * KIB
    assert len(await disk.list_dir(FOLDER)) == FILES - 2
    smaller = SpaceReserve(disk, FOLDER, 0)
    await smaller.open()
    assert await disk.list_dir(FOLDER) == []


async def test_it_never_leaves_less_than_the_margin_free() -> None:
    disk, reserve = await make(SIZE)
    assert not await reserve.refill(6 * KIB)
    assert reserve.missing_bytes == 8 * KIB
    assert (await disk.usage(FOLDER)).free_bytes >= 6 * KIB


async def test_it_is_released_only_as_far_as_free_space_is_insufficient_and_some_can_be_kept() -> None:
    disk, reserve = await make(2 * SIZE)
    await reserve.refill(0)
    await reserve.ensure(SIZE)
    assert not reserve.missing_bytes
    await fill(disk)
    await reserve.ensure(SIZE, keep_bytes=SIZE // 2)
    assert reserve.held_bytes == SIZE // 2
    await reserve.ensure(SIZE // 2)
    assert reserve.held_bytes == SIZE // 2


async def test_on_a_disk_without_a_free_byte_small_files_and_the_index_are_still_written() -> None:
    disk, reserve = await make(2 * SIZE)
    await reserve.refill(0)
    await fill(disk)
    released: list[int] = []
    reserve.on_release = lambda: released.append(reserve.held_bytes)
    reserves = SpaceReserves([reserve])
    with pytest.raises(DiskFullError):
        await disk.replace_file(f"{FOLDER}/mark", b"mark")
    reserved = ReservedDisk(disk)
    reserved.reserves = reserves
    await reserved.replace_file(f"{FOLDER}/mark", b"mark")
    await disk.replace_file("/more", bytes((await disk.usage(FOLDER)).free_bytes))
    index = ReservedIndexStore(SimIndexStore(disk, f"{FOLDER}/index"), disk, reserves, f"{FOLDER}/index")
    await index.commit([(b"key", b"value")])
    assert await index.get(b"key") == b"value"
    assert len(released) == 2
    assert not reserves.complete


async def test_with_an_empty_reserve_the_error_is_that_of_the_full_disk() -> None:
    disk, reserve = await make(SIZE)
    reserved = ReservedDisk(disk)
    reserved.reserves = SpaceReserves([reserve])
    await reserve.refill(0)
    with pytest.raises(DiskFullError):
        await reserved.replace_file(f"{FOLDER}/large", bytes(2 * SIZE))
    assert reserve.held_bytes == 0


async def test_a_folder_finds_the_reserve_of_its_file_system() -> None:
    disk, reserve = await make()
    disk.mount("/apart", 1 << 20)
    await disk.make_dirs("/apart/journal")
    await disk.make_dirs("/beside/journal")
    reserves = SpaceReserves([reserve])
    assert await reserves.find(disk, f"{FOLDER}/index") is reserve
    assert await reserves.find(disk, "/beside/journal/new") is reserve
    assert await reserves.find(disk, "/apart/journal") is None
