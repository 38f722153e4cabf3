"""A half of many ledgers is flushed in parts. No part relies on a later one: space or power may end in between."""

import asyncio
import dataclasses
from collections.abc import Iterator, Sequence

import pytest

from quire_bookie.errors import DiskFullError
from quire_bookie.model import LedgerId
from quire_bookie.storage import flush, flush_worker
from quire_bookie.storage.logs.log_appender import LogAppender
from tests.sim.disk import Survival
from tests.support.sampling import one_in
from tests.unit.bookie.storage.crashes import crash_at
from tests.unit.bookie.storage.store import SMALL, Store, body_of, open_store

LEDGERS = 10
Pairs = Sequence[tuple[bytes, bytes]]


class _Commits:
    """Counts the commits to the index of a store; refuses the one after `allowed` more, for lack of space."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.allowed: int | None = None
        self._commit = store.index.commit
        monkeypatch.setattr(store.index, "commit", self.commit)

    async def commit(self, puts: Pairs, deletes: Sequence[bytes] = (), *, sync: bool = True) -> None:
        """Commit, or refuse."""
        if self.allowed == 0:
            self.allowed = None
            raise DiskFullError("no space for the index")
        if self.allowed is not None:
            self.allowed -= 1
        await self._commit(puts, deletes, sync=sync)
        self.count += 1


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Flush three ledgers at a time."""
    monkeypatch.setattr(flush_worker, "LEDGERS_PER_PART", 3)
    yield


async def test_each_part_has_its_own_commit_and_the_mark_moves_once(monkeypatch: pytest.MonkeyPatch) -> None:
    store = await open_store()
    commits = _Commits(store, monkeypatch)
    for ledger in range(LEDGERS):
        await store.put_ids(ledger, range(5))
    await store.storage.flush()
    assert commits.count == 4
    assert store.marks.commits == 1 and store.storage.stats.flushes == 1
    assert store.storage.stats.entries_flushed == 5 * LEDGERS
    store = await store.restart()
    for ledger in range(LEDGERS):
        assert await store.read(ledger, 4) == body_of(ledger, 4)
    await store.storage.close()


async def test_old_blocks_are_read_in_parts_and_merged_in_smaller_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flush, "KEYS_PER_GET", 8)
    monkeypatch.setattr(flush, "KEYS_PER_MERGE", 3)
    monkeypatch.setattr(flush_worker, "LEDGERS_PER_PART", 100)
    store = await open_store()
    asked: list[int] = []
    get_many = store.index.get_many

    async def counted(keys: Sequence[bytes]) -> list[bytes | None]:
        asked.append(len(keys))
        return await get_many(keys)

    for first in (0, 2, 4):
        for ledger in range(21):
            await store.put_ids(ledger, range(first, first + 2))
        monkeypatch.setattr(store.index, "get_many", counted)
        await store.storage.flush()
        monkeypatch.setattr(store.index, "get_many", get_many)
    assert asked == [8, 8, 5] * 3
    store = await store.restart()
    for ledger in range(21):
        for entry in range(6):
            assert await store.read(ledger, entry) == body_of(ledger, entry)
    await store.storage.close()


async def test_a_flush_without_space_for_its_entries_leaves_no_read_of_old_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(flush, "KEYS_PER_GET", 1)
    monkeypatch.setattr(flush, "RUNS_PER_YIELD", 1)
    store = await open_store(settings=dataclasses.replace(SMALL, flush_interval_s=3600.0))
    for ledger in range(LEDGERS):
        await store.put_ids(ledger, range(5))
    begun: list[bytes] = []
    never = asyncio.Event()

    async def unanswered(keys: Sequence[bytes]) -> list[bytes | None]:
        begun.extend(keys)
        await never.wait()
        return []

    async def full(_appender: LogAppender) -> list[tuple[bytes, bytes]]:
        raise DiskFullError("no space for the log")

    with monkeypatch.context() as failing:
        failing.setattr(store.index, "get_many", unanswered)
        failing.setattr(LogAppender, "end_flush", full)
        with pytest.raises(DiskFullError):
            await store.storage.flush()
    assert len(begun) == 3, "those of the first part"
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "storage-old-values"]
    await store.storage.flush()
    for ledger in range(LEDGERS):
        assert await store.read(ledger, 4) == body_of(ledger, 4)
    await store.storage.close()


async def test_without_space_the_parts_that_are_done_are_not_written_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = await open_store(settings=dataclasses.replace(SMALL, flush_interval_s=3600.0))
    commits = _Commits(store, monkeypatch)
    for ledger in range(LEDGERS):
        await store.put_ids(ledger, range(5))
    done = 0
    for failures in range(3):
        commits.allowed = failures  # parts that are committed before
        with pytest.raises(DiskFullError):
            await store.storage.flush()
        done += failures
        assert store.storage.stats.entries_flushed == 15 * done and store.marks.commits == 0
        for ledger in range(LEDGERS):
            assert await store.read(ledger, 3) == body_of(ledger, 3)
    await store.storage.flush()
    assert store.storage.stats.entries_flushed == 5 * LEDGERS
    assert await store.marks.durable(store.disk) == 5 * LEDGERS
    assert store.storage.write_cache_bytes == 0
    store = await store.restart()
    for ledger in range(LEDGERS):
        assert await store.read(ledger, 3) == body_of(ledger, 3)
    await store.storage.close()


async def test_a_ledger_deleted_between_two_attempts_stays_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    store = await open_store(settings=dataclasses.replace(SMALL, flush_interval_s=3600.0))
    commits = _Commits(store, monkeypatch)
    for ledger in range(LEDGERS):
        await store.put_ids(ledger, range(2))
    commits.allowed = 1
    with pytest.raises(DiskFullError):
        await store.storage.flush()
    for ledger in (0, LEDGERS - 1):  # one that is flushed, and one that is not
        await store.storage.delete_ledger(LedgerId(ledger))
    await store.storage.flush()
    store = await store.restart()
    assert await store.storage.ledgers() == list(range(1, LEDGERS - 1))
    await store.storage.close()


async def test_reads_find_every_entry_while_parts_are_committed() -> None:
    store = await open_store()
    for ledger in range(LEDGERS):
        await store.put_ids(ledger, range(3))
    flushing = asyncio.ensure_future(store.storage.flush())
    rounds = 0
    while not flushing.done():
        assert await store.read(rounds % LEDGERS, 1) == body_of(rounds % LEDGERS, 1)
        await asyncio.sleep(0)
        rounds += 1
    assert rounds > LEDGERS
    await store.storage.close()


@one_in(5)
@pytest.mark.parametrize("survival", ["none", "random", "all"])
async def test_a_power_cut_between_any_two_writes_loses_nothing(
    survival: Survival, every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flush_worker, "LEDGERS_PER_PART", 1)
    step = 0
    while await crash_at(step, survival):
        step += every
    assert step > 60, "each part must write"
