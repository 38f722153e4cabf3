"""The journal's guarantees without a crash: order, groups, recycled files, the mark, full disks, poison."""

import asyncio
import errno
from collections.abc import Sequence
from typing import Any

import pytest

from quire_bookie.env.chance import SystemChance
from quire_bookie.env.disk import JournalFile
from quire_bookie.errors import ConfigError, DamagedError, DiskFullError, JournalPoisonedError, StorageError
from quire_bookie.journal import EntryRecord, ExplicitLacRecord, FenceRecord, Journal, MasterKeyRecord
from quire_bookie.journal.records import fence_record
from quire_bookie.journal.writer import GroupWriter
from quire_bookie.model import LedgerId
from quire_bookie.settings.journal import JournalSettings
from tests.sim.disk import SimDisk, SimJournalFile
from tests.support.journals import FOLDER, LEDGER, SMALL, Answers, entries_of, open_journal, run_of


async def append_and_wait(journal: Journal, first: int, *entries: bytes) -> None:
    durable = asyncio.get_running_loop().create_future()
    journal.append_run(run_of(first, *entries), durable.set_result)
    error = await durable
    if error is not None:
        raise error


async def fill(journal: Journal, first: int, count: int, size: int = 3000) -> None:
    for entry in range(first, first + count):
        await append_and_wait(journal, entry, bytes([entry % 251]) * size)


def journal_names(disk: SimDisk) -> list[str]:
    return [name for name in sorted(disk._names) if name.endswith(".log")]


async def test_every_kind_of_record_is_replayed_in_order() -> None:
    disk = SimDisk()
    journal, records, _ = await open_journal(disk)
    assert records == []
    journal.append_master_key(LEDGER, b"k" * 20)
    journal.append_run(run_of(0, b"first", b"second"), None)
    journal.append_explicit_lac(LEDGER, memoryview(b"packet"), None)
    journal.append_fence(LEDGER, None)
    await journal.close()

    _, records, summary = await open_journal(disk.crash())
    assert records == [
        MasterKeyRecord(LEDGER, b"k" * 20),
        records[1],
        ExplicitLacRecord(LEDGER, b"packet"),
        FenceRecord(LEDGER),
    ]
    assert entries_of(records) == [(0, b"first"), (1, b"second")]
    assert summary.clean and not summary.torn


async def test_appends_of_one_loop_step_become_one_group_and_are_acknowledged_in_order() -> None:
    journal, _, _ = await open_journal(SimDisk())
    answers = Answers()
    for entry in range(50):
        journal.append_run(run_of(entry, b"x" * 100), answers.of(entry))
    assert answers.order == [], "done never runs inside an append"
    assert journal.queued_bytes == 5000
    await append_and_wait(journal, 50, b"y")
    assert answers.order == list(range(50))
    assert journal.stats.groups == 1
    assert journal.stats.entries == 51
    assert journal.queued_bytes == 0
    await journal.close()


async def test_appends_queued_behind_a_group_in_flight_become_the_next_group() -> None:
    journal, _, _ = await open_journal(SimDisk())
    answers = Answers()
    finished = asyncio.Event()

    def chain(error: BaseException | None) -> None:
        answers.of("first")(error)
        for entry in (1, 2, 3):
            journal.append_run(run_of(entry, b"x"), answers.of(entry))
        journal.append_fence(LEDGER, lambda _: finished.set())
        assert answers.order == ["first"], "an append from a callback is not acknowledged inside it"

    journal.append_run(run_of(0, b"x"), chain)
    await finished.wait()
    assert answers.order == ["first", 1, 2, 3]
    assert journal.stats.groups == 2
    await journal.close()


async def test_a_long_queue_is_split_into_groups_of_bounded_bytes_and_entries() -> None:
    settings = JournalSettings(file_bytes=1 << 20, group_bytes_max=10_000, group_entries_max=16)
    disk = SimDisk()
    journal, _, _ = await open_journal(disk, settings)
    for entry in range(64):
        journal.append_run(run_of(entry, b"small"), None)
    await append_and_wait(journal, 64, b"z" * 9990)
    assert journal.stats.groups == 5
    await append_and_wait(journal, 65, b"z" * 30_000)  # one run larger than a group is a group of its own
    assert journal.stats.groups == 6
    await journal.close()
    _, records, _ = await open_journal(disk.crash(), settings)
    assert [entry for entry, _ in entries_of(records)] == list(range(66))


async def test_a_done_that_raises_does_not_stop_the_others() -> None:
    loop = asyncio.get_running_loop()
    reported: list[object] = []
    loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))
    journal, _, _ = await open_journal(SimDisk())
    answers = Answers()

    def broken(_: BaseException | None) -> None:
        raise ZeroDivisionError("a bug of the caller")

    journal.append_run(run_of(0, b"x"), answers.of(0))
    journal.append_run(run_of(1, b"x"), broken)
    journal.append_run(run_of(2, b"x"), answers.of(2))
    await append_and_wait(journal, 3, b"x")
    assert answers.acked == [0, 2]
    assert [type(error) for error in reported] == [ZeroDivisionError]
    await journal.close()


