"""A crash at every step: acknowledged entries survive, and surviving entries were appended, in order and complete."""

import asyncio
import random

import pytest

from quire_bookie.env.chance import SystemChance
from quire_bookie.errors import QuireError
from quire_bookie.journal import Journal, JournalPosition
from quire_bookie.journal.format import GROUP_MAGIC
from quire_bookie.settings.journal import JournalSettings
from tests.sim.disk import SimDisk, Survival
from tests.support.journals import FOLDER, LEDGER, Answers, entries_of, open_journal, run_of
from tests.support.sampling import one_in

TINY = JournalSettings(file_bytes=6 * 4096, group_bytes_max=8192, spare_files_max=1)


def payload(entry: int) -> bytes:
    """Content that depends on the entry and differs in length."""
    return random.Random(entry).randbytes(40 + entry * 397 % 5000)


class Life:
    """Simulates processes that append and move the mark as a storage would, and tracks acknowledged entries."""

    def __init__(self) -> None:
        self.appended = 0
        self.acked: list[int] = []
        self.flushed = 0
        """Entries below this one are durable in the storage: the mark may have passed them."""

    async def live(self, disk: SimDisk, bursts: int, *, ahead: bool = True) -> None:
        """Append in bursts until the disk dies or the bursts are over. Without `ahead`, the start lasts five bursts."""
        try:
            journal = await Journal.open(disk, FOLDER, TINY, chance=SystemChance())
            await journal.read(lambda _: None)
            await journal.start(ahead=ahead)
            for burst in range(bursts):
                if burst == 5:
                    journal.keep_ahead()
                answers = Answers()
                for _ in range(burst % 4 + 1):
                    journal.append_run(run_of(self.appended, payload(self.appended)), answers.of(self.appended))
                    self.appended += 1
                answered = asyncio.Event()
                journal.append_fence(LEDGER, lambda _, answered=answered: answered.set())  # type: ignore[misc]
                await answered.wait()
                self.acked.extend(entry for entry in answers.acked if isinstance(entry, int))
                if burst % 7 == 6:
                    position, self.flushed = journal.position(), self.appended
                    await journal.set_mark(position)
            await journal.close()
        except (OSError, QuireError):
            assert disk.crashed


async def check(life: Life, disk: SimDisk) -> None:
    """Check that replay delivers complete entries without a gap, with every acknowledged and unflushed one."""
    _, records, _ = await open_journal(disk, TINY)
    found = entries_of(records)
    ids = [entry for entry, _ in found]
    assert all(data == payload(entry) for entry, data in found)
    assert ids == list(range(ids[0], ids[0] + len(ids))) if ids else True
    last_needed = max((entry for entry in life.acked if entry >= life.flushed), default=-1)
    assert set(range(life.flushed, last_needed + 1)) <= set(ids)
    assert not ids or ids[-1] < life.appended


async def count_steps(bursts: int, *, ahead: bool = True) -> int:
    disk = SimDisk()
    life = Life()
    await life.live(disk, bursts, ahead=ahead)
    assert not disk.crashed
    return disk.steps


@one_in(3)
@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize("survival", ["none", "all", "random"])
async def test_a_crash_at_any_step_loses_nothing_acknowledged(survival: Survival, ahead: bool, every: int) -> None:
    steps = await count_steps(30, ahead=ahead)
    assert steps > 60
    for at in range(0, steps, every):
        disk = SimDisk()
        disk.crash_after(at)
        life = Life()
        await life.live(disk, 30, ahead=ahead)
        assert disk.crashed, f"crash at step {at} did not happen"
        await asyncio.sleep(0)
        await check(life, disk.crash(survival, seed=at))


@one_in(3)
@pytest.mark.parametrize("survival", ["none", "random"])
async def test_a_killed_process_and_then_a_power_loss_lose_nothing_acknowledged(survival: Survival, every: int) -> None:
    for at in range(0, await count_steps(30), every):
        disk = SimDisk(chance=random.Random(at))
        disk.crash_after(at)
        life = Life()
        await life.live(disk, 30)
        await asyncio.sleep(0)
        disk = disk.kill()  # the next process reads, and builds upon, names and bytes that were never synced
        await life.live(disk, 2)
        await check_with_unknown_gaps(life, disk.crash(survival, seed=at))


