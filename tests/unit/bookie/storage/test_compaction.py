"""Compaction: live entries move, concurrent changes are kept, and nothing is lost."""

import asyncio
import dataclasses
from collections.abc import Sequence

import pytest

from quire_bookie.errors import DamagedError, DiskFullError, NoSuchLedgerError
from quire_bookie.model import Buffer, LedgerId
from quire_bookie.storage.formats.index_keys import block_key
from quire_bookie.storage.formats.log_format import LOG_HEADER_BYTES
from quire_bookie.storage.logs.log_appender import LogAppender
from tests.sim.disk import SimFile
from tests.unit.bookie.storage.rebuilt_stores import rebuild
from tests.unit.bookie.storage.store import SMALL, Store, body_of, open_store

BIG = 60_000


class Pace:
    """Counts batches, and stops after `batches` of them. `on_spend` runs in the middle of a compaction."""

    def __init__(self, batches: int = 1 << 30) -> None:
        self.left = batches
        self.spent_bytes = 0
        self.spent_entries = 0

    @property
    def stopping(self) -> bool:
        return self.left <= 0

    async def spend(self, size_bytes: int, entries: int, /) -> None:
        self.left -= 1
        self.spent_bytes += size_bytes
        self.spent_entries += entries
        await self.on_spend()

    async def on_spend(self) -> None:
        await asyncio.sleep(0)


async def filled(store: Store, *, ledgers: int = 4, entries: int = 30, size: int = BIG) -> None:
    """Fill several sealed logs, each with entries of all ledgers."""
    for start in range(0, entries, 3):
        for ledger in range(ledgers):
            await store.put_ids(ledger, range(start, start + 3), size)
        await store.storage.flush()


def logs_of(store: Store) -> list[str]:
    return sorted(path for path in store.disk._names if path.endswith(".qlog"))


def sealed(store: Store) -> list[int]:
    return [state.log for state in store.storage._logs.sealed()]


async def check(store: Store, ledger: int, ids: range, size: int = BIG, version: int = 0) -> None:
    for entry in ids:
        assert await store.read(ledger, entry) == body_of(ledger, entry, size, version=version), (ledger, entry)


async def test_live_entries_move_and_the_old_logs_are_deleted() -> None:
    store = await open_store()
    await filled(store)
    old = sealed(store)
    assert len(old) >= 3
    for ledger in (0, 2, 3):
        await store.storage.delete_ledger(LedgerId(ledger))
    usages = await store.storage.compaction.usages_now()
    assert [usage.log for usage in usages] == old
    assert all(0.2 < usage.share < 0.3 for usage in usages)
    before = sum(len(store.disk.content(path)) for path in logs_of(store))
    pace = Pace()
    freed = await store.storage.compaction.compact(old, pace)
    after = sum(len(store.disk.content(path)) for path in logs_of(store))
    assert freed > 0.6 * sum(usage.file_bytes for usage in usages)
    assert abs((before - after) - freed) < 3 * 8192
    assert not set(old) & set(sealed(store))
    assert pace.spent_entries == store.storage.compaction.stats.entries_moved > 15
    await check(store, 1, range(30))
    with pytest.raises(NoSuchLedgerError):
        await store.read(0, 1)
    store = await store.restart()
    await check(store, 1, range(30))
    assert store.storage.stats.logs_damaged == 0
    await store.storage.close()


async def test_a_log_of_compaction_is_continued_by_the_next_one_and_compacted_like_any_other() -> None:
    store = await open_store()
    await filled(store)
    await store.storage.delete_ledger(LedgerId(0))
    for log in sealed(store):
        await store.storage.compaction.compact([log], Pace())
    assert len(logs_of(store)) <= 4, "each call continues the log of the previous one"
    await store.storage.delete_ledger(LedgerId(1))
    await store.storage.delete_ledger(LedgerId(2))
    again = [usage.log for usage in await store.storage.compaction.usages_now() if usage.share < 0.8]
    assert again
    await store.storage.compaction.compact(again, Pace())
    await check(store, 3, range(30))
    store = await store.restart()
    await check(store, 3, range(30))
    await store.storage.close()


