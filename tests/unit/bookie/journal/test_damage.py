"""Bytes that change outside the journal: reported with file and offset, or a torn tail; never wrong data."""

import asyncio
import random
from typing import Any

import pytest

from quire_bookie.env.disk import DiskFile
from quire_bookie.errors import DamagedError
from quire_bookie.journal.format import DATA_START, GroupHead
from quire_bookie.journal.scan import find_group
from quire_bookie.settings.journal import JournalSettings
from tests.sim.disk import SimDisk
from tests.support.journals import FOLDER, entries_of, open_journal, run_of

SETTINGS = JournalSettings(file_bytes=8 * 4096, group_bytes_max=8192, spare_files_max=2)
FIRST = f"{FOLDER}/journal-00000001.log"
ENTRIES = 80


def payload(entry: int) -> bytes:
    return random.Random(entry).randbytes(700 + entry % 30 * 31)


async def written(*, close: bool = False, entries: int = ENTRIES) -> SimDisk:
    """Return a disk with a journal of several files, one group per entry."""
    disk = SimDisk()
    journal, _, _ = await open_journal(disk, SETTINGS)
    for entry in range(entries):
        durable = asyncio.get_running_loop().create_future()
        journal.append_run(run_of(entry, payload(entry)), durable.set_result)
        await durable
    if close:
        await journal.close()
    return disk.crash()


def generation_files(disk: SimDisk) -> list[str]:
    """Return the files in use according to their headers, oldest first."""
    live = {}
    for path in disk._names:
        content = disk.content(path)
        if path.endswith(".log") and content[:8] == b"QuireJnl":
            live[int.from_bytes(content[32:40], "little")] = path
    return [live[generation] for generation in sorted(live)]


async def ids_after(disk: SimDisk) -> list[int]:
    _, records, _ = await open_journal(disk, SETTINGS)
    found = entries_of(records)
    assert all(data == payload(entry) for entry, data in found)
    return [entry for entry, _ in found]


async def test_a_flipped_bit_anywhere_in_a_finished_file_is_reported_or_harmless() -> None:
    disk = await written()
    path = generation_files(disk)[1]
    chance = random.Random(1)
    size = len(disk.content(path))
    reported = 0
    for offset in [*range(0, 80, 7), *sorted(chance.sample(range(size), 120))]:
        copy = disk.crash()
        copy.corrupt(path, offset, 1 << chance.randrange(8))
        try:
            assert await ids_after(copy) == list(range(ENTRIES)), "padding"
        except DamagedError as error:
            reported += 1
            assert offset < 4096 or (error.path == path and error.offset <= offset < error.offset + 4096)
    assert reported > 40


async def test_a_flipped_bit_in_the_last_file_is_reported_if_a_later_group_proves_it() -> None:
    disk = await written()
    path = generation_files(disk)[-1]
    intact = disk.content(path)
    last = max(offset for offset in range(DATA_START, len(intact), 512) if _is_live_group(intact, offset))
    for offset in range(DATA_START, last, 301):
        copy = disk.crash()
        copy.corrupt(path, offset)
        try:
            assert await ids_after(copy) == list(range(ENTRIES)), "padding"
        except DamagedError as error:
            assert error.path == path and DATA_START <= error.offset <= offset
            assert f"damaged at offset {error.offset}" in str(error)


async def test_damage_to_the_very_last_group_after_a_crash_looks_like_a_torn_tail() -> None:
    disk = await written()
    path = generation_files(disk)[-1]
    content = disk.content(path)
    last = max(offset for offset in range(DATA_START, len(content), 512) if _is_live_group(content, offset))
    disk.corrupt(path, last + 100)
    assert await ids_after(disk) == list(range(ENTRIES - 1))


async def test_a_clean_shutdown_makes_damage_to_the_last_entries_provable() -> None:
    disk = await written(close=True, entries=4)
    content = disk.content(FIRST)
    groups = [offset for offset in range(DATA_START, len(content), 512) if _is_live_group(content, offset)]
    assert len(groups) == 5
    disk.corrupt(FIRST, groups[-2] + 100)
    with pytest.raises(DamagedError) as caught:
        await ids_after(disk)
    assert (caught.value.path, caught.value.offset) == (FIRST, groups[-2])


@pytest.mark.parametrize("which", [0, 1, -1])
async def test_a_needed_file_that_was_cut_anywhere_is_reported(which: int) -> None:
    disk = await written()
    path = generation_files(disk)[which]
    size = len(disk.content(path))
    for cut in [*range(0, size, 1009), size - 1]:
        copy = disk.crash()
        copy.cut(path, cut)
        with pytest.raises(DamagedError, match="truncated") as caught:
            await ids_after(copy)
        assert (caught.value.path, caught.value.offset) == (path, cut)


@pytest.mark.parametrize("which", [0, 1])
async def test_a_missing_generation_is_reported(which: int) -> None:
    disk = await written()
    path = generation_files(disk)[which]
    del disk._names[path]
    with pytest.raises(DamagedError, match=f"generation {which + 1} is missing"):
        await ids_after(disk)


