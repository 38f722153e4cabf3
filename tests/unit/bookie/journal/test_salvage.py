"""Salvage of an unsynced journal: every intact group, in order, and nothing else."""

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
    """Append entries one per group, and wait for each; the journal stays open."""
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
    summary = await salvage(disk, FOLDER, records.extend)
    return entries_of(records), summary.invalid_groups


async def test_unsynced_groups_are_acknowledged_and_lost_with_the_power() -> None:
    disk = SimDisk()
    answers = await write(disk, 3)
    assert answers.acked == [0, 1, 2]
    assert disk.boot_id() != disk.crash().boot_id()
    assert await salvaged(disk.crash()) == ([], 0)


async def test_the_end_of_the_process_alone_loses_nothing() -> None:
    disk = SimDisk()
    await write(disk, 30)
    survivor = disk.kill()
    assert survivor.boot_id() == disk.boot_id()
    await sync_files(survivor, FOLDER)
    _, records, _ = await open_journal(survivor.crash(), UNSYNCED)
    assert entries_of(records) == [(entry, payload(entry)) for entry in range(30)]


@pytest.mark.parametrize("seed", range(40))
async def test_exactly_the_complete_groups_are_salvaged_in_order(seed: int) -> None:
    disk = SimDisk()
    await write(disk, 30, mark_at=None if seed % 2 else 12)
    survivor = disk.crash("random", seed)
    found, _ = await salvaged(survivor)
    assert found == sorted(found)
    assert all(data == payload(entry) for entry, data in found)
    if not seed % 2:
        assert all(entry > 12 for entry, _ in found)


async def test_groups_after_holes_and_missing_headers_are_salvaged() -> None:
    disk = SimDisk()
    await write(disk, 30)
    survivor = disk.crash("all")
    paths = sorted(path for path in survivor._names if path.endswith(".log"))
    survivor.corrupt(paths[0], 0)  # the header of the first file
    survivor.corrupt(paths[0], 4096 + 60)  # its first group
    found, invalid = await salvaged(survivor)
    assert [entry for entry, _ in found] == list(range(1, 30))
    assert invalid == 1


async def test_a_group_inside_an_entry_is_not_taken_for_a_group() -> None:
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


async def test_a_journal_that_was_started_again_does_not_deliver_older_groups() -> None:
    disk = SimDisk()
    await write(disk, 30)
    survivor = disk.crash("all")
    await begin_anew(survivor, FOLDER, SystemChance())
    assert await salvaged(survivor) == ([], 0)
    journal, records, _ = await open_journal(survivor, SMALL)
    assert records == []
    await journal.close()


@pytest.mark.parametrize("steps", range(8))
async def test_starting_again_can_be_repeated_after_a_crash(steps: int) -> None:
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


async def test_a_clean_end_is_durable_without_earlier_syncs() -> None:
    disk = SimDisk()
    journal = await Journal.open(disk, FOLDER, UNSYNCED, chance=SystemChance())
    await journal.replay(lambda _: None)
    for entry in range(20):
        journal.append_run(run_of(entry, payload(entry)), None)
    await journal.close()
    _, records, summary = await open_journal(disk.crash(), SMALL)
    assert [entry for entry, _ in entries_of(records)] == list(range(20))
    assert summary.clean


async def test_a_folder_without_a_journal_salvages_nothing() -> None:
    assert await salvaged(SimDisk()) == ([], 0)
    await sync_files(SimDisk(), FOLDER)
