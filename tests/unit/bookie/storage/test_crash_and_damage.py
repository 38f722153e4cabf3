"""A crash at every write, and bits that flip: nothing stored is ever answered as absent or as other bytes."""

import asyncio
import struct

import pytest

from quire_bookie.errors import DamagedError, NoSuchEntryError, QuireError
from quire_bookie.model import NO_ENTRY, EntryId, LedgerId
from quire_bookie.storage.index_keys import block_key, state_key
from tests.sim.disk import SimDisk, Survival
from tests.unit.bookie.storage.store import DIRECTORY, SimMarks, Store, body_of, open_store

Expected = dict[tuple[int, int], bytes]


async def _scenario(store: Store, expected: Expected) -> None:
    """Several flushes: dense, striped, late, stored again, large entries that roll the log, a deletion."""
    for version in range(3):
        await _note(store, expected, 1, range(version * 100, version * 100 + 110), version)
        await _note(store, expected, 2, [e for e in range(version * 60, version * 60 + 60) if e % 3 != 1], version)
        await _note(store, expected, 3, [version * 300, 5, 1000 - version], version)
        await _note(store, expected, 4, range(version * 6, version * 6 + 6), version, 90_000)
        await store.storage.flush()
        if version == 1:
            await store.storage.delete_ledger(LedgerId(3))
            for key in [key for key in expected if key[0] == 3]:
                del expected[key]
            await store.storage.drop_dead_logs()


async def _note(
    store: Store, expected: Expected, ledger: int, ids: "range | list[int]", version: int, size: int = 40
) -> None:
    info = await store.ledger(ledger)
    if info.deleted:
        return
    for entry in ids:
        body = body_of(ledger, entry, size, version=version)
        await store.put(ledger, entry, [body])
        expected[ledger, entry] = body


async def _replay(crashed: Store, heir: SimDisk) -> Store:
    """What a bookie does at its next start: open, then everything after the mark once more."""
    store = await open_store(heir)
    mark = await crashed.marks.durable(heir)
    store.marks = crashed.marks
    marks = SimMarks(heir, crashed.marks.records)
    store.storage._flushes.marks = marks
    for run in crashed.marks.records[mark:]:
        info = await store.ledger(run.ledger)
        if not info.deleted:
            await store.storage.wait_for_room()
            store.storage.put(info, run)
    return store


async def _check(store: Store, expected: Expected) -> None:
    for (ledger, entry), body in expected.items():
        info = await store.storage.load_ledger(LedgerId(ledger))
        assert info is not None
        if not info.deleted:
            assert await store.read(ledger, entry) == body, (ledger, entry)


async def _crash_at(step: int, survival: Survival) -> bool:
    """Run, die after `step` changes, recover, check. False once the scenario ends before the crash."""
    disk = SimDisk()
    expected: Expected = {}
    try:
        store = await open_store(disk)
        disk.crash_after(step)
        await _scenario(store, expected)
    except (OSError, QuireError):
        assert disk.crashed
    finished = not disk.crashed
    heir = disk.crash(survival, seed=step)
    await _let_the_dead_rest(store)
    again = await _replay(store, heir)
    await _check(again, expected)
    await again.storage.flush()
    await _check(again, expected)
    once_more = await _replay(again, heir.crash(survival, seed=step + 1))
    await _check(once_more, expected)
    assert once_more.storage.stats.logs_damaged == 0
    for one in (again, once_more):
        await _let_the_dead_rest(one)
    return not finished


async def _let_the_dead_rest(store: Store) -> None:
    worker = store.storage._flushes.task
    assert worker is not None
    worker.cancel()
    await asyncio.wait((worker,))


@pytest.mark.parametrize("survival", ["none", "random", "all"])
async def test_after_a_crash_at_any_write_everything_is_readable(survival: Survival) -> None:
    step = 0
    while await _crash_at(step, survival):
        step += 1
    assert step > 30, "the scenario must write often enough to mean something"


def _record_offset(content: bytes, ledger: int, entry: int) -> int:
    return content.index(struct.pack("<qq", ledger, entry)) - 8


