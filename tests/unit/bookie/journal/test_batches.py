"""Runs that are journaled together: their replay and their `done` calls."""

import asyncio
from dataclasses import replace

from quire_bookie.env.chance import SystemChance
from quire_bookie.errors import JournalPoisonedError
from quire_bookie.journal import EntryRecord, JournalRecord, Journals
from quire_bookie.journal.records import decode_body, encode_items, fence_record
from quire_bookie.model import Run, RunBatch
from tests.sim.disk import SimDisk
from tests.support import journals as support
from tests.support.batches import batch_of
from tests.support.journals import SMALL


def run_of(first: int, *entries: bytes, ledger: int) -> Run:
    """A run with a list of entries, as replay delivers one."""
    run = support.run_of(first, *entries, ledger=ledger)
    run.entries = list(run.entries)
    return run


RUNS = [
    run_of(0, b"a", b"", b"ccc", ledger=1),
    run_of(7, b"x" * 100, ledger=2),
    run_of(3, b"y", ledger=1),
    run_of(9, b"z" * 5000, ledger=4),
]


class Outcomes:
    """Collects the `done` calls with their ledgers."""

    def __init__(self) -> None:
        self.outcomes: list[tuple[list[int], BaseException | None]] = []

    def __call__(self, batch: RunBatch, error: BaseException | None) -> None:
        """Record the outcome of a batch."""
        self.outcomes.append(([row[0] for row in batch.rows()], error))


async def opened(disk: SimDisk, folders: tuple[str, ...]) -> tuple[Journals, list[Run]]:
    """Open and replay; return the replayed runs."""
    journals = await Journals.open(disk, folders, SMALL, chance=SystemChance())
    records: list[JournalRecord] = []
    await journals.replay(records.extend)
    return journals, [record.run for record in records if isinstance(record, EntryRecord)]


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_runs_of_one_batch_are_replayed_and_their_done_is_called_once() -> None:
    disk = SimDisk()
    journals, _ = await opened(disk, ("/j0",))
    done = Outcomes()
    journals.append_batch(batch_of(RUNS[:2], RUNS[2:]), done)
    assert done.outcomes == []
    await settle()
    assert done.outcomes == [([1, 2, 1, 4], None)]
    assert (journals.stats.records, journals.stats.entries, journals.queued_bytes) == (4, 6, 0)
    _, runs = await opened(disk.crash(), ("/j0",))
    assert runs == RUNS


async def test_each_of_several_journals_writes_its_ledgers_and_reports_them() -> None:
    disk = SimDisk()
    journals, _ = await opened(disk, ("/j0", "/j1"))
    done = Outcomes()
    journals.append_batch(batch_of(RUNS[:2], RUNS[2:]), done)
    await settle()
    assert sorted(done.outcomes, key=str) == [([1, 1], None), ([2, 4], None)]
    _, runs = await opened(disk.crash(), ("/j0", "/j1"))
    assert sorted(runs, key=lambda run: (run.ledger, run.first)) == sorted(
        RUNS, key=lambda run: (run.ledger, run.first)
    )


async def test_filtered_rows_are_not_written() -> None:
    disk = SimDisk()
    journals, _ = await opened(disk, ("/j0",))
    done = Outcomes()
    journals.append_batch(batch_of(RUNS[:2], RUNS[2:]).only(lambda row: row[0] == 1), done)
    await settle()
    assert done.outcomes == [([1, 1], None)]
    _, runs = await opened(disk.crash(), ("/j0",))
    assert runs == [RUNS[0], RUNS[2]]


async def test_a_failed_journal_refuses_a_batch_in_a_later_step() -> None:
    journals, _ = await opened(SimDisk(), ("/j0",))
    journals.journals[0].poison(OSError("gone"))
    done = Outcomes()
    journals.append_batch(batch_of(RUNS), done)
    assert done.outcomes == []
    await settle()
    ((ledgers, error),) = done.outcomes
    assert ledgers == [1, 2, 1, 4]
    assert isinstance(error, JournalPoisonedError)


async def test_without_a_journal_a_batch_is_acknowledged_in_the_next_step() -> None:
    settings = replace(SMALL, write_data=False)
    journals = await Journals.open(SimDisk(), ("/j0",), settings, chance=SystemChance())
    await journals.replay(lambda _: None)
    done = Outcomes()
    journals.append_batch(batch_of(RUNS), done)
    assert done.outcomes == []
    await settle()
    assert done.outcomes == [([1, 2, 1, 4], None)]


def test_a_group_keeps_the_order_of_runs_batches_and_records_of_any_size() -> None:
    for size in (1, 3000, 20_000):
        large = run_of(1, b"l" * size, b"m" * size, ledger=8)
        items: list[Run | RunBatch | bytes] = [
            fence_record(large.ledger),
            batch_of([large], [RUNS[0]]),
            RUNS[1],
            batch_of([RUNS[2]]),
            large,
        ]
        parts = encode_items(items, 9, 9 * size)
        records = list(decode_body(b"".join(parts)))
        runs = [record.run for record in records if isinstance(record, EntryRecord)]
        assert len(records) == 6
        assert runs == [large, RUNS[0], RUNS[1], RUNS[2], large]


async def test_start_now_writes_each_group_once() -> None:
    disk = SimDisk()
    journals, _ = await opened(disk, ("/j0",))
    done = Outcomes()
    for run in RUNS:
        journals.start_now()
        journals.append_batch(batch_of([run]), done)
        journals.start_now()
        journals.start_now()
    assert done.outcomes == []
    await settle()
    assert [ledgers for ledgers, _error in done.outcomes] == [[1], [2], [1], [4]]
    assert journals.stats.records == 4
    _, runs = await opened(disk.crash(), ("/j0",))
    assert runs == RUNS