async def test_keys_and_fences_are_copied_so_that_the_index_can_be_rebuilt() -> None:
    """Covers a ledger of which a log has only an old state record."""
    store = await open_store()
    quiet = await store.ledger(9, b"the key of nine")
    store.storage.fence(quiet)
    await filled(store)
    for ledger in (0, 1, 2):
        await store.storage.delete_ledger(LedgerId(ledger))
    first = sealed(store)[0]
    assert 9 in await store.storage._logs.read_map(first)
    await store.storage.compaction.compact([first], Pace())
    content = b"".join(store.disk.content(path) for path in logs_of(store))
    assert b"the key of nine" in content
    assert b"k" * 20 in content, "and the key of the ledger whose entries were moved"
    store = await store.restart()
    info = await store.storage.load_ledger(LedgerId(9))
    assert info is not None and info.fenced and info.master_key == b"the key of nine"
    await store.storage.close()


async def test_an_entry_that_is_stored_again_during_compaction_keeps_its_newer_bytes() -> None:
    store = await open_store()
    await filled(store)
    await store.storage.delete_ledger(LedgerId(0))

    class Meanwhile(Pace):
        async def on_spend(self) -> None:
            if self.left == (1 << 30) - 1:
                await store.put_ids(1, range(4), version=7)
                await store.storage.flush()

    await store.storage.compaction.compact(sealed(store), Meanwhile())
    await check(store, 1, range(4), 40, version=7)
    await check(store, 1, range(4, 30))
    store = await store.restart()
    await check(store, 1, range(4), 40, version=7)
    await store.storage.close()


async def test_a_ledger_that_is_deleted_during_compaction_stays_deleted() -> None:
    store = await open_store()
    await filled(store)
    await store.storage.delete_ledger(LedgerId(0))

    class Meanwhile(Pace):
        async def on_spend(self) -> None:
            await store.storage.delete_ledger(LedgerId(1))
            await store.storage.drop_dead_logs()

    await store.storage.compaction.compact(sealed(store), Meanwhile())
    with pytest.raises(NoSuchLedgerError):
        await store.read(1, 0)
    await check(store, 2, range(30))
    store = await store.restart()
    with pytest.raises(NoSuchLedgerError):
        await store.read(1, 0)
    assert [key async for key, _ in store.index.scan(block_key(LedgerId(1), 0), block_key(LedgerId(2), 0))] == []
    await check(store, 2, range(30))
    await store.storage.close()


async def test_reads_succeed_during_compaction() -> None:
    store = await open_store(settings=dataclasses.replace(SMALL, read_cache_bytes=1000))
    await filled(store, entries=18)
    await store.storage.delete_ledger(LedgerId(0))
    done = asyncio.Event()
    reads = 0

    async def reader(ledger: int) -> None:
        nonlocal reads
        while not done.is_set():
            for entry in range(18):
                assert await store.read(ledger, entry) == body_of(ledger, entry, BIG)
                reads += 1

    readers = [asyncio.ensure_future(reader(ledger)) for ledger in (1, 2, 3)]
    for _ in range(5):
        await store.storage.compaction.compact(sealed(store), Pace())
        await asyncio.sleep(0)
    done.set()
    await asyncio.gather(*readers)
    assert reads > 100
    await store.storage.close()


async def test_a_reader_that_looked_up_the_old_position_finds_the_new_one() -> None:
    store = await open_store(settings=dataclasses.replace(SMALL, read_cache_bytes=1000))
    await filled(store)
    await store.storage.delete_ledger(LedgerId(0))
    reader = store.storage._reader
    original = reader._read_extent
    planned: list[int] = []

    async def slow(info, plan):  # type: ignore[no-untyped-def]
        planned.append(plan.log)
        if len(planned) == 1:
            reader._read_extent = original  # type: ignore[method-assign]
            await store.storage.compaction.compact([plan.log], Pace())
        return await original(info, plan)

    reader._read_extent = slow  # type: ignore[method-assign]
    assert await store.read(1, 0) == body_of(1, 0, BIG)
    assert planned and planned[0] not in sealed(store)
    await store.storage.close()