async def test_full_files_are_followed_by_others_and_all_are_replayed() -> None:
    disk = SimDisk()
    journal, _, _ = await open_journal(disk)
    await fill(journal, 0, 100)
    assert journal.stats.file_changes > 3
    _, records, summary = await open_journal(disk.crash())
    assert [entry for entry, _ in entries_of(records)] == list(range(100))
    assert not summary.clean


async def test_records_before_the_mark_are_not_replayed_and_their_files_are_recycled() -> None:
    disk = SimDisk()
    journal, _, _ = await open_journal(disk)
    for first in range(0, 400, 20):
        await fill(journal, first, 20)
        await journal.set_mark(journal.position())
    assert len(journal_names(disk)) <= 2 + SMALL.spare_files_max
    assert journal._files.recycled > 10
    await fill(journal, 400, 3)
    _, records, _ = await open_journal(disk.crash())
    assert [entry for entry, _ in entries_of(records)] == [400, 401, 402]


async def test_the_position_precedes_queued_appends_that_are_not_in_a_group_yet() -> None:
    disk = SimDisk()
    journal, _, _ = await open_journal(disk)
    await fill(journal, 0, 3)
    before = journal.position()
    journal.append_run(run_of(3, b"later"), None)
    assert journal.position() == before
    await append_and_wait(journal, 4, b"last")
    assert journal.position() > before
    await journal.set_mark(before)
    _, records, _ = await open_journal(disk.crash())
    assert [entry for entry, _ in entries_of(records)] == [3, 4]


async def test_a_mark_never_goes_backwards() -> None:
    journal, _, _ = await open_journal(SimDisk())
    early = journal.position()
    await fill(journal, 0, 3)
    late = journal.position()
    await journal.set_mark(late)
    await journal.set_mark(early)
    assert journal.mark == late
    await journal.close()


async def test_the_mark_is_durable_before_a_file_is_recycled_or_removed() -> None:
    disk = SimDisk()
    journal, _, _ = await open_journal(disk)
    await fill(journal, 0, 60)
    files = journal_names(disk)
    disk.fail_next("replace", "last-mark", OSError(errno.EIO, "no"))
    with pytest.raises(OSError, match="no"):
        await journal.set_mark(journal.position())
    await fill(journal, 60, 60)
    assert set(files) <= set(journal_names(disk))
    _, records, _ = await open_journal(disk.crash())
    assert [entry for entry, _ in entries_of(records)] == list(range(120))


async def test_repeated_restarts_use_up_no_files() -> None:
    disk = SimDisk()
    journal, _, _ = await open_journal(disk)
    await fill(journal, 0, 3)
    for _ in range(8):
        disk = disk.crash()
        _, records, _ = await open_journal(disk)
        assert len(entries_of(records)) == 3
    assert len(journal_names(disk)) <= 3


async def test_a_start_creates_one_short_file_and_the_next_one_after_the_start() -> None:
    disk = SimDisk()
    journal = await Journal.open(disk, FOLDER, SMALL, chance=SystemChance())
    await journal.read(lambda _: None)
    await journal.start(ahead=False)
    await append_and_wait(journal, 0, b"a")
    first, sizes = journal_names(disk)[0], {name: len(disk._names[name].current) for name in journal_names(disk)}
    assert sizes == {first: SMALL.short_file_bytes}
    journal.keep_ahead()
    await asyncio.sleep(0.01)
    assert sorted(len(disk._names[name].current) for name in journal_names(disk)) == [16384, SMALL.file_bytes]
    await fill(journal, 1, 20)
    await journal.close()
    _, records, summary = await open_journal(disk.crash())
    assert len(entries_of(records)) == 21 and summary.clean


@pytest.mark.parametrize("group_bytes_max", [1, 1000, 5001])
async def test_a_short_file_holds_its_header_and_whole_blocks_however_small_groups_are(group_bytes_max: int) -> None:
    settings, disk = JournalSettings(65536, group_bytes_max, reserved_bytes=0), SimDisk()
    assert settings.short_file_bytes % 4096 == 0
    for entry in range(3):  # each start continues in the files of the previous one
        journal, records, _ = await open_journal(disk, settings)
        assert [found for found, _ in entries_of(records)] == list(range(entry))
        await append_and_wait(journal, entry, b"x")
        disk = disk.crash()


