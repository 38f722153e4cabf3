"""The storage as used by a bookie, on a simulated disk."""

import asyncio
import dataclasses
import struct
from collections.abc import Sequence

import pytest

from quire_bookie.errors import (
    DamagedError,
    DiskFullError,
    NoSuchEntryError,
    NoSuchLedgerError,
    StartupError,
    StorageError,
    TooManyRequestsError,
)
from quire_bookie.limits import ENTRY_LOG_STRETCH_BYTES
from quire_bookie.model import NO_ENTRY, EntryId, LedgerId
from quire_bookie.storage.formats.index_keys import block_key, last_block_key, state_key
from tests.unit.bookie.storage.store import DIRECTORY, MARK, SMALL, body_of, open_store, run_of


async def test_entries_are_read_before_and_after_a_flush_and_after_a_restart() -> None:
    store = await open_store()
    await store.put(7, 0, [body_of(7, entry) for entry in range(600)])
    assert await store.read(7, 599) == body_of(7, 599)
    await store.storage.flush()
    assert [await store.read(7, entry) for entry in (0, 255, 256, 599)] == [body_of(7, e) for e in (0, 255, 256, 599)]
    store = await store.restart()
    assert await store.read(7, 300) == body_of(7, 300)
    assert store.storage.stats.log_reads == 1 or store.storage.stats.log_reads == 2
    await store.storage.close()


async def test_absence_is_reported_of_the_ledger_or_of_the_entry() -> None:
    store = await open_store()
    with pytest.raises(NoSuchLedgerError):
        await store.read(1, 0)
    await store.put_ids(1, [3])
    await store.storage.flush()
    for entry in (0, 2, 4, 1 << 40):
        with pytest.raises(NoSuchEntryError):
            await store.read(1, entry)
    await store.ledger(2)
    with pytest.raises(NoSuchEntryError):
        await store.read(2, NO_ENTRY)
    await store.storage.close()


async def test_the_last_entry_is_that_of_cache_and_index_and_survives_a_restart() -> None:
    store = await open_store()
    await store.put_ids(5, [10, 700, 3])
    assert await store.read(5, NO_ENTRY) == body_of(5, 700)
    await store.storage.flush()
    await store.put_ids(5, [650])
    store = await store.restart()
    info = await store.storage.load_ledger(LedgerId(5))
    assert info is not None and info.last_entry == 700
    assert await store.read(5, NO_ENTRY) == body_of(5, 700)
    await store.storage.close()


async def test_the_lac_of_a_reloaded_ledger_is_that_of_its_last_entry() -> None:
    store = await open_store()
    await store.put(5, 0, [body_of(5, 0, lac=-1), body_of(5, 1, lac=0)], lac=0)
    store = await store.restart()
    info = await store.storage.load_ledger(LedgerId(5))
    assert info is not None and info.lac == 0
    await store.storage.close()


@pytest.mark.parametrize("flushed", [0, 1, 2])
async def test_an_entry_stored_again_is_read_with_the_newer_bytes(flushed: int) -> None:
    store = await open_store()
    await store.put_ids(1, range(10))
    if flushed:
        await store.storage.flush()
        assert await store.read(1, 4) == body_of(1, 4)  # now in the read cache
    await store.put_ids(1, [4], version=1)
    assert await store.read(1, 4) == body_of(1, 4, version=1)
    if flushed == 2:
        await store.storage.flush()
    assert await store.read(1, 4) == body_of(1, 4, version=1)
    assert await store.read(1, 5) == body_of(1, 5)
    store = await store.restart()
    assert await store.read(1, 4) == body_of(1, 4, version=1)
    await store.storage.close()


async def test_an_older_copy_of_a_read_in_flight_does_not_stay_in_the_read_cache() -> None:
    store = await open_store()
    await store.put_ids(1, range(10))
    await store.storage.flush()
    reading = asyncio.ensure_future(store.read(1, 4))
    await asyncio.sleep(0)
    await store.put_ids(1, [4], version=1)
    await store.storage.flush()
    await reading
    assert await store.read(1, 4) == body_of(1, 4, version=1)
    await store.storage.close()


