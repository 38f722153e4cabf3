"""A crash at every write of a compaction, with concurrent re-adds and deletions: no entry is lost."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from quire_bookie.errors import NoSuchLedgerError, QuireError
from quire_bookie.model import LedgerId
from tests.sim.disk import SimDisk, Survival
from tests.support.sampling import one_in
from tests.unit.bookie.storage.crashes import dispose_crashed
from tests.unit.bookie.storage.store import SimMarks, Store, body_of, open_store
from tests.unit.bookie.storage.test_compaction import Pace, sealed

SIZE = 70_000
LEDGERS = 5


@dataclass
class History:
    """The entries stored last, and the deleted ledgers."""

    stored: dict[tuple[int, int], bytes] = field(default_factory=dict)
    deleting: set[int] = field(default_factory=set)
    deleted: set[int] = field(default_factory=set)

    async def put(self, store: Store, ledger: int, ids: range, size: int = SIZE, version: int = 0) -> None:
        for entry in ids:
            body = body_of(ledger, entry, size, version=version)
            await store.put(ledger, entry, [body])
            self.stored[ledger, entry] = body

    async def delete(self, store: Store, ledger: int) -> None:
        self.deleting.add(ledger)
        await store.storage.delete_ledger(LedgerId(ledger))
        self.deleted.add(ledger)


async def prepare(store: Store, history: History) -> None:
    """Fill three sealed logs with entries of each ledger."""
    for start in range(0, 20, 4):
        for ledger in range(LEDGERS):
            await history.put(store, ledger, range(start, start + 4))
        await store.storage.flush()
    await history.delete(store, 0)
    await history.delete(store, 1)


async def scenario(store: Store, history: History) -> None:
    """Run a compaction, with all other kinds of writes in its middle."""

    class Meanwhile(Pace):
        async def on_spend(self) -> None:
            step = (1 << 30) - self.left
            if step == 1:
                await history.put(store, 2, range(2, 5), 500, version=1)
                await store.storage.flush()
            elif step == 2:
                await history.delete(store, 3)
                await history.put(store, 4, range(1), 300, version=2)
            elif step == 3:
                await store.storage.drop_dead_logs()
                await store.storage.flush()

    await store.storage.compaction.usages_now()
    await store.storage.compaction.compact(sealed(store), Meanwhile())
    await history.put(store, 2, range(6, 7), 400, version=3)
    await store.storage.flush()
    await store.storage.compaction.compact(sealed(store), Pace())


async def reopen(dead: Store, survivor: SimDisk) -> Store:
    """Open the storage as a bookie does at its start, and replay everything after the mark."""
    store = await open_store(survivor)
    records = list(dead.marks.records)
    for run in records[await dead.marks.durable(survivor) :]:
        info = await store.ledger(run.ledger)
        if not info.deleted:
            await store.storage.wait_for_space()
            store.storage.put(info, run)
    store.marks.records = records
    store.storage._flushes.marks = SimMarks(survivor, records)
    return store


async def check(store: Store, history: History) -> None:
    for ledger in history.deleted:
        with pytest.raises(NoSuchLedgerError):
            await store.read(ledger, 0)
    for (ledger, entry), body in history.stored.items():
        if ledger not in history.deleting:
            assert await store.read(ledger, entry) == body, (ledger, entry)
    assert store.storage.stats.logs_damaged == 0
    assert store.storage.compaction.stats.records_damaged == 0


async def rest(store: Store) -> None:
    """End all tasks of a crashed storage and release its memory."""
    tasks = {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
    await dispose_crashed(store)


async def prepared() -> tuple[Store, History]:
    """Return a stopped store with the initial state of every crash, which copies its disk."""
    store, history = await open_store(SimDisk()), History()
    await prepare(store, history)
    await rest(store)
    return store, history


async def crash_at(step: int, survival: Survival, origin: Store, before: History) -> bool:
    """Crash after `step` changes, restart, compact to the end, restart. False: the scenario ended before the crash."""
    history = History(dict(before.stored), set(before.deleting), set(before.deleted))
    disk = origin.disk.crash("all")
    store = await reopen(origin, disk)
    disk.crash_after(step)
    try:
        await scenario(store, history)
    except (OSError, QuireError):
        assert disk.crashed
    finished = not disk.crashed
    survivor = disk.crash(survival, seed=step)
    await rest(store)
    again = await reopen(store, survivor)
    await check(again, history)
    await again.storage.flush()
    await again.storage.compaction.compact(sealed(again), Pace())
    await check(again, history)
    last = survivor.crash(survival, seed=step + 1)
    await rest(again)
    once_more = await reopen(again, last)
    await check(once_more, history)
    await rest(once_more)
    return not finished


@one_in(5)
@pytest.mark.parametrize("survival", ["none", "random", "all"])
async def test_after_a_crash_at_any_write_every_entry_is_in_the_old_or_the_new_log(
    survival: Survival, every: int
) -> None:
    origin, before = await prepared()
    step = 0
    while await crash_at(step, survival, origin, before):
        step += every
    assert step > 30, "compaction must write often enough to mean something"


async def disturbance(store: Store, history: History, chance: random.Random) -> None:
    """Run one random concurrent operation: adds, re-adds, flushes, deletions, drops, reads."""
    ledger = chance.randrange(12)
    kind = chance.random()
    if ledger in history.deleting:
        return
    if kind < 0.55:
        start = chance.randrange(30)
        sizes = [100, 9_000, SIZE]
        await history.put(store, ledger, range(start, start + 6), chance.choice(sizes), chance.randrange(9))
    elif kind < 0.75:
        await store.storage.flush()
    elif kind < 0.83:
        await history.delete(store, ledger)
    elif kind < 0.9:
        await store.storage.drop_dead_logs()
    elif history.stored:
        ledger, entry = chance.choice(sorted(history.stored))
        if ledger not in history.deleting:
            assert await store.read(ledger, entry) == history.stored[ledger, entry]


class Together(Pace):
    """Runs `act` in the middle of a compaction, once or between all batches."""

    def __init__(self, act: Callable[[], Awaitable[None]], *, always: bool = False) -> None:
        super().__init__()
        self._act: Callable[[], Awaitable[None]] | None = act
        self._always = always

    async def on_spend(self) -> None:
        if self._act is not None:
            act, self._act = self._act, self._act if self._always else None
            await act()


async def run_random(seed: int) -> int:
    """Run random adds, re-adds, deletions, flushes, drops and crashes around compactions that stop anywhere."""
    chance = random.Random(seed)
    disk = SimDisk()
    history = History()
    store = await open_store(disk)
    moved = 0

    class Disturbed(Pace):
        async def on_spend(self) -> None:
            await disturbance(store, history, chance)

    for _ in range(4):
        if chance.random() < 0.7:
            disk.crash_after(chance.randrange(150))
        try:
            for _ in range(25):
                await disturbance(store, history, chance)
            logs = sealed(store)
            chance.shuffle(logs)
            await store.storage.compaction.usages_now()
            await store.storage.compaction.compact(logs, Disturbed(batches=chance.choice([1, 3, 1000])))
            await check(store, history)
        except (OSError, QuireError):
            if not disk.crashed:
                raise
        moved += store.storage.compaction.stats.entries_moved
        disk = disk.crash(chance.choice(["none", "random", "all"]), seed=chance.randrange(1 << 30))
        await rest(store)
        store = await reopen(store, disk)
        await check(store, history)
    await rest(store)
    return moved


@pytest.mark.parametrize("seed", range(16))
async def test_any_order_of_operations_with_crashes_loses_and_resurrects_nothing(seed: int) -> None:
    await run_random(seed)


async def test_the_random_runs_move_entries() -> None:
    assert sum([await run_random(seed) for seed in range(3)]) > 30