async def test_a_full_short_file_is_followed_by_another_even_before_the_start_is_over() -> None:
    disk = SimDisk()
    journal = await Journal.open(disk, FOLDER, SMALL, chance=SystemChance())
    await journal.read(lambda _: None)
    await journal.start(ahead=False)
    await fill(journal, 0, 8)
    await append_and_wait(journal, 8, b"x" * (2 * SMALL.short_file_bytes))  # more than the short file could hold
    await journal.close()
    _, records, _ = await open_journal(disk.crash())
    assert [entry for entry, _ in entries_of(records)] == list(range(9))


async def test_replay_may_wait_for_a_flush_that_moves_the_mark() -> None:
    disk = SimDisk()
    journal, _, _ = await open_journal(disk)
    await fill(journal, 0, 30)
    disk = disk.crash()
    journal = await Journal.open(disk, FOLDER, SMALL, chance=SystemChance())
    seen: list[int] = []

    async def flush() -> None:
        await journal.set_mark(journal.position())

    def deliver(records: Sequence[object]) -> object:
        (record,) = records
        assert isinstance(record, EntryRecord)
        seen.append(record.run.first)
        return flush() if len(seen) == 20 else None

    await journal.replay(deliver)  # type: ignore[arg-type]
    assert seen == list(range(30))
    _, records, _ = await open_journal(disk.crash())
    assert [entry for entry, _ in entries_of(records)] == list(range(19, 30)), "the current group is replayed again"


# ---- poison


async def test_a_failed_write_fails_every_append_permanently() -> None:
    disk = SimDisk()
    journal, _, _ = await open_journal(disk)
    await fill(journal, 0, 2)
    reported: list[BaseException] = []
    answers = Answers()
    journal.on_poison = reported.append
    disk.fail_next("submit", "journal-", OSError(errno.EIO, "broken disk"))
    journal.append_run(run_of(2, b"x"), answers.of("in flight"))
    await asyncio.sleep(0)
    journal.append_run(run_of(3, b"x"), answers.of("queued"))
    await asyncio.sleep(0.01)
    journal.append_fence(LEDGER, answers.of("later"))
    assert "later" not in answers.order, "a refusal does not run inside the append either"
    await asyncio.sleep(0)
    assert answers.order == ["in flight", "queued", "later"]
    assert {type(error) for error in answers.errors.values()} == {JournalPoisonedError}
    assert journal.poisoned and len(reported) == 1
    assert journal.queued_bytes == 0
    assert journal.stats.groups == 2, "the failed write was not retried"
    await journal.close()
    _, records, _ = await open_journal(disk.crash())
    assert [entry for entry, _ in entries_of(records)] == [0, 1]


async def test_a_header_that_cannot_be_written_poisons() -> None:
    disk = SimDisk()
    journal, _, _ = await open_journal(disk)
    await fill(journal, 0, 5)
    with pytest.raises(JournalPoisonedError):
        for entry in range(5, 100):
            disk.fail_next("submit", "journal-00000002", OSError(errno.EIO, "broken disk"))
            await append_and_wait(journal, entry, b"x" * 3000)
    assert journal.poisoned
    await journal.close()


async def test_a_file_that_cannot_be_created_poisons_unless_the_disk_is_full() -> None:
    disk = SimDisk()
    disk.fail_next("create", "journal-00000002", OSError(errno.EIO, "broken disk"))
    journal, _, _ = await open_journal(disk)
    with pytest.raises(JournalPoisonedError):
        await fill(journal, 0, 100)
    await journal.close()


# ---- no space


async def test_a_full_disk_is_reported_early_refuses_late_and_does_not_poison() -> None:
    disk = SimDisk()
    disk.capacity_bytes = SMALL.file_bytes + 8192  # space for one file
    journal, _, _ = await open_journal(disk)
    reported: list[DiskFullError] = []
    journal.on_full = reported.append
    await append_and_wait(journal, 0, b"fits")
    await asyncio.sleep(0.01)
    assert len(reported) == 1 and journal.full is not None
    await append_and_wait(journal, 1, b"the current file still takes groups that fit")
    with pytest.raises(DiskFullError):
        await fill(journal, 2, 100)
    assert not journal.poisoned
    assert journal.queued_bytes == 0
    acked = journal.stats.entries

    disk.capacity_bytes *= 8
    await journal.set_mark(journal.position())
    await asyncio.sleep(0.01)
    await append_and_wait(journal, 900, b"there is space again")
    assert journal.full is None
    await journal.close()
    _, records, _ = await open_journal(disk.crash())
    assert [entry for entry, _ in entries_of(records)] == [900]
    assert acked >= 2


