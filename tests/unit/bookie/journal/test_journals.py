"""Several journals behind one API: routing, marks, force, poison, and replay after a journal was added."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from quire_bookie.env.chance import SystemChance
from quire_bookie.errors import DiskFullError, JournalPoisonedError, QuireError
from quire_bookie.journal import (
    Done,
    EntryRecord,
    JournalPositions,
    JournalRecord,
    Journals,
    JournalStats,
    MasterKeyRecord,
)
from quire_bookie.journal.journals import sum_stats
from quire_bookie.model import LedgerId
from tests.sim.disk import SimDisk, Survival
from tests.support.journals import SMALL, Answers, run_of

FOLDERS = ("/j0", "/j1", "/j2")


async def open_journals(
    disk: SimDisk, folders: tuple[str, ...] = FOLDERS[:2], *, write_data: bool = True
) -> tuple[Journals, list[JournalRecord]]:
    """Open and replay; return the replayed records."""
    settings = replace(SMALL, write_data=write_data)
    journals = await Journals.open(disk, folders, settings, chance=SystemChance())
    records: list[JournalRecord] = []
    await journals.replay(records.extend)
    return journals, records


def found(records: list[JournalRecord]) -> list[tuple[int, int]]:
    """Return (ledger, first entry) of each run, in the order of replay."""
    return [(record.run.ledger, record.run.first) for record in records if isinstance(record, EntryRecord)]


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_single_journal_is_appended_to_directly() -> None:
    journals, _ = await open_journals(SimDisk(), FOLDERS[:1])
    assert journals.append_run == journals.journals[0].append_run
    assert journals.stats is journals.journals[0].stats


async def test_each_ledger_is_in_one_journal_chosen_by_its_id() -> None:
    disk = SimDisk()
    journals, _ = await open_journals(disk)
    answers = Answers()
    for ledger in range(6):
        journals.append_master_key(LedgerId(ledger), b"key")
        journals.append_run(run_of(0, b"x", ledger=ledger), answers.of(ledger))
        journals.append_fence(LedgerId(ledger), None)
        journals.append_explicit_lac(LedgerId(ledger), b"packet", None)
    await settle()
    assert sorted(answers.acked, key=str) == list(range(6))
    assert [journal.stats.records for journal in journals.journals] == [12, 12]
    assert (journals.stats.records, journals.stats.entries) == (24, 6)
    survivor = disk.crash()
    for number, folder in enumerate(FOLDERS[:2]):
        _, records = await open_journals(survivor, (folder,))
        assert found(records) == [(ledger, 0) for ledger in range(number, 6, 2)]


async def test_marks_are_captured_and_moved_per_journal() -> None:
    disk = SimDisk()
    journals, _ = await open_journals(disk)
    for ledger in (0, 1):
        journals.append_run(run_of(0, b"old", ledger=ledger), None)
    await settle()
    captured = journals.position()
    for ledger in (0, 1):
        journals.append_run(run_of(1, b"new", ledger=ledger), None)
    await settle()
    await journals.set_mark(captured)
    assert journals.mark == captured
    _, records = await open_journals(disk.crash())
    assert found(records) == [(0, 1), (1, 1)]


async def test_no_mark_moves_before_all_journals_were_replayed() -> None:
    disk = SimDisk()
    journals, _ = await open_journals(disk)
    for ledger in (0, 1):
        journals.append_run(run_of(0, b"x", ledger=ledger), None)
    await settle()
    survivor = disk.crash()
    journals = await Journals.open(survivor, FOLDERS[:2], SMALL, chance=SystemChance())
    before = journals.mark
    seen: list[JournalPositions] = []

    async def flush_at_each(_: Sequence[JournalRecord]) -> None:
        seen.append(journals.position())
        await journals.set_mark(journals.position())

    await journals.replay(flush_at_each)
    assert seen == [before, before]
    assert all(now > mark for now, mark in zip(journals.position(), before, strict=True))


async def test_a_key_in_a_later_journal_than_its_entries_causes_a_second_delivery() -> None:
    disk = SimDisk()
    ledger = LedgerId(3)  # in the second of two journals, in the first of three
    journals, _ = await open_journals(disk)
    journals.append_master_key(ledger, b"key")
    await journals.close()
    journals, _ = await open_journals(disk, FOLDERS)
    journals.append_run(run_of(0, b"x", ledger=ledger), None)
    await settle()
    survivor = disk.crash()
    journals = await Journals.open(survivor, FOLDERS, SMALL, chance=SystemChance())
    deliveries: list[list[JournalRecord]] = [[]]

    def again() -> bool:
        deliveries.append([])
        return True

    await journals.replay(lambda records: deliveries[-1].extend(records), again)
    assert [len(each) for each in deliveries] == [2, 2]
    assert isinstance(deliveries[0][0], EntryRecord) and isinstance(deliveries[0][1], MasterKeyRecord)
    assert deliveries[0] == deliveries[1]


async def test_a_newly_added_journal_does_not_make_a_clean_end_unclean() -> None:
    disk = SimDisk()
    journals, _ = await open_journals(disk)
    for ledger in range(2):
        journals.append_run(run_of(0, b"x", ledger=ledger), None)
    await settle()
    await journals.close()
    grown_disk = disk.crash()
    grown = await Journals.open(grown_disk, FOLDERS[:3], SMALL, chance=SystemChance())
    summary = await grown.replay(lambda _: None)
    assert summary.clean and summary.records
    grown.append_run(run_of(1, b"y", ledger=0), None)
    await settle()
    crashed = await Journals.open(grown_disk.crash(), FOLDERS[:3], SMALL, chance=SystemChance())
    assert not (await crashed.replay(lambda _: None)).clean


async def test_one_journal_is_never_read_twice() -> None:
    disk = SimDisk()
    journals, _ = await open_journals(disk, FOLDERS[:1])
    journals.append_run(run_of(0, b"x"), None)
    await settle()
    journals = await Journals.open(disk.crash(), FOLDERS[:1], SMALL, chance=SystemChance())
    records: list[JournalRecord] = []
    await journals.replay(records.extend, lambda: True)
    assert len(records) == 1


async def test_the_failure_of_one_journal_fails_the_appends_of_all_and_is_reported_once() -> None:
    disk = SimDisk()
    journals, _ = await open_journals(disk)
    reported: list[BaseException] = []
    journals.on_poison = reported.append
    answers = Answers()
    disk.fail_next("submit", "/j1/", OSError("gone"))
    journals.append_run(run_of(0, b"x", ledger=1), answers.of("failed"))
    await settle()
    journals.append_run(run_of(0, b"x", ledger=0), answers.of("other"))
    journals.append_force(answers.of("force"))
    await settle()
    assert journals.poisoned and all(journal.poisoned for journal in journals.journals)
    assert set(answers.errors) == {"failed", "other", "force"}
    assert all(isinstance(error, JournalPoisonedError) for error in answers.errors.values())
    assert len(reported) == 1
    await journals.close()


async def test_a_full_disk_of_one_journal_is_reported_and_the_others_continue() -> None:
    disk = SimDisk()
    journals, _ = await open_journals(disk)
    await settle()
    reported: list[DiskFullError] = []
    journals.on_full = reported.append
    assert journals.full is None and not journals.is_full
    for _ in range(4):
        disk.fail_next("create", "/j1/", DiskFullError("no space"))
    answers = Answers()
    for entry in range(40):
        journals.append_run(run_of(entry, b"x" * 4000, ledger=1), answers.of(("full", entry)))
    await settle()
    await settle()
    assert isinstance(journals.full, DiskFullError) and len(reported) == 1
    assert any(isinstance(error, DiskFullError) for error in answers.errors.values())
    journals.append_run(run_of(0, b"x", ledger=0), answers.of("other"))
    await settle()
    assert "other" in answers.acked


# ---- force


@pytest.mark.parametrize("count", [1, 2])
async def test_force_completes_after_all_earlier_appends_and_writes_nothing(count: int) -> None:
    disk = SimDisk(chance=random.Random(1), latency_s=0.001)
    journals, _ = await open_journals(disk, FOLDERS[:count])
    answers = Answers()
    for ledger in range(4):
        journals.append_run(run_of(0, b"x", ledger=ledger), answers.of(("in flight", ledger)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    for ledger in range(2):
        journals.append_run(run_of(1, b"x", ledger=ledger), answers.of(("queued", ledger)))
    forced = asyncio.Event()
    for number in range(2000):
        journals.append_force(answers.of(("force", number)))
    journals.append_force(lambda _: forced.set())
    assert answers.order == []
    await forced.wait()
    assert set(answers.order[:6]) == {("in flight", ledger) for ledger in range(4)} | {("queued", 0), ("queued", 1)}
    assert answers.order[6:] == [("force", number) for number in range(2000)]
    assert journals.stats.records == 6
    await journals.close()


@pytest.mark.parametrize("count", [1, 2])
async def test_force_of_a_group_in_flight_waits_for_it(count: int) -> None:
    disk = SimDisk(chance=random.Random(1), latency_s=0.001)
    journals, _ = await open_journals(disk, FOLDERS[:count])
    answers = Answers()
    journals.append_run(run_of(0, b"x", ledger=1), answers.of("entry"))
    await asyncio.sleep(0)
    forced = asyncio.Event()
    journals.append_force(answers.of("force"))
    journals.append_force(lambda _: forced.set())
    await forced.wait()
    assert answers.order == ["entry", "force"]


@pytest.mark.parametrize("count", [1, 2])
async def test_force_with_nothing_queued_completes_later_and_not_inside_the_call(count: int) -> None:
    journals, _ = await open_journals(SimDisk(), FOLDERS[:count])
    answers = Answers()
    journals.append_force(answers.of("force"))
    assert answers.order == []
    await settle()
    assert answers.acked == ["force"]


async def test_force_fails_if_an_earlier_write_of_any_journal_fails() -> None:
    disk = SimDisk()
    journals, _ = await open_journals(disk)
    disk.fail_next("submit", "/j0/", OSError("gone"))
    answers = Answers()
    journals.append_run(run_of(0, b"x", ledger=0), None)
    journals.append_run(run_of(0, b"x", ledger=1), None)
    journals.append_force(answers.of("force"))
    await settle()
    assert list(answers.errors) == ["force"]


# ---- without a journal


async def test_without_writing_appends_are_acknowledged_in_the_next_step_and_nothing_reaches_the_disk() -> None:
    disk = SimDisk()
    journals, _ = await open_journals(disk, write_data=False)
    steps = disk.steps
    answers = Answers()
    journals.append_master_key(LedgerId(1), b"key", answers.of("key"))
    journals.append_run(run_of(0, b"x", ledger=1), answers.of("entry"))
    journals.append_fence(LedgerId(1), answers.of("fence"))
    journals.append_explicit_lac(LedgerId(1), b"packet", answers.of("lac"))
    journals.append_force(answers.of("force"))
    assert answers.order == []
    await asyncio.sleep(0)
    assert answers.acked == ["key", "entry", "fence", "lac", "force"]
    await journals.set_mark(journals.position())
    await journals.close()
    assert disk.steps == steps


async def test_records_of_an_earlier_run_are_replayed_even_with_writing_disabled() -> None:
    disk = SimDisk()
    journals, _ = await open_journals(disk)
    journals.append_run(run_of(0, b"x", ledger=1), None)
    await settle()
    disk = disk.crash()
    journals, records = await open_journals(disk, write_data=False)
    assert found(records) == [(1, 0)]
    await journals.set_mark(journals.position())
    await journals.close()
    disk = disk.crash()
    journals, records = await open_journals(disk)
    assert records == []
    journals.append_run(run_of(1, b"y", ledger=1), None)
    await settle()
    _, records = await open_journals(disk.crash())
    assert found(records) == [(1, 1)]


def test_counters_of_several_journals_are_summed_and_maxima_kept() -> None:
    one, other = JournalStats(groups=2, write_seconds_max=0.4), JournalStats(groups=3, write_seconds_max=0.7)
    one.write_seconds.observe(0.4)
    other.write_seconds.observe(0.7)
    total = sum_stats([one, other])
    assert (total.groups, total.write_seconds_max) == (5, 0.7)
    assert total.write_seconds.total == 2
    assert total.write_seconds.seconds == pytest.approx(1.1)
    assert one.write_seconds.total == 1


# ---- crashes


class Life:
    """Simulates a bookie's use of its journals; tracks appended, acknowledged and flushed entries."""

    def __init__(self) -> None:
        self.next: dict[int, int] = dict.fromkeys(range(5), 0)
        self.acked: set[tuple[int, int]] = set()
        self.flushed: set[tuple[int, int]] = set()

    async def live(self, disk: SimDisk, folders: tuple[str, ...], rounds: int) -> None:
        """Append to five ledgers in turn, with a flush every third round, until the disk dies."""
        try:
            journals = await Journals.open(disk, folders, SMALL, chance=SystemChance())
            await journals.replay(lambda _: None)
            for number in range(rounds):
                for ledger, entry in self.next.items():
                    self.next[ledger] = entry + 1
                    journals.append_run(
                        run_of(entry, b"%d-%d" % (ledger, entry), ledger=ledger), self._acked((ledger, entry))
                    )
                forced = asyncio.Event()
                journals.append_force(lambda _, forced=forced: forced.set())  # type: ignore[misc]
                await forced.wait()
                if number % 3 == 2:
                    covered = {(ledger, entry) for ledger, count in self.next.items() for entry in range(count)}
                    position = journals.position()
                    self.flushed |= covered
                    await journals.set_mark(position)
            await journals.close()
        except (OSError, QuireError):
            assert disk.crashed

    def _acked(self, entry: tuple[int, int]) -> Done:
        def done(error: BaseException | None) -> None:
            if error is None:
                self.acked.add(entry)

        return done


@pytest.mark.parametrize("survival", ["none", "all", "random"])
async def test_a_crash_at_any_step_loses_nothing_acknowledged_even_if_a_journal_is_added(survival: Survival) -> None:
    whole = SimDisk()
    await Life().live(whole, FOLDERS[:2], 8)
    for at in range(whole.steps):
        disk, life = SimDisk(), Life()
        disk.crash_after(at)
        await life.live(disk, FOLDERS[:2], 8)
        assert disk.crashed, f"crash at step {at} did not happen"
        await asyncio.sleep(0)
        disk = disk.crash(survival, seed=at)
        disk.crash_after(at // 2 + 1)
        await life.live(disk, FOLDERS, 2)
        await asyncio.sleep(0)
        _, records = await open_journals(disk.crash(survival, seed=at + 1), FOLDERS)
        runs = [record.run for record in records if isinstance(record, EntryRecord)]
        assert life.acked - life.flushed <= {(run.ledger, run.first) for run in runs}
        assert all(bytes(run.entries[0]) == b"%d-%d" % (run.ledger, run.first) for run in runs)