async def test_states_survive_flush_and_restart() -> None:
    store = await open_store()
    info = await store.ledger(9, b"m" * 20)
    store.storage.fence(info)
    store.storage.set_explicit_lac(info, b"packet", EntryId(12))
    await store.storage.flush()
    store = await store.restart()
    found = await store.storage.load_ledger(LedgerId(9))
    assert found is not None
    assert (found.master_key, found.fenced, found.explicit_lac, found.lac) == (b"m" * 20, True, b"packet", 12)
    await store.storage.close()


async def test_an_explicit_lac_replaces_a_higher_one_and_the_known_lac_never_decreases() -> None:
    store = await open_store()
    info = await store.ledger(9, b"m" * 20)
    store.storage.set_explicit_lac(info, b"higher", EntryId(12))
    store.storage.set_explicit_lac(info, b"lower", EntryId(11))
    assert (info.explicit_lac, info.lac) == (b"lower", 12)
    await store.storage.flush()
    store = await store.restart()
    found = await store.storage.load_ledger(LedgerId(9))
    assert found is not None
    assert found.explicit_lac == b"lower"
    await store.storage.close()


async def test_a_fence_during_a_flush_is_written_by_the_next_one() -> None:
    store = await open_store()
    await store.put_ids(9, [0])
    flushing = asyncio.ensure_future(store.storage.flush())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    store.storage.fence(await store.ledger(9))
    await flushing
    await store.storage.flush()
    survivor = store.disk.crash()
    again = await open_store(survivor)
    found = await again.storage.load_ledger(LedgerId(9))
    assert found is not None and found.fenced
    await again.storage.close()


async def test_a_deleted_ledger_is_gone_and_stays_a_tombstone() -> None:
    store = await open_store()
    await store.put_ids(1, range(300))
    await store.put_ids(2, range(3))
    await store.storage.flush()
    await store.put_ids(1, [300])
    await store.storage.delete_ledger(LedgerId(1))
    await store.storage.delete_ledger(LedgerId(1))
    with pytest.raises(NoSuchLedgerError):
        await store.read(1, 0)
    for _ in range(2):
        assert await store.storage.ledgers() == [2]
        info = await store.storage.load_ledger(LedgerId(1))
        assert info is not None and info.deleted and info.fenced
        with pytest.raises(NoSuchLedgerError):
            store.storage.put(info, run_of(1, 301, [body_of(1, 301)]))
        store = await store.restart()
    pairs = [pair async for pair in store.index.scan(block_key(LedgerId(1), 0), last_block_key(LedgerId(1)))]
    assert pairs == []
    await store.storage.close()


async def test_a_deletion_survives_a_flush_that_waited_for_space() -> None:
    store = await open_store()
    await store.put_ids(1, range(3))
    store.disk.fail_next("write", ".qlog", DiskFullError("full"))
    with pytest.raises(DiskFullError):
        await store.storage.flush()
    await store.storage.delete_ledger(LedgerId(1))
    await store.storage.flush()
    again = await open_store(store.disk.crash())
    info = await again.storage.load_ledger(LedgerId(1))
    assert info is not None and info.deleted
    await again.storage.close()