async def test_a_journal_starts_on_a_full_disk_and_refuses_until_there_is_space() -> None:
    disk = SimDisk()
    journal, _, _ = await open_journal(disk)
    await fill(journal, 0, 3)
    await journal.close()  # after a crash the prepared file could hold the newest generation
    disk = disk.crash()
    disk.capacity_bytes = disk._used_bytes()
    for name in [name for name in journal_names(disk) if name.endswith("2.log")]:
        del disk._names[name], disk._durable_names[name]
    disk.capacity_bytes = disk._used_bytes()
    journal, records, _ = await open_journal(disk)
    assert len(entries_of(records)) == 3
    assert journal.full is not None
    with pytest.raises(DiskFullError):
        await append_and_wait(journal, 5, b"x")
    disk.capacity_bytes *= 8
    await journal.set_mark(journal.position())
    await asyncio.sleep(0.01)
    await append_and_wait(journal, 5, b"x")
    await journal.close()


# ---- life


async def test_appends_before_replay_and_after_close_are_refused() -> None:
    disk = SimDisk()
    journal = await Journal.open(disk, FOLDER, SMALL, chance=SystemChance())
    answers = Answers()
    journal.append_fence(LEDGER, answers.of("early"))
    await journal.replay(lambda _: None)
    journal.append_fence(LedgerId(1), answers.of("kept"))
    await journal.close()
    await journal.close()
    journal.append_run(run_of(0, b"x"), answers.of("late"))
    await asyncio.sleep(0)
    assert answers.acked == ["kept"]
    assert {tag: type(error) for tag, error in answers.errors.items()} == {"early": StorageError, "late": StorageError}
    _, records, summary = await open_journal(disk.crash())
    assert records == [FenceRecord(LedgerId(1))]
    assert summary.clean


async def test_a_missing_mark_beside_files_is_damage() -> None:
    disk = SimDisk()
    await open_journal(disk)
    disk = disk.crash()
    del disk._names[f"{FOLDER}/last-mark"]
    with pytest.raises(DamagedError, match="last-mark"):
        await open_journal(disk)


@pytest.mark.parametrize(
    "settings",
    [
        JournalSettings(file_bytes=65536 + 1, group_bytes_max=100),
        JournalSettings(file_bytes=65536, group_bytes_max=65536),
        JournalSettings(group_bytes_max=0),
        JournalSettings(spare_files_max=0),
    ],
)
async def test_contradictory_sizes_are_refused(settings: JournalSettings) -> None:
    with pytest.raises(ConfigError):
        await open_journal(SimDisk(), settings)


async def test_a_run_that_no_file_can_hold_is_refused_and_the_journal_continues() -> None:
    journal, _, _ = await open_journal(SimDisk())
    with pytest.raises(StorageError, match="does not fit"):
        await append_and_wait(journal, 0, b"x" * SMALL.file_bytes)
    await append_and_wait(journal, 1, b"fits")
    assert not journal.poisoned
    await journal.close()


async def test_a_full_disk_after_another_journal_failed_refuses_an_add_once() -> None:
    def ignore(*_: object) -> None:
        pass

    writer = GroupWriter(
        bytes(16), SMALL, wants_file=lambda: True, retired=ignore, went_live=ignore, poisoned=ignore, moved=ignore
    )
    writer.accept()
    errors: list[BaseException | None] = []
    writer.append_record(fence_record(LEDGER), errors.append)
    await asyncio.sleep(0)
    assert writer.waits_for_file
    writer.poison(OSError(errno.EIO, "another journal failed"))
    writer.no_file(DiskFullError("the next file does not fit"))
    assert [type(error) for error in errors] == [JournalPoisonedError]


async def test_a_queue_over_its_limit_is_reported_as_full_and_not_refused() -> None:
    journal, _, _ = await open_journal(SimDisk(), JournalSettings(65536, 8192, queue_bytes_max=1000))
    journal.append_run(run_of(0, b"x" * 999), None)
    assert not journal.is_full
    journal.append_run(run_of(1, b"x"), None)
    assert journal.is_full
    await append_and_wait(journal, 2, b"x")
    assert not journal.is_full
    await journal.close()


async def test_closing_a_cancelled_start_waits_for_the_write_of_the_header() -> None:
    disk = SimDisk(latency_s=0.001)
    journal = await Journal.open(disk, FOLDER, SMALL, chance=SystemChance())
    await journal.read(lambda _: None)
    opened: list[SimJournalFile] = []
    begun = asyncio.Event()
    open_file = disk.open_journal

    async def noted(path: str, *, synced: bool = True) -> JournalFile:
        file = await open_file(path, synced=synced)
        assert isinstance(file, SimJournalFile)
        opened.append(file)
        submit = file.submit

        def noted_submit(*args: Any) -> None:
            submit(*args)
            begun.set()

        file.submit = noted_submit  # type: ignore[assignment, method-assign]
        return file

    disk.open_journal = noted  # type: ignore[method-assign]
    starting = asyncio.ensure_future(journal.start())
    await begun.wait()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await journal.close()
    assert [file._done for file in opened] == [None], "the next start would read during the write"
    journal, records, summary = await open_journal(disk)
    assert not records and not summary.torn
    await journal.close()
