"""A crash at every write, and flipped bits: no stored entry is ever reported as absent or returned with other bytes."""

import gc
import struct
import weakref

import pytest

from quire_bookie.errors import DamagedError, NoSuchEntryError
from quire_bookie.model import NO_ENTRY, EntryId, LedgerId
from quire_bookie.storage.formats.index_keys import block_key, state_key
from tests.sim.disk import SimDisk, Survival
from tests.support.sampling import one_in
from tests.unit.bookie.storage.crashes import crash_at
from tests.unit.bookie.storage.store import DIRECTORY, body_of, open_store


@one_in(5)
@pytest.mark.parametrize("survival", ["none", "random", "all"])
async def test_after_a_crash_at_any_write_everything_is_readable(survival: Survival, every: int) -> None:
    step = 0
    while await crash_at(step, survival):
        step += every
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


async def test_a_truncated_log_is_damage_from_there_on_and_adds_continue_in_another() -> None:
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


async def test_a_damaged_index_block_raises_damage_and_does_not_stop_flushes() -> None:
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
    assert await store.storage.ledgers() == [1], "a ledger with a damaged state counts as held"
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


async def test_a_disposed_storage_leaves_no_cycles_for_the_garbage_collector() -> None:
    disk = SimDisk()
    left = weakref.ref(disk)
    gc.disable()
    try:
        assert await crash_at(5, "none", disk)
        del disk
        assert left() is None, "leaked disks add up to gigabytes over these tests"
    finally:
        gc.enable()
