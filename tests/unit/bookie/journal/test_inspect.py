"""Inspecting a journal folder changes nothing, and reports the content and the damage of every file."""

import random
from dataclasses import replace

import pytest

from quire_bookie.errors import DamagedError
from quire_bookie.journal.format import decode_header, encode_header
from quire_bookie.journal.inspect import InspectedFile, inspect_journal
from quire_bookie.settings.journal import JournalSettings
from tests.sim.disk import SimDisk
from tests.support.journals import FOLDER, open_journal
from tests.unit.bookie.journal.test_damage import ENTRIES, generation_files, written

SETTINGS = JournalSettings(file_bytes=8 * 4096, group_bytes_max=8192, spare_files_max=2)


async def inspected(disk: SimDisk) -> list[InspectedFile]:
    steps = disk.steps
    _mark, files = await inspect_journal(disk, FOLDER)
    assert disk.steps == steps, "an inspection writes nothing"
    return files


async def test_every_entry_is_counted_and_files_are_in_the_order_of_generations() -> None:
    disk = await written(close=True)
    files = [file for file in await inspected(disk) if file.generation is not None]
    assert sum(file.entries for file in files) == ENTRIES and all(file.live for file in files)
    assert [file.path for file in files] == generation_files(disk)
    assert [file.generation for file in files] == sorted(file.generation or 0 for file in files)
    assert not any(file.damaged for file in files)
    assert files[-1].clean_end and all(file.end > 4096 for file in files)


async def test_files_below_the_mark_are_not_live_and_unused_files_are_reported_as_spare() -> None:
    disk = SimDisk()
    journal, _, _ = await open_journal(disk, SETTINGS)
    await journal.close()
    files = await inspected(disk)
    assert files and all(file.live or file.generation is None for file in files)
    for file in files:
        assert file.what
    await disk.replace_file(f"{FOLDER}/journal-00000077.log", bytes(8192))
    assert [file.what for file in await inspected(disk) if "77" in file.path] == ["spare: zeros, not used yet"]


@pytest.mark.parametrize("seed", range(20))
async def test_exactly_the_files_that_a_start_would_refuse_are_reported(seed: int) -> None:
    chance = random.Random(seed)
    disk = await written(entries=40)
    path = chance.choice(generation_files(disk))
    disk.corrupt(path, chance.randrange(4096, len(disk.content(path))), 1 << chance.randrange(8))
    found = await inspected(disk)
    try:
        await open_journal(disk.crash(), SETTINGS)
        refused = None
    except DamagedError as error:
        refused = error.path
    damaged = [file.path for file in found if file.damaged]
    assert damaged == ([] if refused is None else [refused]), [file.what for file in found]


async def test_a_damaged_mark_is_an_error_that_names_it() -> None:
    disk = await written(entries=5)
    disk.corrupt(f"{FOLDER}/last-mark", 20)
    with pytest.raises(DamagedError, match="last-mark"):
        await inspected(disk)


async def test_a_newest_file_that_is_missing_or_ends_early_is_reported() -> None:
    disk = await written()
    newest = generation_files(disk)[-1]
    copy = disk.crash()
    del copy._names[newest], copy._durable_names[newest]
    found = await inspected(copy.crash())
    assert [file.path for file in found if file.damaged] == [FOLDER]
    assert "journal.witness proves" in found[-1].what
    stopped = (await written(close=True)).crash()
    newest = generation_files(stopped)[-1]
    for offset in range(4096, len(stopped.content(newest))):
        stopped.corrupt(newest, offset, stopped.content(newest)[offset])
    found = await inspected(stopped)
    assert [file.path for file in found if file.damaged] == [newest]
    assert "ends at 4096" in next(file.what for file in found if file.damaged)


async def test_a_file_of_another_journal_is_reported() -> None:
    disk = await written(entries=5)
    content = disk.content(generation_files(disk)[0])
    header = replace(decode_header(content[:4096]), uuid=b"x" * 16, generation=99)
    path = f"{FOLDER}/journal-00000099.log"
    await disk.replace_file(path, encode_header(header) + content[4096:])
    found = {file.path: file for file in await inspected(disk)}
    assert found[path].damaged and found[path].what == "belongs to another journal"
