"""Deletion of ledgers during reads, writes and flushes; revival of superfluous copies."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from quire_bookie.errors import (
    DamagedError,
    DiskFullError,
    NoSuchEntryError,
    NoSuchLedgerError,
    QuireError,
    UnknownLedgerStateError,
)
from quire_bookie.model import NO_ENTRY, LedgerId
from quire_bookie.storage.deletion import Unchanged
from quire_bookie.storage.formats.block_index import decode_block
from quire_bookie.storage.formats.index_keys import block_key
from quire_bookie.storage.ledgers.ledger_states import LedgerInfo, encode_state, revived_state
from tests.sim.disk import SimDisk, Survival
from tests.unit.bookie.storage.crashes import dispose_crashed, replay
from tests.unit.bookie.storage.ledgers.test_tombstones import WEEK_MS, _Clock, _open
from tests.unit.bookie.storage.rebuilt_stores import log_paths, rebuild
from tests.unit.bookie.storage.store import Store, body_of, open_store

ONE = LedgerId(1)
KEY = b"k" * 20


class _Pace:
    stopping = False

    async def spend(self, size_bytes: int, entries: int, /) -> None:
        """Do not wait."""


async def delete_copy(store: Store, ledger: LedgerId = ONE) -> bool:
    """Delete a copy as the search for superfluous copies does."""
    info = await store.storage.load_ledger(ledger)
    assert info is not None
    return await store.storage.delete_copy(ledger, Unchanged.of(info))


async def held_again(store: Store, *entries: int) -> None:
    """Check that the ledger is held, fenced, with its key, these entries of version 1 and no others below 10."""
    info = await store.storage.load_ledger(ONE)
    assert info is not None and info.fenced and not info.deleted and info.master_key == KEY
    for entry in range(10):
        if entry in entries:
            assert await store.read(1, entry) == body_of(1, entry, version=1)
        else:
            with pytest.raises(NoSuchEntryError):
                await store.read(1, entry)


async def gone(store: Store) -> None:
    """Check that the ledger is a tombstone."""
    info = await store.storage.load_ledger(ONE)
    assert info is not None and info.fenced and info.deleted
    with pytest.raises(NoSuchLedgerError):
        await store.read(1, 0)


async def test_a_read_in_flight_caches_no_entries_of_a_deleted_ledger() -> None:
    store = await open_store()
    await store.put_ids(1, range(10))
    await store.storage.flush()
    fetch, begun, go_on = store.storage._reader._read_extent, asyncio.Event(), asyncio.Event()

    async def slowly(info: object, plan: object) -> object:
        extent = await fetch(info, plan)  # type: ignore[arg-type]
        begun.set()
        await go_on.wait()
        return extent

    store.storage._reader._read_extent = slowly  # type: ignore[method-assign,assignment]
    reading = asyncio.ensure_future(store.read(1, 3))
    await begun.wait()
    await store.storage.delete_ledger(ONE)
    go_on.set()
    with pytest.raises(NoSuchLedgerError):
        await reading
    assert len(store.storage._read_cache) == 0
    await store.storage.close()


async def test_a_revived_ledger_is_fenced_and_has_only_entries_added_since() -> None:
    store = await open_store()
    await store.put_ids(1, range(5))
    await store.storage.flush()
    await store.put_ids(1, range(5, 10))  # in memory and in the journal
    assert await delete_copy(store)
    await gone(store)
    assert await store.storage.revive_copy(ONE, b"another key")
    info = await store.storage.load_ledger(ONE)
    assert info is not None and info.last_entry == NO_ENTRY and info.lac == NO_ENTRY
    await held_again(store)
    await store.put_ids(1, [2, 7], version=1)
    await held_again(store, 2, 7)
    for _ in range(2):
        store = await store.restart()
        await held_again(store, 2, 7)
        assert await store.storage.ledgers() == [1]
        assert await store.storage.entry_ranges(ONE) == [(2, 2), (7, 7)]
    await store.storage.close()
    await rebuild(store.disk)
    store = await open_store(store.disk)
    info = await store.storage.load_ledger(ONE)
    assert info is not None and info.fenced and not info.deleted and info.revivals == 1
    assert await store.read(1, 2) == body_of(1, 2, version=1) and await store.read(1, 7) == body_of(1, 7, version=1)
    await store.storage.close()


async def test_only_a_superfluous_copy_can_be_revived() -> None:
    store = await open_store()
    await store.put_ids(1, range(10))
    assert not await store.storage.revive_copy(ONE, KEY), "it is not deleted"
    assert not await store.storage.revive_copy(LedgerId(9), KEY), "it was never here"
    await store.storage.delete_ledger(ONE)
    assert not await store.storage.revive_copy(ONE, KEY)
    store = await store.restart()
    assert not await store.storage.revive_copy(ONE, KEY)
    await gone(store)
    await store.storage.close()


async def test_a_copy_that_received_an_entry_in_the_meantime_is_not_deleted() -> None:
    store = await open_store()
    await store.put_ids(1, range(10))
    await store.storage.flush()
    info = await store.ledger(1)
    seen = Unchanged.of(info)
    async with store.storage._flushes.write_lock:  # as during a flush
        deleting = asyncio.ensure_future(store.storage.delete_copy(ONE, seen))
        await asyncio.sleep(0)
        await store.put_ids(1, [4], version=1)
    assert not await deleting
    assert await store.read(1, 4) == body_of(1, 4, version=1) and await store.read(1, 5) == body_of(1, 5)
    await store.storage.close()


async def test_a_revival_without_space_leaves_the_tombstone() -> None:
    store = await open_store()
    await store.put_ids(1, range(3))
    await delete_copy(store)
    await store.storage.flush()
    store.disk.capacity_bytes = 0
    with pytest.raises(DiskFullError):
        await store.storage.revive_copy(ONE, KEY)
    await gone(store)
    store.disk.capacity_bytes = 1 << 40
    assert await store.storage.revive_copy(ONE, KEY)
    await held_again(store)
    await store.storage.close()


async def test_a_revived_ledger_can_be_deleted_again_and_its_first_deletion_does_not_expire_it() -> None:
    clock = _Clock()
    store = await _open(clock)
    await store.put_ids(1, range(3))
    await delete_copy(store)
    assert await store.storage.revive_copy(ONE, KEY)
    await store.put_ids(1, [2], version=1)
    clock.ms += WEEK_MS
    assert await store.storage.expire_tombstones() == 0
    await held_again(store, 2)
    await store.storage.delete_ledger(ONE)
    await gone(store)
    assert not await store.storage.revive_copy(ONE, KEY)
    await store.storage.close()


async def test_blocks_that_a_crash_left_after_a_deletion_are_not_revived_with_the_ledger() -> None:
    store = await open_store()
    await store.put_ids(1, range(10))
    await store.storage.flush()
    value = await store.index.get(block_key(ONE, 0))
    assert value is not None
    await delete_copy(store)
    await store.index.commit([(block_key(ONE, 0), value)], sync=True)
    assert await store.storage.revive_copy(ONE, KEY)
    await store.put_ids(1, [1], version=1)
    await held_again(store, 1)
    store = await store.restart()
    await held_again(store, 1)
    await store.storage.close()


async def test_a_read_that_joined_another_before_a_deletion_caches_no_deleted_entries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = await open_store()
    await store.put_ids(1, range(10))
    await store.storage.flush()
    files, commits = store.storage._logs.files, store.storage._commits
    read, commit = files.read, commits.commit
    reads, tombstone = asyncio.Event(), asyncio.Event()

    async def slow_read(*place: int) -> bytes:
        await reads.wait()
        return await read(*place)

    async def slow_commit(*args: Any, **more: Any) -> None:
        await tombstone.wait()
        await commit(*args, **more)

    monkeypatch.setattr(files, "read", slow_read)
    monkeypatch.setattr(commits, "commit", slow_commit)
    reading = [asyncio.ensure_future(store.read(1, 3)) for _ in range(2)]
    for _ in range(5):
        await asyncio.sleep(0)
    deleting = asyncio.ensure_future(delete_copy(store))
    info = await store.ledger(1)
    for _ in range(5):
        await asyncio.sleep(0)
    assert info.deleted and not deleting.done()
    reads.set()  # the first read caches nothing; the second now reads on its own, while the index still has the entry
    assert [type(error) for error in await asyncio.gather(*reading, return_exceptions=True)] == [NoSuchLedgerError] * 2
    tombstone.set()
    assert await deleting and await store.storage.revive_copy(ONE, KEY)
    await held_again(store)
    await store.put_ids(1, [3], version=1)
    await store.storage.flush()
    await held_again(store, 3)
    await store.storage.close()


@pytest.mark.parametrize("copy", [False, True])
async def test_a_deletion_without_space_in_the_index_changes_nothing_and_can_be_retried(copy: bool) -> None:
    store = await open_store()
    await store.put_ids(1, range(5))
    await store.storage.flush()
    await store.put_ids(1, range(5, 10))
    commit = store.storage._commits.commit

    async def refuse(*_: object, **__: object) -> None:
        raise DiskFullError("test")

    async def delete() -> None:
        if copy:
            await delete_copy(store)
        else:
            await store.storage.delete_ledger(ONE)

    store.storage._commits.commit = refuse  # type: ignore[method-assign]
    with pytest.raises(DiskFullError):
        await delete()
    store.storage._commits.commit = commit  # type: ignore[method-assign]
    assert (await store.ledger(1)).fenced
    for _ in range(2):
        assert await store.storage.ledgers() == [1]
        assert [await store.read(1, entry) for entry in range(10)] == [body_of(1, entry) for entry in range(10)]
        store = await store.restart()
    await delete()
    await gone(store)
    assert await store.index.get(block_key(ONE, 0)) is None
    await store.storage.close()


# Rebuilds of the index


async def _rolled(store: Store) -> None:
    """Seal the log being written, by filling it with a ledger that is deleted."""
    filler = 100 + store.storage._logs.next_log
    await store.storage.flush()
    for half in range(2):
        await store.put_ids(filler, range(20 * half, 20 * half + 20), 90_000)
        await store.storage.flush()
    await store.storage.delete_ledger(LedgerId(filler))


async def _logs_of(store: Store, ledger: int) -> set[int]:
    key = block_key(LedgerId(ledger), 0)
    value = await store.index.get(key)
    assert value is not None
    return {segment.log for segment in decode_block(key, value).segments}


async def _compaction_log_open(store: Store) -> int:
    """Give compaction a log that it continues, with a lower number than those of the flushes."""
    await store.put_ids(8, range(3))
    await _rolled(store)
    await store.storage.compaction.compact(sorted(await _logs_of(store, 8)), _Pace())
    (log,) = await _logs_of(store, 8)
    await _rolled(store)
    assert log < store.storage._logs.next_log - 1
    return log


async def _expired(store: Store, clock: _Clock) -> None:
    await delete_copy(store)
    await _rolled(store)
    clock.ms += WEEK_MS
    assert await store.storage.expire_tombstones() > 0
    assert await store.storage.load_ledger(ONE) is None


async def _revived(store: Store, clock: _Clock) -> None:
    await delete_copy(store)
    await _rolled(store)
    assert await store.storage.revive_copy(ONE, KEY)


@pytest.mark.parametrize("returns", [_expired, _revived])
async def test_entries_that_compaction_moves_of_a_recreated_ledger_survive_a_rebuild(
    returns: Callable[[Store, _Clock], Awaitable[None]],
) -> None:
    """Its entries may be copied to a log with a lower number than that of the tombstone."""
    clock = _Clock()
    store = await _open(clock)
    await store.put_ids(1, range(10))
    compacted = await _compaction_log_open(store)
    await returns(store, clock)
    await store.put_ids(1, range(5), version=1)
    await _rolled(store)
    logs = await _logs_of(store, 1)
    assert min(logs) > compacted
    await store.storage.compaction.compact(sorted(logs), _Pace())
    assert (compacted in await _logs_of(store, 1)) == (returns is _revived)
    await store.storage.close()
    await rebuild(store.disk)
    store = await open_store(store.disk)
    for entry in range(5):
        assert await store.read(1, entry) in (body_of(1, entry, version=1), body_of(1, entry))
    info = await store.storage.load_ledger(ONE)
    assert info is not None and info.fenced
    await store.storage.close()


async def test_a_ledger_that_is_newer_than_its_tombstone_is_fenced_after_a_rebuild() -> None:
    clock = _Clock()
    store = await _open(clock)
    await store.put_ids(1, range(3))
    await store.storage.flush()
    await store.storage.delete_ledger(ONE)
    await store.storage.flush()
    clock.ms += WEEK_MS
    assert await store.storage.expire_tombstones() == 1
    await store.put_ids(1, [5])
    await store.storage.close()
    await rebuild(store.disk)
    store = await open_store(store.disk)
    info = await store.storage.load_ledger(ONE)
    assert info is not None and info.fenced and not info.deleted
    assert await store.read(1, 5) == body_of(1, 5)
    await store.storage.close()


@pytest.mark.parametrize("copy", [False, True])
async def test_a_tombstone_survives_a_rebuild_unchanged(copy: bool) -> None:
    store = await open_store()
    await store.put_ids(1, range(3))
    await store.put_ids(2, range(3))
    await store.storage.flush()
    if copy:
        await delete_copy(store)
    else:
        await store.storage.delete_ledger(ONE)
    await store.storage.close()
    await rebuild(store.disk)
    store = await open_store(store.disk)
    await gone(store)
    assert await store.index.get(block_key(ONE, 0)) is None
    assert await store.storage.revive_copy(ONE, KEY) == copy
    if copy:
        await held_again(store)
    await store.storage.close()


async def test_a_damaged_record_after_the_tombstone_of_a_copy_may_have_been_its_revival() -> None:
    store = await open_store()
    await store.put_ids(1, range(3))
    await store.storage.flush()
    await delete_copy(store)
    await store.storage.flush()
    assert await store.storage.revive_copy(ONE, KEY)
    await store.put_ids(1, [7], version=1)
    await store.storage.close()
    (path,) = log_paths(store.disk)
    content = store.disk._names[path].durable
    revived = revived_state(_tombstone(), KEY)
    for image in (content, store.disk._names[path].current):
        at = image.index(encode_state(revived))
        image[at + 9] ^= 1
        at = image.index(body_of(1, 7, version=1))
        image[at + 40] ^= 1
    await rebuild(store.disk)
    store = await open_store(store.disk)
    assert await store.read(1, 0) == body_of(1, 0), "earlier entries belong to the same ledger"
    for entry in (7, 9):
        with pytest.raises((DamagedError, UnknownLedgerStateError)):
            await store.read(1, entry)
    await store.storage.close()


def _tombstone() -> LedgerInfo:
    info = LedgerInfo(ONE, KEY)
    info.deleted = info.superfluous = True
    return info


async def test_in_limbo_a_superfluous_copy_may_have_been_revived() -> None:
    store = await open_store()
    await store.put_ids(1, range(3))
    await store.put_ids(2, range(3))
    await delete_copy(store)
    await store.storage.delete_ledger(LedgerId(2))
    await store.storage.flush()
    await store.storage.enter_limbo([LedgerId(5)])
    for _ in range(2):
        with pytest.raises(UnknownLedgerStateError):
            await store.read(1, 0)
        with pytest.raises(NoSuchLedgerError):
            await store.read(2, 0)
        store = await store.restart()
    assert await store.storage.revive_copy(ONE, KEY)
    info = await store.ledger(1)
    assert info.limbo and info.fenced
    with pytest.raises(UnknownLedgerStateError):
        await store.read(1, 0)
    await store.storage.end_limbo_of_all()
    await held_again(store)
    await store.storage.close()


# Crashes


async def _scenario(store: Store, done: list[str]) -> None:
    await store.put_ids(1, range(6))
    await store.put_ids(2, range(6))
    await store.storage.flush()
    await store.put_ids(1, range(6, 10))
    assert await delete_copy(store)
    done.append("deleted")
    await store.put_ids(2, range(6, 10))
    assert await store.storage.revive_copy(ONE, KEY)
    done.append("revived")
    await store.put_ids(1, range(3), version=1)
    done.append("put")
    await store.storage.flush()
    await store.put_ids(1, [3], version=1)
    done.append("put more")
    await store.storage.flush()


@pytest.mark.parametrize("survival", ["none", "all", "random"])
async def test_a_crash_anywhere_leaves_the_tombstone_or_the_revived_ledger_with_all_its_entries(
    survival: Survival,
) -> None:
    step, crashed = 0, True
    while crashed:
        step += 1
        disk, done = SimDisk(), list[str]()
        store = await open_store(disk)
        disk.crash_after(step)
        try:
            await _scenario(store, done)
        except (OSError, QuireError):
            assert disk.crashed
        crashed = disk.crashed
        survivor = disk.crash(survival, seed=step)
        await dispose_crashed(store)
        again = await replay(store, survivor)
        await _check_done(again, done)
        await again.storage.flush()
        await _check_done(again, done)
        await again.storage.close()
        await rebuild(survivor)
        rebuilt = await open_store(survivor)
        await _check_done(rebuilt, done, rebuilt=True)
        await rebuilt.storage.close()
    assert step > 15


async def _check_done(store: Store, done: list[str], *, rebuilt: bool = False) -> None:
    for entry in range(10 if "revived" in done else 0):
        assert await store.read(2, entry) == body_of(2, entry)
    info = await store.storage.load_ledger(ONE)
    added = [*range(3 * ("put" in done)), *range(3, 3 + ("put more" in done))]
    if "revived" not in done:
        if "deleted" in done and not rebuilt:  # a tombstone that is in no log yet is lost with the index
            assert info is not None and info.fenced and (info.deleted or info.revivals == 1)
        return
    assert info is not None and info.fenced and not info.deleted and info.revivals == 1
    if rebuilt:  # earlier entries may be found again: they belong to the same, closed ledger
        for entry in added:
            assert await store.read(1, entry) == body_of(1, entry, version=1)
    else:
        for entry in added:
            assert await store.read(1, entry) == body_of(1, entry, version=1)
        for entry in range(4, 10):
            with pytest.raises(NoSuchEntryError):
                await store.read(1, entry)