async def test_a_damaged_record_keeps_its_log_and_intact_records_move() -> None:
    store = await open_store()
    await filled(store)
    await store.storage.delete_ledger(LedgerId(0))
    first = sealed(store)[0]
    path = store.storage._logs.files.path(first)
    place = store.disk.content(path).index(body_of(1, 4, BIG))
    store.disk.corrupt(path, place + 100)
    await store.storage.compaction.compact([first], Pace())
    assert await store.disk.exists(path)
    assert store.storage.compaction.stats.records_damaged == 1
    assert store.storage.compaction.stats.logs_incomplete == 1
    assert first in store.storage._logs.quarantine
    with pytest.raises(DamagedError, match=path):
        await store.read(1, 4)
    await check(store, 1, range(4))
    await check(store, 1, range(5, 30))
    assert first not in [usage.log for usage in await store.storage.compaction.usages_now()]
    await store.storage.close()


async def test_a_damaged_index_block_keeps_the_log_that_it_may_name() -> None:
    store = await open_store()
    await filled(store)
    await store.storage.delete_ledger(LedgerId(0))
    key = block_key(LedgerId(2), 0)
    value = bytearray(store.index._image.current[key])
    value[-1] ^= 1
    store.index._image.current[key] = bytes(value)
    old = sealed(store)
    await store.storage.compaction.compact(old, Pace())
    assert set(old) <= set(sealed(store))
    await check(store, 1, range(30))
    with pytest.raises(DamagedError):
        await store.read(2, 0)
    await store.storage.close()


async def test_a_block_that_is_damaged_while_its_records_are_copied_keeps_the_log() -> None:
    store = await open_store()
    await filled(store)
    await store.storage.delete_ledger(LedgerId(0))
    key = block_key(LedgerId(2), 0)

    class Meanwhile(Pace):
        async def on_spend(self) -> None:
            store.index.damage(key)

    old = sealed(store)[:1]
    await store.storage.compaction.compact(old, Meanwhile())
    assert set(old) <= set(sealed(store))
    store.index._damaged.clear()
    await check(store, 2, range(30))
    await store.storage.close()


async def test_compaction_stops_on_request_and_keeps_what_it_moved() -> None:
    store = await open_store()
    await filled(store)
    await store.storage.delete_ledger(LedgerId(0))
    old = sealed(store)
    await store.storage.compaction.compact(old, Pace(batches=1))
    left = [log for log in old if log in sealed(store)]
    assert left and store.storage.compaction.stats.entries_moved > 0
    await store.storage.compaction.compact(left, Pace())
    assert not set(old) & set(sealed(store))
    for ledger in (1, 2, 3):
        await check(store, ledger, range(30))
    await store.storage.close()


async def test_a_cancelled_compaction_changes_nothing() -> None:
    store = await open_store()
    await filled(store)
    await store.storage.delete_ledger(LedgerId(0))
    names = logs_of(store)
    reached = asyncio.Event()

    class Stuck(Pace):
        async def on_spend(self) -> None:
            reached.set()
            await asyncio.Event().wait()

    task = asyncio.ensure_future(store.storage.compaction.compact(sealed(store), Stuck()))
    await reached.wait()
    assert len(logs_of(store)) > len(names)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert logs_of(store) == names
    for ledger in (1, 2, 3):
        await check(store, ledger, range(30))
    assert await store.storage.compaction.compact(sealed(store), Pace()) > 0
    await check(store, 3, range(30))
    await store.storage.close()


async def test_a_compaction_cancelled_during_a_write_rolls_back_only_after_that_write() -> None:
    """A thread completes its write despite a cancellation: after a rollback it would hit truncated or other files."""
    store = await open_store()
    await filled(store)
    await store.storage.delete_ledger(LedgerId(0))
    names = logs_of(store)
    writing, go_on = asyncio.Event(), asyncio.Event()
    order: list[str] = []
    real_write, real_close = SimFile.write, SimFile.close

    async def write(file: SimFile, offset: int, buffers: Sequence[Buffer]) -> None:
        thread = asyncio.ensure_future(held_write(file, offset, buffers))
        await asyncio.shield(thread)

    async def held_write(file: SimFile, offset: int, buffers: Sequence[Buffer]) -> None:
        writing.set()
        await go_on.wait()
        await real_write(file, offset, buffers)
        order.append("written")

    async def close(file: SimFile) -> None:
        order.append("closed")
        await real_close(file)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SimFile, "write", write)
        patch.setattr(SimFile, "close", close)
        task = asyncio.ensure_future(store.storage.compaction.compact(sealed(store), Pace()))
        await writing.wait()
        task.cancel()
        for _ in range(50):
            await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert order.index("written") < order.index("closed")
    assert logs_of(store) == names
    await store.storage.close()