@pytest.mark.parametrize("seed", range(25))
async def test_crash_after_crash_on_the_same_files_loses_nothing_acknowledged(seed: int) -> None:
    chance = random.Random(seed)
    disk = SimDisk()
    life = Life()
    for _ in range(12):
        disk.crash_after(chance.randrange(1, 40))
        await life.live(disk, 40, ahead=chance.random() < 0.5)
        await asyncio.sleep(0)
        survival: Survival = chance.choice(["none", "all", "random"])
        disk = disk.crash(survival, seed=chance.randrange(1 << 30))
        await check_with_unknown_gaps(life, disk)


async def check_with_unknown_gaps(life: Life, disk: SimDisk) -> None:
    """Check that no acknowledged entry is missing; over several lives, others may be."""
    copy = disk.crash()
    disk.crashed = False  # only inspected: the next life starts from the same bytes
    _, records, _ = await open_journal(copy, TINY)
    found = entries_of(records)
    ids = [entry for entry, _ in found]
    assert ids == sorted(set(ids))
    assert all(data == payload(entry) for entry, data in found)
    missing = {entry for entry in life.acked if entry >= life.flushed} - set(ids)
    assert not missing


async def test_a_torn_group_is_dropped_and_the_next_life_continues_after_it() -> None:
    disk = SimDisk()
    journal, _, _ = await open_journal(disk)
    journal.append_run(run_of(0, b"kept"), None)
    await _settle()
    disk.crash_after(0)
    journal.append_run(run_of(1, b"x" * 3000), None)
    await _settle()
    torn = disk.crash()
    path = f"{FOLDER}/journal-00000001.log"
    content = torn._names[path].current
    second = content.find(GROUP_MAGIC, content.find(GROUP_MAGIC) + 4)
    assert second < 0, "nothing of the second group survived"

    for _ in range(3):
        journal, records, _ = await open_journal(torn)
        assert entries_of(records)[0] == (0, b"kept")
        journal.append_run(run_of(1, b"again"), None)
        await _settle()
        torn = torn.crash()
    _, records, _ = await open_journal(torn)
    assert [data for _, data in entries_of(records)] == [b"kept", b"again", b"again", b"again"]


async def test_an_incomplete_group_on_disk_is_reported_as_torn_and_never_delivered() -> None:
    for seed in range(30):
        disk = SimDisk()
        journal, _, _ = await open_journal(disk)
        journal.append_run(run_of(0, b"kept"), None)
        await _settle()
        disk.crash_after(0)
        journal.append_run(run_of(1, bytes(range(256)) * 20), None)
        await _settle()
        _, records, summary = await open_journal(disk.crash("random", seed))
        found = entries_of(records)
        assert found[0] == (0, b"kept")
        assert found[1:] in ([], [(1, bytes(range(256)) * 20)])
        assert not (summary.torn and len(found) == 2)


async def test_the_mark_may_point_past_a_group_that_never_became_durable() -> None:
    disk = SimDisk()
    journal, _, _ = await open_journal(disk)
    journal.append_run(run_of(0, b"durable"), None)
    await _settle()
    journal.append_run(run_of(1, b"in flight"), None)
    await asyncio.sleep(0)  # submitted, not durable
    position = journal.position()
    assert position.sequence == 2
    mark = asyncio.ensure_future(journal.set_mark(position))
    disk._faults.append(("submit", "journal-", OSError("lost")))
    await mark
    survivor = disk.crash()
    journal, records, _ = await open_journal(survivor)
    assert records == []
    assert journal.position() == JournalPosition(position.generation + 1, 4096, 2)
    journal.append_run(run_of(2, b"next"), None)
    await _settle()
    _, records, _ = await open_journal(survivor.crash())
    assert entries_of(records) == [(2, b"next")]


async def _settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)
