"""What is brought back of a journal that was not synced: everything intact, in order, and nothing that is not."""

import contextlib
import random
from dataclasses import replace

import pytest

from quire_bookie.env.chance import SystemChance
from quire_bookie.journal import Journal, JournalRecord
from quire_bookie.journal.salvage import begin_anew, salvage, sync_files
from tests.sim.disk import SimCrashError, SimDisk
from tests.support.journals import FOLDER, SMALL, Answers, entries_of, open_journal, run_of

UNSYNCED = replace(SMALL, sync_data=False)


def payload(entry: int) -> bytes:
    return random.Random(entry).randbytes(40 + entry * 397 % 5000)


async def write(disk: SimDisk, count: int, *, mark_at: int | None = None) -> Answers:
    """Append one entry a group, and wait for each; the journal stays open."""
    journal, _, _ = await open_journal(disk, UNSYNCED)
    answers = Answers()
    for entry in range(count):
        journal.append_run(run_of(entry, payload(entry)), answers.of(entry))
        while entry not in answers.acked:
            await disk.pause()
        if entry == mark_at:
            await journal.set_mark(journal.position())
    return answers


async def salvaged(disk: SimDisk) -> tuple[list[tuple[int, bytes]], int]:
    records: list[JournalRecord] = []
    summary = await salvage(disk, FOLDER, records.append)
    return entries_of(records), summary.invalid_groups


async def test_unsynced_groups_are_acknowledged_and_gone_with_the_power() -> None:
    disk = SimDisk()
    answers = await write(disk, 3)
    assert answers.acked == [0, 1, 2]
    assert disk.boot_id() != disk.crash().boot_id()
    assert await salvaged(disk.crash()) == ([], 0)


async def test_the_end_of_the_process_alone_takes_nothing() -> None:
    disk = SimDisk()
    await write(disk, 30)
    survivor = disk.kill()
    assert survivor.boot_id() == disk.boot_id()
    await sync_files(survivor, FOLDER)
    _, records, _ = await open_journal(survivor.crash(), UNSYNCED)
    assert entries_of(records) == [(entry, payload(entry)) for entry in range(30)]


@pytest.mark.parametrize("seed", range(40))
async def test_whatever_arrived_whole_comes_back_in_order_and_nothing_else(seed: int) -> None:
    disk = SimDisk()
    await write(disk, 30, mark_at=None if seed % 2 else 12)
    survivor = disk.crash("random", seed)
    found, _ = await salvaged(survivor)
    assert found == sorted(found)
    assert all(data == payload(entry) for entry, data in found)
    if not seed % 2:
        assert all(entry > 12 for entry, _ in found)


async def test_everything_that_arrived_is_found_behind_holes_and_missing_headers() -> None:
    disk = SimDisk()
    await write(disk, 30)
    survivor = disk.crash("all")
    paths = sorted(path for path in survivor._names if path.endswith(".log"))
    survivor.corrupt(paths[0], 0)  # the header of the first file
    survivor.corrupt(paths[0], 4096 + 60)  # its first group
    found, invalid = await salvaged(survivor)
    assert [entry for entry, _ in found] == list(range(1, 30))
    assert invalid == 1


async def test_a_group_within_an_entry_is_an_entry_and_no_group() -> None:
    disk = SimDisk()
    await write(disk, 1)
    inner = disk.content(f"{FOLDER}/journal-00000001.log")[4096:4608]
    journal, _, _ = await open_journal(disk.kill(), UNSYNCED)
    disk = journal._disk  # type: ignore[assignment]
    answers = Answers()
    journal.append_run(run_of(1, bytes(512 - 84) + inner * 6), answers.of(1))
    while not answers.acked:
        await disk.pause()
    found, _ = await salvaged(disk.crash("all"))
    assert [entry for entry, _ in found] == [0, 1]


async def test_a_journal_that_began_anew_never_shows_what_was_there_before() -> None:
    disk = SimDisk()
    await write(disk, 30)
    survivor = disk.crash("all")
    await begin_anew(survivor, FOLDER, SystemChance())
    assert await salvaged(survivor) == ([], 0)
    journal, records, _ = await open_journal(survivor, SMALL)
    assert records == []
    await journal.close()


@pytest.mark.parametrize("steps", range(8))
async def test_a_crash_while_it_begins_anew_is_begun_anew_again(steps: int) -> None:
    disk = SimDisk()
    await write(disk, 30)
    survivor = disk.crash("all")
    survivor.crash_after(steps)
    with contextlib.suppress(SimCrashError):
        await begin_anew(survivor, FOLDER, SystemChance())
    again = survivor.crash("random", steps)
    await salvaged(again)
    await begin_anew(again, FOLDER, SystemChance())
    journal, records, _ = await open_journal(again)
    assert records == []
    await journal.close()


async def test_a_clean_end_is_durable_without_any_sync_before() -> None:
    disk = SimDisk()
    journal = await Journal.open(disk, FOLDER, UNSYNCED, chance=SystemChance())
    await journal.replay(lambda _: None)
    for entry in range(20):
        journal.append_run(run_of(entry, payload(entry)), None)
    await journal.close()
    _, records, summary = await open_journal(disk.crash(), SMALL)
    assert [entry for entry, _ in entries_of(records)] == list(range(20))
    assert summary.clean


async def test_a_folder_without_a_journal_holds_nothing() -> None:
    assert await salvaged(SimDisk()) == ([], 0)
    await sync_files(SimDisk(), FOLDER)