async def test_the_next_compaction_waits_for_the_rollback_of_one_that_was_cancelled_twice() -> None:
    """The second cancellation ends the caller, not the rollback, which would undo what the next one has begun."""
    store = await open_store()
    await filled(store)
    await store.storage.delete_ledger(LedgerId(0))
    compaction = store.storage.compaction
    copied, closing, go_on = asyncio.Event(), asyncio.Event(), asyncio.Event()
    order: list[str] = []
    real_begin, real_rewind, real_close = LogAppender.begin, LogAppender.rewind, SimFile.close

    class Stuck(Pace):
        async def on_spend(self) -> None:
            copied.set()
            await asyncio.Event().wait()

    async def begin(appender: LogAppender, age: int = 0, *, spend_floor: bool = False) -> None:
        order.append("begin")
        await real_begin(appender, age, spend_floor=spend_floor)

    async def rewind(appender: LogAppender) -> bool:
        try:
            return await real_rewind(appender)
        finally:
            order.append("rewound")

    async def close(file: SimFile) -> None:
        closing.set()
        await go_on.wait()
        await real_close(file)

    with pytest.MonkeyPatch.context() as patch:
        for kind, name, replacement in (
            (LogAppender, "begin", begin),
            (LogAppender, "rewind", rewind),
            (SimFile, "close", close),
        ):
            patch.setattr(kind, name, replacement)
        task = asyncio.ensure_future(compaction.compact(sealed(store), Stuck()))
        await copied.wait()
        task.cancel()
        await closing.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        following = asyncio.ensure_future(compaction.compact(sealed(store), Pace()))
        for _ in range(50):
            await asyncio.sleep(0)
        go_on.set()
        assert await following > 0
    assert order == ["begin", "rewound", "begin"]
    for ledger in (1, 2, 3):
        await check(store, ledger, range(30))
    await store.storage.close()


@pytest.mark.parametrize("steps", range(0, 60, 3))
async def test_a_compaction_cancelled_during_its_commit_rolls_nothing_back(steps: int) -> None:
    """A rollback would remove a log that the running commit is about to name."""
    store = await open_store()
    await filled(store, entries=12)
    await store.storage.delete_ledger(LedgerId(0))
    copied = asyncio.Event()

    class Copied(Pace):
        async def on_spend(self) -> None:
            copied.set()

    task = asyncio.ensure_future(store.storage.compaction.compact(sealed(store), Copied()))
    await copied.wait()
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    for ledger in (1, 2, 3):
        await check(store, ledger, range(12))
    store = await store.restart()
    for ledger in (1, 2, 3):
        await check(store, ledger, range(12))
    assert store.storage.stats.logs_damaged == 0
    await store.storage.close()


async def test_no_space_rolls_the_compaction_back() -> None:
    store = await open_store(settings=dataclasses.replace(SMALL, compaction_reserved_bytes=0))
    await filled(store)
    await store.storage.delete_ledger(LedgerId(0))
    names = logs_of(store)
    store.disk.capacity_bytes = store.disk._used_bytes() + 1_200_000
    with pytest.raises(DiskFullError):
        await store.storage.compaction.compact(sealed(store), Pace())
    assert logs_of(store) == names
    for ledger in (1, 2, 3):
        await check(store, ledger, range(30))
    store.disk.capacity_bytes = 1 << 40
    await store.storage.compaction.compact(sealed(store), Pace())
    await check(store, 2, range(30))
    assert store.storage.failure is None
    await store.storage.close()


async def test_a_failed_sync_is_final_as_in_a_flush() -> None:
    store = await open_store()
    await filled(store)
    await store.storage.delete_ledger(LedgerId(0))
    store.disk.fail_next("sync", ".qlog", OSError("the device"))
    with pytest.raises(OSError, match="the device"):
        await store.storage.compaction.compact(sealed(store), Pace())
    assert store.storage.failure is not None
    for ledger in (1, 2, 3):
        await check(store, ledger, range(30))
    survivor = store.disk.crash()
    again = await open_store(survivor)
    for ledger in (1, 2, 3):
        await check(again, ledger, range(30))
    await again.storage.close()