@pytest.mark.parametrize("where", [0, 5, 9, 17, 30, 60])
async def test_a_flipped_bit_in_a_record_is_damage_for_that_entry_only(where: int) -> None:
    store = await open_store()
    await store.put_ids(1, range(50))
    store = await store.restart()
    path = f"{DIRECTORY}/{1:016x}.qlog"
    store.disk.corrupt(path, _record_offset(store.disk.content(path), 1, 20) + where)
    with pytest.raises(DamagedError, match="qlog"):
        await store.read(1, 20)
    for entry in (0, 19, 21, 49):
        assert await store.read(1, entry) == body_of(1, entry)
    found = await store.storage.read_many(LedgerId(1), EntryId(10), 40, 1 << 20)
    assert len(found) == 10
    assert store.storage.stats.reads_damaged >= 1
    await store.storage.close()


async def test_a_cut_log_is_damage_where_it_is_cut_and_adds_go_on_in_another() -> None:
    store = await open_store()
    await store.put_ids(1, range(50))
    store = await store.restart()
    await store.storage.close()
    path = f"{DIRECTORY}/{1:016x}.qlog"
    store.disk.cut(path, _record_offset(store.disk.content(path), 1, 30) + 7)
    store = await open_store(store.disk)
    assert store.storage.stats.logs_damaged == 1
    assert await store.read(1, 29) == body_of(1, 29)
    for entry in (30, 49):
        with pytest.raises(DamagedError):
            await store.read(1, entry)
    await store.put_ids(1, range(50, 60))
    store = await store.restart()
    assert await store.read(1, 55) == body_of(1, 55)
    assert await store.read(1, 7) == body_of(1, 7)
    await store.storage.close()


async def test_a_missing_log_is_damage_and_never_absence() -> None:
    store = await open_store()
    await store.put_ids(1, range(5))
    await store.storage.close()
    await store.disk.remove(f"{DIRECTORY}/{1:016x}.qlog")
    store = await open_store(store.disk)
    with pytest.raises(DamagedError):
        await store.read(1, 2)
    with pytest.raises(NoSuchEntryError):
        await store.read(1, 6)
    await store.storage.close()


async def test_a_damaged_index_block_answers_damage_and_does_not_stop_flushes() -> None:
    store = await open_store()
    await store.put_ids(1, range(600))
    store = await store.restart()
    store.index.damage(block_key(LedgerId(1), 0))
    with pytest.raises(DamagedError):
        await store.read(1, 20)
    assert await store.read(1, 300) == body_of(1, 300)
    await store.put_ids(1, [20], version=1)
    await store.storage.flush()
    store.index._damaged.clear()  # the new value replaced the damaged page
    assert await store.read(1, 20) == body_of(1, 20, version=1)
    with pytest.raises(DamagedError):
        await store.read(1, 21)
    await store.storage.close()


async def test_damage_of_the_last_block_makes_the_last_entry_unprovable_not_lower() -> None:
    store = await open_store()
    await store.put_ids(1, range(600))
    store = await store.restart()
    key = block_key(LedgerId(1), 2)
    value = bytearray(store.index._image.current[key])
    value[-1] ^= 1
    store.index._image.current[key] = bytes(value)
    for entry in (NO_ENTRY, 599, 520):
        with pytest.raises(DamagedError):
            await store.read(1, entry)
    assert await store.read(1, 511) == body_of(1, 511)
    await store.put_ids(1, [600])
    assert await store.read(1, 600) == body_of(1, 600)
    await store.storage.close()


async def test_a_damaged_ledger_state_is_damage_and_not_an_unknown_ledger() -> None:
    store = await open_store()
    await store.put_ids(1, [0])
    store = await store.restart()
    value = bytearray(store.index._image.current[state_key(LedgerId(1))])
    value[6] ^= 1
    store.index._image.current[state_key(LedgerId(1))] = bytes(value)
    with pytest.raises(DamagedError):
        await store.storage.load_ledger(LedgerId(1))
    with pytest.raises(AssertionError):
        store.storage.create_ledger(LedgerId(1), b"other")
    await store.storage.close()


async def test_a_log_with_a_damaged_map_is_kept() -> None:
    store = await open_store()
    await store.put_ids(1, range(40), 60_000)
    await store.storage.flush()
    assert store.storage.stats.logs_sealed >= 1
    path = f"{DIRECTORY}/{1:016x}.qlog"
    store.disk.corrupt(path, len(store.disk.content(path)) - 60)
    await store.storage.delete_ledger(LedgerId(1))
    await store.storage.drop_dead_logs()
    assert await store.disk.exists(path)
    assert store.storage.stats.logs_damaged == 1
    await store.storage.close()