async def test_puts_are_refused_while_both_halves_are_full_and_accepted_after_the_flush() -> None:
    store = await open_store()
    info = await store.ledger(1)
    with pytest.raises(TooManyRequestsError):
        for entry in range(100_000):
            store.storage.put(info, run_of(1, entry, [body_of(1, entry, 1000)]))
    refused = info.last_entry + 1
    assert store.storage.stats.puts_rejected == 1
    await store.storage.wait_for_space()
    store.storage.put(info, run_of(1, refused, [body_of(1, refused, 1000)]))
    for entry in (0, refused // 2, refused):
        assert await store.read(1, entry) == body_of(1, entry, 1000)
    await store.storage.close()
    assert store.marks.commits >= 2


async def test_reads_during_a_flush_always_find_the_entry() -> None:
    store = await open_store()
    await store.put_ids(3, range(500))
    flushing = asyncio.ensure_future(store.storage.flush())
    rounds = 0
    while not flushing.done():
        assert await store.read(3, rounds % 500) == body_of(3, rounds % 500)
        await asyncio.sleep(0)
        rounds += 1
    assert rounds > 3
    assert await store.read(3, 77) == body_of(3, 77)
    await store.storage.close()


async def test_identical_reads_share_one_disk_read() -> None:
    store = await open_store()
    await store.put_ids(3, range(50))
    await store.storage.flush()
    found = await asyncio.gather(*(store.read(3, entry) for entry in [7] * 20 + list(range(7, 50))))
    assert found[0] == body_of(3, 7) and found[-1] == body_of(3, 49)
    assert store.storage.stats.log_reads == 1
    assert store.storage.stats.reads_joined > 20
    await store.storage.close()


async def test_a_cancelled_reader_does_not_affect_the_others() -> None:
    store = await open_store()
    await store.put_ids(3, range(5))
    await store.storage.flush()
    first = asyncio.ensure_future(store.read(3, 1))
    second = asyncio.ensure_future(store.read(3, 2))
    await asyncio.sleep(0)
    first.cancel()
    assert await second == body_of(3, 2)
    await store.storage.close()


async def test_a_cancelled_flush_still_completes() -> None:
    store = await open_store()
    await store.put_ids(3, range(500))
    flushing = asyncio.ensure_future(store.storage.flush())
    await asyncio.sleep(0)
    flushing.cancel()
    await store.storage.flush()
    await store.put_ids(3, [500])
    store = await store.restart()
    assert await store.read(3, 499) == body_of(3, 499)
    await store.storage.close()


async def test_read_many_is_bounded_by_count_bytes_and_gaps() -> None:
    store = await open_store()
    await store.put_ids(1, [*range(10), *range(11, 20)])
    await store.storage.flush()
    read = store.storage.read_many
    assert len(await read(LedgerId(1), EntryId(0), 4, 10_000)) == 4
    assert len(await read(LedgerId(1), EntryId(0), 100, 10_000)) == 10
    assert len(await read(LedgerId(1), EntryId(0), 100, 72 * 3 + 10)) == 3
    assert len(await read(LedgerId(1), EntryId(0), 100, 1)) == 1
    with pytest.raises(NoSuchEntryError):
        await read(LedgerId(1), EntryId(10), 5, 1000)
    await store.storage.close()


async def test_a_full_disk_loses_nothing_and_the_flush_succeeds_once_there_is_space() -> None:
    store = await open_store()
    await store.put_ids(1, range(200))
    await store.storage.flush()
    await store.put_ids(1, range(200, 900))
    store.disk.capacity_bytes = 40_000
    with pytest.raises(DiskFullError):
        await store.storage.flush()
    assert store.storage.disk_full and store.storage.failure is None
    assert await store.read(1, 850) == body_of(1, 850) and await store.read(1, 5) == body_of(1, 5)
    store.disk.capacity_bytes = 1 << 40
    await store.storage.flush()
    assert not store.storage.disk_full
    store = await store.restart()
    for entry in (5, 850):
        assert await store.read(1, entry) == body_of(1, entry)
    await store.storage.close()


@pytest.mark.parametrize("operation", ["write", "sync", "commit", "create"])
async def test_running_out_of_space_in_the_middle_of_a_flush_rolls_it_back(operation: str) -> None:
    store = await open_store()
    if operation == "write":
        await store.put_ids(1, range(5))
        await store.storage.flush()
    await store.put_ids(1, range(5, 900))
    path = "/index" if operation == "commit" else ".qlog"
    store.disk.fail_next(operation, path, DiskFullError("no space"))
    with pytest.raises(DiskFullError):
        await store.storage.flush()
    assert await store.read(1, 600) == body_of(1, 600)
    await store.storage.flush()
    store = await store.restart()
    assert await store.read(1, 600) == body_of(1, 600)
    assert store.storage.stats.logs_damaged == 0
    await store.storage.close()


async def test_a_flush_leaves_the_reserved_bytes_alone_but_a_deletion_may_use_them() -> None:
    settings = dataclasses.replace(SMALL, reserved_bytes=500_000)
    store = await open_store(settings=settings)
    await store.put_ids(1, range(100))
    await store.storage.flush()
    store.disk.capacity_bytes = 450_000
    await store.put_ids(1, range(100, 200))
    with pytest.raises(DiskFullError):
        await store.storage.flush()
    with pytest.raises(DiskFullError):
        await store.storage.wait_for_space()
    await store.storage.delete_ledger(LedgerId(1))
    assert await store.storage.ledgers() == []
    await store.storage.close()


async def test_a_failed_sync_fails_the_storage_and_is_not_retried() -> None:
    store = await open_store()
    seen: list[BaseException] = []
    store.storage.on_failure = seen.append
    await store.put_ids(1, range(5))
    store.disk.fail_next("sync", ".qlog", OSError(5, "Input/output error"))
    with pytest.raises(OSError, match="Input/output"):
        await store.storage.flush()
    assert len(seen) == 1 and store.storage.failure is seen[0]
    with pytest.raises(StorageError):
        await store.storage.flush()
    assert await store.read(1, 3) == body_of(1, 3)
    await store.storage.close()
    assert store.marks.commits == 0 and store.storage.stats.flushes == 0


async def test_a_failed_sync_of_a_log_being_sealed_fails_the_storage_at_once() -> None:
    store = await open_store()
    seen: list[BaseException] = []
    store.storage.on_failure = seen.append
    await store.put_ids(1, range(8), 10_000)
    await store.storage.flush()
    store.disk.fail_next("sync", ".qlog", OSError(5, "Input/output error"))
    with pytest.raises(OSError, match="Input/output"):
        await store.storage.seal_logs()
    assert len(seen) == 1 and store.storage.failure is seen[0]
    await store.storage.close()


async def test_without_space_for_the_mark_no_entry_is_written_twice_and_the_mark_moves_later() -> None:
    store = await open_store()
    await store.put_ids(1, range(50))
    for _ in range(3):
        store.disk.fail_next("replace", MARK, DiskFullError("no space"))
        with pytest.raises(DiskFullError):
            await store.storage.flush()
    assert store.storage.disk_full
    assert store.storage.write_cache_bytes == 0 and store.storage.stats.entries_flushed == 50
    assert await store.read(1, 49) == body_of(1, 49)
    await store.storage.flush()
    assert await store.marks.durable(store.disk) == 50 and not store.storage.disk_full
    await store.storage.close()


async def test_an_empty_flush_moves_the_mark_so_that_the_journal_can_recycle() -> None:
    store = await open_store()
    await store.put_ids(1, range(3))
    await store.storage.flush()
    store.marks.records.append(run_of(1, 0, []))  # as a fence of a fenced ledger: no change in storage
    await store.storage.flush()
    assert await store.marks.durable(store.disk) == 4
    assert store.storage.stats.flushes == 1
    await store.storage.close()


async def test_an_unexpected_error_in_the_background_flush_fails_the_storage() -> None:
    store = await open_store(settings=dataclasses.replace(SMALL, flush_interval_s=0.0))
    failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
    store.storage.on_failure = failed.set_result
    await store.ledger(1, b"k" * 70_000)  # no state can hold such a key; the bookie rejects it in requests
    async with asyncio.timeout(60):
        assert isinstance(await failed, struct.error)
    await store.storage.close()


async def test_a_close_whose_flush_fails_still_releases_everything() -> None:
    store = await open_store()
    await store.put_ids(1, range(5))
    store.disk.fail_next("sync", ".qlog", OSError(5, "Input/output error"))
    await store.storage.close()
    assert isinstance(store.storage.failure, OSError)
    store = await open_store(store.disk)
    await store.storage.close()


async def test_only_logs_without_a_live_ledger_are_dropped() -> None:
    store = await open_store()
    for ledger in (1, 2):
        await store.put_ids(ledger, range(40), 60_000)
    await store.put_ids(3, range(40), 60_000)
    await store.storage.flush()
    sealed = store.storage.stats.logs_sealed
    assert sealed >= 3
    assert await store.storage.drop_dead_logs() == 0
    await store.storage.delete_ledger(LedgerId(1))
    freed = await store.storage.drop_dead_logs()
    assert freed > 1 << 20
    assert await store.storage.drop_dead_logs() == 0
    for ledger in (2, 3):
        assert [await store.read(ledger, e) for e in (0, 39)] == [body_of(ledger, e, 60_000) for e in (0, 39)]
    await store.storage.delete_ledger(LedgerId(2))
    await store.storage.delete_ledger(LedgerId(3))
    store = await store.restart()
    await store.storage.drop_dead_logs()
    names = await store.disk.list_dir(DIRECTORY)
    assert sum(name.endswith(".qlog") for name in names) <= 1
    await store.storage.close()


async def test_an_index_that_lost_commits_or_belongs_to_another_bookie_is_refused() -> None:
    store = await open_store()
    await store.put_ids(1, [0])
    await store.storage.flush()
    old = dict(store.index._image.current)
    await store.put_ids(1, [1])
    store = await store.restart()
    await store.storage.close()
    image = store.index._image
    kept = image.current
    image.current, image.keys = old, sorted(old)
    with pytest.raises(DamagedError, match="was durable"):
        await open_store(store.disk)
    image.current, image.keys = {}, []
    with pytest.raises(StartupError, match="index is missing or empty"):
        await open_store(store.disk)
    image.current, image.keys = kept, sorted(kept)
    await (await open_store(store.disk)).storage.close()
    other = await open_store()
    await other.storage.close()
    store.disk._names[f"{DIRECTORY}/index.proof"] = other.disk._names[f"{DIRECTORY}/index.proof"]
    with pytest.raises(StartupError, match="different bookies"):
        await open_store(store.disk)


async def test_an_empty_index_beside_logs_or_a_proof_alone_is_refused() -> None:
    store = await open_store()
    await store.put_ids(1, [0])
    await store.storage.close()
    image, names = store.index._image, await store.disk.list_dir(DIRECTORY)
    image.current, image.keys = {}, []
    proof, logs = [f"{DIRECTORY}/index.proof"], [f"{DIRECTORY}/{name}" for name in names if name.endswith(".qlog")]
    assert logs
    for away, rest in ((proof, "1 entry logs"), (logs, "0 entry logs")):
        kept = {path: store.disk._names.pop(path) for path in away}
        with pytest.raises(StartupError, match=f"holds {rest}, but its index is missing or empty"):
            await open_store(store.disk)
        store.disk._names.update(kept)


async def test_a_block_larger_than_a_stretch_is_flushed_whole() -> None:
    settings = dataclasses.replace(SMALL, write_cache_bytes=16 << 20, entry_log_bytes_max=8 << 20)
    store = await open_store(settings=settings)
    await store.put_ids(1, range(250), 12_000)
    assert 2 * ENTRY_LOG_STRETCH_BYTES < 250 * 12_000
    store = await store.restart(settings)
    assert [await store.read(1, entry) for entry in range(250)] == [body_of(1, entry, 12_000) for entry in range(250)]
    await store.storage.close()


async def test_the_release_of_a_half_is_reported_in_a_step_in_which_a_refused_put_succeeds() -> None:
    store = await open_store()
    info = await store.ledger(1)
    with pytest.raises(TooManyRequestsError):
        for entry in range(100_000):
            store.storage.put(info, run_of(1, entry, [body_of(1, entry, 1000)]))
    refused, accepted = info.last_entry + 1, list[int]()

    def put_again() -> None:
        if not accepted:
            store.storage.put(info, run_of(1, refused, [body_of(1, refused, 1000)]))
            accepted.append(refused)

    store.storage.on_space = put_again
    await store.storage.wait_for_space()
    assert accepted == [refused]
    await store.storage.flush()
    assert await store.read(1, refused) == body_of(1, refused, 1000)
    await store.storage.close()


async def test_a_full_half_is_flushed_automatically() -> None:
    store = await open_store()
    info = await store.ledger(1)
    entry = 0
    while store.storage.stats.flushes == 0:
        await store.storage.wait_for_space()
        store.storage.put(info, run_of(1, entry, [body_of(1, entry, 500)]))
        entry += 1
        await asyncio.sleep(0)
    assert await store.read(1, 0) == body_of(1, 0, 500)
    await store.storage.close()


async def test_many_changed_states_are_flushed_automatically_without_any_entry() -> None:
    settings = dataclasses.replace(SMALL, changed_states_max=10, flush_interval_s=3600.0)
    store = await open_store(settings=settings)
    for number in range(9):
        await store.ledger(number)
    assert store.storage._states.dirty_count == 9
    info = await store.ledger(9)
    assert store.storage._states.dirty_count == 0, "they are part of the flush"
    store.storage.fence(info)
    store.storage.set_explicit_lac(info, b"packet", EntryId(3))
    await store.storage.wait_for_space()
    assert store.storage.stats.flushes == 1
    store = await store.restart(settings)
    assert await store.storage.ledgers() == list(range(10))
    found = await store.storage.load_ledger(LedgerId(9))
    assert found is not None and found.fenced and found.explicit_lac == b"packet"
    await store.storage.close()


async def test_an_entry_is_not_served_if_its_ledger_is_deleted_during_the_read() -> None:
    store = await open_store()
    await store.put_ids(1, range(20), 1000)
    store = await store.restart()
    await store.ledger(1)
    reading = asyncio.ensure_future(store.storage.read(LedgerId(1), EntryId(3)))
    await asyncio.sleep(0)
    info = store.storage.cached_ledger(LedgerId(1))
    assert info is not None and not reading.done()
    info.deleted = info.fenced = True  # as `delete_ledger` does first
    with pytest.raises(NoSuchLedgerError):
        await reading
    await store.storage.close()


async def test_a_ledger_is_new_only_above_every_id_that_a_commit_named_and_unless_it_is_in_memory() -> None:
    long = LedgerId(1 << 40)
    store = await open_store()
    storage = store.storage
    assert storage.is_unseen(LedgerId(5)) and storage.is_unseen(long)
    storage.create_ledger(LedgerId(5), b"key")
    assert not storage.is_unseen(LedgerId(5)) and storage.is_unseen(LedgerId(4)) and storage.is_unseen(LedgerId(6))
    await storage.flush()
    assert not any(map(storage.is_unseen, (LedgerId(4), LedgerId(5)))) and storage.is_unseen(LedgerId(6))
    assert storage.is_unseen(long), "each id space has its own highest id"
    store = await store.restart()
    storage = store.storage
    assert not any(map(storage.is_unseen, (LedgerId(4), LedgerId(5)))) and storage.is_unseen(LedgerId(6))
    await storage.load_ledger(LedgerId(5))
    await storage.delete_ledger(LedgerId(5))
    store = await store.restart()
    assert not store.storage.is_unseen(LedgerId(5))
    await store.storage.close()


async def test_many_ledgers_are_proved_absent_by_one_read_unless_a_part_of_the_index_is_damaged() -> None:
    store = await open_store()
    for ledger in (2, 4):
        await store.put_ids(ledger, range(3))
    await store.storage.flush()
    await store.ledger(3)
    wanted = [LedgerId(each) for each in (1, 2, 3, 4, 5)]
    store = await store.restart()
    await store.ledger(3)
    assert await store.storage.absent_of(wanted) == {1, 5}
    store.storage.create_ledger(LedgerId(1), b"key")
    store.index.damage(state_key(LedgerId(4)))
    assert await store.storage.absent_of(wanted) == set()
    assert await store.storage.absent_of([LedgerId(5)]) == {5}
    await store.storage.close()


async def test_a_ledger_that_a_flush_writes_during_the_read_is_not_proved_absent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = await open_store(settings=dataclasses.replace(SMALL, ledger_states_max=1))
    get_many, reads = store.index.get_many, 0

    async def overtaken(keys: Sequence[bytes]) -> list[bytes | None]:
        """Return what the index had before the ledger was stored and left the memory."""
        nonlocal reads
        reads += 1
        values = await get_many(keys)
        if reads == 1:
            monkeypatch.setattr(store.index, "get_many", get_many)
            await store.put_ids(7, range(2))
            await store.storage.flush()
            for ledger in range(100, 110):
                await store.ledger(ledger)
            monkeypatch.setattr(store.index, "get_many", overtaken)
        return values

    monkeypatch.setattr(store.index, "get_many", overtaken)
    assert await store.storage.absent_of([LedgerId(7)]) == set()
    assert reads == 2
    await store.storage.close()