async def test_small_entries_in_striped_and_scattered_ids_move() -> None:
    store = await open_store(settings=dataclasses.replace(SMALL, write_cache_bytes=4 << 20))
    for version in range(3):
        await store.put_ids(1, [e for e in range(version * 400, version * 400 + 400) if e % 3 != 1], 700)
        await store.put_ids(2, [version * 1_000_003, 5 + version, 100_000 - version], 700)
        await store.put_ids(3, range(version * 700, version * 700 + 700), 700)
        await store.storage.flush()
    await store.put_ids(2, [5], 700, version=3)
    await store.put_ids(4, range(3000), 700)
    await store.storage.flush()
    await store.storage.delete_ledger(LedgerId(3))
    await store.storage.compaction.compact(sealed(store), Pace())
    assert store.storage.compaction.stats.logs_compacted >= 1
    for version in range(3):
        for entry in range(version * 400, version * 400 + 400):
            if entry % 3 != 1:
                assert await store.read(1, entry) == body_of(1, entry, 700)
        for entry in (version * 1_000_003, 100_000 - version):
            assert await store.read(2, entry) == body_of(2, entry, 700)
    assert await store.read(2, 5) == body_of(2, 5, 700, version=3)
    await check(store, 4, range(3000), 700)
    await store.storage.close()


async def test_usages_follow_deletions_without_reading_maps_again() -> None:
    store = await open_store()
    await filled(store)
    first = await store.storage.compaction.usages_now()
    assert all(usage.share == 1.0 for usage in first)
    store.disk.fail_next("read", ".qlog", OSError("no map is read"))
    await store.storage.delete_ledger(LedgerId(1))
    second = await store.storage.compaction.usages_now()
    assert all(0.7 < usage.share < 0.8 for usage in second)
    assert all(usage.file_bytes > LOG_HEADER_BYTES for usage in second)
    assert store.disk._faults, "the planned failure was not used"
    store.disk._faults.clear()
    await store.storage.close()


async def test_usages_beyond_the_bound_are_looked_up_again() -> None:
    store = await open_store()
    await filled(store)
    usages = store.storage.compaction.usages
    usages._lines_max = 5
    await usages.refresh()
    assert usages._lines_kept <= 5
    await store.storage.delete_ledger(LedgerId(1))
    assert all(0.7 < usage.share < 0.8 for usage in await usages.refresh())
    await store.storage.close()


async def test_a_restart_finds_the_usages_again() -> None:
    store = await open_store()
    await filled(store)
    await store.storage.delete_ledger(LedgerId(1))
    before = await store.storage.compaction.usages_now()
    store = await store.restart()
    assert await store.storage.compaction.usages_now() == before
    await store.storage.close()


async def test_an_index_rebuilt_after_a_compaction_has_entries_keys_and_fences() -> None:
    """The fence is set while compaction copies the earlier state, so the copy is in the later log."""
    store = await open_store()
    quiet = await store.ledger(9, b"the key of nine")
    store.storage.fence(quiet)
    await filled(store)
    for ledger in (0, 2):
        await store.storage.delete_ledger(LedgerId(ledger))
    await store.storage.flush()

    class Meanwhile(Pace):
        async def on_spend(self) -> None:
            store.storage.fence(await store.ledger(1))
            await store.put_ids(3, range(2), version=5)
            await store.storage.flush()

    await store.storage.compaction.compact(sealed(store), Meanwhile())
    assert store.storage.compaction.stats.logs_compacted >= 3
    await store.storage.close()
    report = await rebuild(store.disk)
    assert not report.damage and not report.losses and not report.without_key
    store = await open_store(store.disk)
    await check(store, 1, range(30))
    await check(store, 3, range(2, 30))
    for entry in range(2):  # an older copy of an entry may win
        assert await store.read(3, entry) in (body_of(3, entry, version=5), body_of(3, entry, BIG))
    for ledger, key in ((1, b"k" * 20), (9, b"the key of nine")):
        info = await store.storage.load_ledger(LedgerId(ledger))
        assert info is not None and info.fenced and info.master_key == key, ledger
    await store.storage.close()