async def test_a_last_file_with_a_damaged_header_is_not_a_spare() -> None:
    disk = await written()
    path = generation_files(disk)[-1]
    disk.corrupt(path, 20)
    with pytest.raises(DamagedError, match="but a group of generation") as caught:
        await ids_after(disk)
    assert (caught.value.path, caught.value.offset) == (path, 0)


async def test_a_last_file_with_a_zeroed_header_is_not_a_spare() -> None:
    disk = await written()
    path = generation_files(disk)[-1]
    for offset in range(100):
        disk.corrupt(path, offset, disk.content(path)[offset])
    with pytest.raises(DamagedError, match="but a group of generation"):
        await ids_after(disk)


async def test_a_spare_whose_header_was_torn_when_it_went_live_is_a_spare() -> None:
    disk = SimDisk()
    journal, _, _ = await open_journal(disk, SETTINGS)
    for entry in range(60):
        durable = asyncio.get_running_loop().create_future()
        journal.append_run(run_of(entry, payload(entry)), durable.set_result)
        await durable
        if entry == 30:
            await journal.set_mark(journal.position())
            marked = entry + 1
    disk = disk.crash()
    files = set(generation_files(disk))
    stale = [path for path in files if int.from_bytes(disk.content(path)[32:40], "little") < journal.mark.generation]
    for path in stale:
        disk.corrupt(path, 33)
    assert await ids_after(disk) == list(range(marked, 60))


async def test_stale_generations_in_recycled_files_are_never_delivered() -> None:
    disk = SimDisk()
    journal, _, _ = await open_journal(disk, SETTINGS)
    for entry in range(300):
        durable = asyncio.get_running_loop().create_future()
        journal.append_run(run_of(entry, payload(entry % 5)), durable.set_result)
        await durable
        if entry % 9 == 8:
            await journal.set_mark(journal.position())
            flushed = entry + 1
    assert journal._files.recycled > 5
    disk = disk.crash()
    assert sum(_is_group(disk.content(p), o) for p in disk._names for o in range(4096, 8 * 4096, 512)) > 15
    _, records, _ = await open_journal(disk, SETTINGS)
    assert [entry for entry, _ in entries_of(records)] == list(range(flushed, 300))


async def test_a_file_of_another_journal_is_refused() -> None:
    disk, other = await written(), await written()
    foreign = generation_files(other)[0]
    disk._names[f"{FOLDER}/journal-00000099.log"] = other._names[foreign]
    with pytest.raises(DamagedError, match="another journal"):
        await ids_after(disk)


async def test_a_copy_of_a_file_is_refused() -> None:
    disk = await written()
    disk._names[f"{FOLDER}/journal-00000099.log"] = disk._names[generation_files(disk)[-1]]
    with pytest.raises(DamagedError, match="also has generation"):
        await ids_after(disk)


async def test_a_damaged_mark_is_reported_and_not_treated_as_missing() -> None:
    disk = await written()
    for offset in range(len(disk.content(f"{FOLDER}/last-mark"))):
        copy = disk.crash()
        copy.corrupt(f"{FOLDER}/last-mark", offset)
        with pytest.raises(DamagedError, match="last-mark"):
            await ids_after(copy)


def _is_group(content: bytes, offset: int) -> bool:
    return content[offset : offset + 4] == b"QJg1"


def _is_live_group(content: bytes, offset: int) -> bool:
    return _is_group(content, offset) and content[offset + 24 : offset + 32] == content[32:40]


async def test_the_rest_of_the_last_file_is_searched_after_a_crash_but_not_after_a_clean_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A default file has 64 MiB: searching it takes longer than the rest of a start."""
    searched: list[int] = []

    async def noted(file: DiskFile, start: int, *rest: Any, **options: Any) -> GroupHead | None:
        searched.append(start)
        return await find_group(file, start, *rest, **options)

    monkeypatch.setattr("quire_bookie.journal.replay.find_group", noted)
    assert await ids_after(await written(entries=4)) == [0, 1, 2, 3]
    assert len(searched) == 1 and searched[0] > DATA_START
    assert await ids_after(await written(entries=4, close=True)) == [0, 1, 2, 3]
    assert len(searched) == 1


async def test_a_clean_end_in_the_previous_file_does_not_hide_damage_in_the_last_file() -> None:
    disk = await written(entries=2, close=True)
    journal, _, _ = await open_journal(disk, SETTINGS)
    for entry in (2, 3):
        durable = asyncio.get_running_loop().create_future()
        journal.append_run(run_of(entry, payload(entry)), durable.set_result)
        await durable
    crashed = disk.crash()
    path = generation_files(crashed)[-1]
    assert path != FIRST
    crashed.corrupt(path, DATA_START + 100)
    with pytest.raises(DamagedError) as caught:
        await ids_after(crashed)
    assert (caught.value.path, caught.value.offset) == (path, DATA_START)
