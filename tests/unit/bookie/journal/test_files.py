"""Live and spare journal files, and crashes during the creation of a file."""

import pytest

from quire_bookie.errors import DamagedError, DiskFullError
from quire_bookie.journal.files import JournalFiles
from quire_bookie.journal.format import FileHeader, JournalPosition, Mark, encode_header
from quire_bookie.settings.journal import JournalSettings
from tests.sim.disk import SimCrashError, SimDisk

UUID = bytes(16)
SETTINGS = JournalSettings(file_bytes=65536, group_bytes_max=8192, spare_files_max=2, reserved_bytes=1000)
MARK = Mark(UUID, JournalPosition(3, 4096, 0))


async def empty_disk() -> SimDisk:
    disk = SimDisk()
    await disk.make_dirs("/j")
    return disk


async def put(disk: SimDisk, number: int, generation: int | None, size: int = 65536) -> str:
    path = f"/j/journal-{number:08d}.log"
    await disk.create_journal(path, size)
    if generation is not None:
        file = await disk.open(path)
        await file.write(0, [encode_header(FileHeader(UUID, generation, size, 0, 0, 512))])
        await file.sync()
    return path


async def test_generations_from_the_mark_on_are_live_and_others_spare() -> None:
    disk = await empty_disk()
    for number, generation in enumerate((3, 2, 4, None), start=1):
        await put(disk, number, generation)
    files = await JournalFiles.open(disk, "/j", SETTINGS, MARK)
    assert {generation: file.path[-5:] for generation, file in files.live.items()} == {3: "1.log", 4: "3.log"}
    assert files.spares == 2
    assert {(await files.take_spare())[0][-5:] for _ in range(2)} == {"2.log", "4.log"}
    assert (await files.take_spare())[0][-5:] == "5.log"
    assert (files.recycled, files.created) == (2, 1)


async def test_spares_of_another_size_and_too_many_are_removed() -> None:
    disk = await empty_disk()
    for number in range(1, 6):
        await put(disk, number, None)
    odd = await put(disk, 6, 1, size=8192)
    files = await JournalFiles.open(disk, "/j", SETTINGS, MARK)
    assert files.spares == 2
    assert odd not in disk._names
    assert len(disk._names) == 2


async def test_files_below_the_mark_are_recycled_and_the_rest_stays() -> None:
    disk = await empty_disk()
    for number, generation in enumerate((3, 4, 5, 6, 7), start=1):
        await put(disk, number, generation)
    files = await JournalFiles.open(disk, "/j", SETTINGS, MARK)
    await files.recycle_below(6)
    assert sorted(files.live) == [6, 7]
    assert files.spares == 2
    assert len(disk.crash()._names) == 4, "the removal is durable"


async def test_a_crash_during_the_creation_of_a_file_leaves_no_live_file() -> None:
    for at in range(3):
        disk = await empty_disk()
        files = await JournalFiles.open(disk, "/j", SETTINGS, MARK)
        disk.crash_after(at)
        with pytest.raises(SimCrashError):
            await files.take_spare()
        survivor = disk.crash("all")
        files = await JournalFiles.open(survivor, "/j", SETTINGS, MARK)
        assert files.live == {}
        assert all(len(inode.current) == 65536 for inode in survivor._names.values())
        await files.take_spare()


async def test_a_full_disk_uses_up_no_number() -> None:
    disk = await empty_disk()
    files = await JournalFiles.open(disk, "/j", SETTINGS, MARK)
    disk.capacity_bytes = 100
    with pytest.raises(DiskFullError):
        await files.take_spare()
    disk.capacity_bytes = 1 << 20
    assert await files.take_spare() == ("/j/journal-00000001.log", SETTINGS.file_bytes)


async def test_a_new_file_leaves_the_reserve_for_flushes() -> None:
    disk = await empty_disk()
    files = await JournalFiles.open(disk, "/j", SETTINGS, MARK)
    disk.capacity_bytes = SETTINGS.file_bytes + SETTINGS.reserved_bytes - 1
    with pytest.raises(DiskFullError, match="must leave 1000 for flushes"):
        await files.take_spare()
    disk.capacity_bytes += 1
    await files.take_spare()


async def test_a_short_file_is_created_only_without_a_spare_and_never_becomes_one() -> None:
    disk = await empty_disk()
    await put(disk, 1, None)
    files = await JournalFiles.open(disk, "/j", SETTINGS, MARK)
    assert await files.take_spare(short=True) == ("/j/journal-00000001.log", 65536)
    path, size = await files.take_spare(short=True)
    assert size == 2 * SETTINGS.group_bytes_max == len(disk._names[path].current)
    files.went_live(path, FileHeader(UUID, 3, size, 0, 0, 512))
    await files.recycle_below(4)
    assert files.spares == 0
    assert path not in disk.crash()._names


async def test_an_unused_short_file_is_removed_and_an_unused_full_size_one_becomes_a_spare() -> None:
    disk = await empty_disk()
    files = await JournalFiles.open(disk, "/j", SETTINGS, MARK)
    await files.put_back(*await files.take_spare(short=True))
    assert (files.spares, len(disk._names)) == (0, 0)
    await files.put_back(*await files.take_spare())
    assert (files.spares, len(disk._names)) == (1, 1)


async def test_other_names_in_the_folder_are_left_alone() -> None:
    disk = await empty_disk()
    await disk.replace_file("/j/notes.txt", b"mine")
    await disk.replace_file("/j/journal-1.log", b"another name")
    files = await JournalFiles.open(disk, "/j", SETTINGS, MARK)
    assert not files.any
    assert len(disk._names) == 2


async def test_a_file_too_short_for_a_header_is_reported() -> None:
    disk = await empty_disk()
    path = await put(disk, 1, 3)
    disk.cut(path, 0)
    with pytest.raises(DamagedError, match="header is missing"):
        await JournalFiles.open(disk, "/j", SETTINGS, MARK)
