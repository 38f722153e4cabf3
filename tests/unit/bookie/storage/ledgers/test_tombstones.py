"""Tombstones of deleted ledgers: their expiry, and that late writers never recreate a ledger before it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire_bookie.errors import NoSuchEntryError, NoSuchLedgerError, QuireError
from quire_bookie.model import LedgerId
from quire_bookie.settings.storage import StorageSettings
from quire_bookie.storage import LedgerStorage
from quire_bookie.storage.formats.index_keys import DELETIONS_END, DELETIONS_START, block_key, deletion_key, state_key
from quire_bookie.storage.ledgers.tombstones import decode_deletion, encode_deletion
from tests.sim.disk import SimDisk
from tests.sim.index_store import SimIndexStore
from tests.unit.bookie.storage.crashes import dispose_crashed
from tests.unit.bookie.storage.store import DIRECTORY, SMALL, SimMarks, Store, body_of, run_of

WEEK_MS = 7 * 86_400_000


class _Clock:
    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self.ms = now_ms

    def now_ms(self) -> int:
        return self.ms


async def _open(clock: _Clock, disk: SimDisk | None = None, settings: StorageSettings = SMALL) -> Store:
    disk = disk or SimDisk()
    await disk.make_dirs("/data")
    index, marks = SimIndexStore(disk), SimMarks(disk)
    storage = await LedgerStorage.open(
        disk=disk, index=index, directories=[DIRECTORY], settings=settings, marks=marks, clock=clock
    )
    return Store(disk, index, marks, storage)


async def _deleted(store: Store, *ledgers: int) -> None:
    for ledger in ledgers:
        await store.put_ids(ledger, range(3))
    await store.storage.flush()
    for ledger in ledgers:
        await store.storage.delete_ledger(LedgerId(ledger))
    await store.storage.flush()


async def _deletions(store: Store) -> list[bytes]:
    return [key async for key, _value in store.index.scan(DELETIONS_START, DELETIONS_END)]


async def _age(store: Store, ledger: int, clock: _Clock) -> int:
    value = await store.index.get(deletion_key(LedgerId(ledger)))
    assert value is not None
    at_ms = decode_deletion(LedgerId(ledger), value)
    assert at_ms is not None
    return clock.ms - at_ms


async def test_a_tombstone_expires_after_a_week() -> None:
    clock = _Clock()
    store = await _open(clock)
    await _deleted(store, 1)
    clock.ms += WEEK_MS - 1
    assert await store.storage.expire_tombstones() == 0
    info = await store.storage.load_ledger(LedgerId(1))
    assert info is not None and info.deleted and info.fenced
    with pytest.raises(NoSuchLedgerError):
        store.storage.put(info, run_of(1, 3, [body_of(1, 3)]))
    del info
    clock.ms += 1
    assert await store.storage.expire_tombstones() == 1
    assert await store.storage.load_ledger(LedgerId(1)) is None
    assert await _deletions(store) == [] and await store.index.get(state_key(LedgerId(1))) is None
    assert store.storage.stats.tombstones_expired == 1
    await store.storage.close()


async def test_a_ledger_recreated_after_the_expiry_is_new_and_without_the_old_entries() -> None:
    clock = _Clock()
    store = await _open(clock)
    await _deleted(store, 1)
    clock.ms += WEEK_MS
    await store.storage.expire_tombstones()
    await store.put_ids(1, [7], version=5)
    store = await store.restart()
    assert await store.read(1, 7) == body_of(1, 7, version=5)
    with pytest.raises(Exception, match="no entry 1"):
        await store.read(1, 1)
    await store.storage.close()


async def test_live_ledgers_and_younger_tombstones_stay() -> None:
    clock = _Clock()
    store = await _open(clock)
    await _deleted(store, 1, 2)
    clock.ms += WEEK_MS // 2
    await store.put_ids(4, range(3))
    await _deleted(store, 3)
    clock.ms += WEEK_MS // 2
    assert await store.storage.expire_tombstones() == 2
    assert await store.storage.load_ledger(LedgerId(3)) is not None
    assert await store.read(4, 2) == body_of(4, 2)
    assert await store.storage.ledgers() == [4]
    await store.storage.close()


async def test_a_tombstone_in_use_or_not_flushed_is_kept_until_the_next_expiry() -> None:
    clock = _Clock()
    store = await _open(clock)
    await _deleted(store, 1)
    await store.put_ids(2, range(3))
    await store.storage.delete_ledger(LedgerId(2))  # its state waits for a flush
    clock.ms += WEEK_MS
    held = await store.storage.load_ledger(LedgerId(1))
    assert await store.storage.expire_tombstones() == 0
    assert held is not None and (await store.storage.load_ledger(LedgerId(1))) is held
    del held
    await store.storage.flush()
    assert await store.storage.expire_tombstones() == 2
    await store.storage.close()


async def test_the_age_of_a_tombstone_of_an_earlier_version_counts_from_when_it_is_found() -> None:
    clock = _Clock()
    store = await _open(clock)
    await _deleted(store, 1)
    await store.index.commit([], [deletion_key(LedgerId(1))])
    await store.storage.close()
    clock.ms += 2 * WEEK_MS
    store = await _open(clock, store.disk)
    assert await store.storage.expire_tombstones() == 0
    assert await _age(store, 1, clock) == 0
    clock.ms += WEEK_MS
    assert await store.storage.expire_tombstones() == 1
    await store.storage.close()


async def test_a_future_or_damaged_time_is_replaced_by_the_present() -> None:
    clock = _Clock()
    store = await _open(clock)
    await _deleted(store, 1, 2)
    await store.index.commit([(deletion_key(LedgerId(2)), b"nonsense")])
    clock.ms -= 3 * WEEK_MS
    assert await store.storage.expire_tombstones() == 0
    assert await _age(store, 1, clock) == await _age(store, 2, clock) == 0
    clock.ms += WEEK_MS
    assert await store.storage.expire_tombstones() == 2
    await store.storage.close()


async def test_a_time_without_a_tombstone_is_removed_and_the_live_ledger_stays() -> None:
    clock = _Clock()
    store = await _open(clock)
    await store.put_ids(1, range(3))
    await store.storage.flush()
    await store.index.commit([(deletion_key(LedgerId(1)), encode_deletion(LedgerId(1), 0))])
    assert await store.storage.expire_tombstones() == 0
    assert await _deletions(store) == []
    assert await store.read(1, 2) == body_of(1, 2)
    await store.storage.close()


async def test_a_tombstone_with_a_damaged_state_is_kept() -> None:
    clock = _Clock()
    store = await _open(clock)
    await _deleted(store, 1)
    value = bytearray(store.index._image.current[state_key(LedgerId(1))])
    value[6] ^= 1
    store.index._image.current[state_key(LedgerId(1))] = bytes(value)
    clock.ms += WEEK_MS
    assert await store.storage.expire_tombstones() == 0
    assert await store.index.get(state_key(LedgerId(1))) == bytes(value)
    await store.storage.close()


async def test_after_a_crash_at_any_write_a_tombstone_and_its_time_exist_together_or_not_at_all() -> None:
    for step in range(60):
        clock, disk = _Clock(), SimDisk()
        store = await _open(clock, disk)
        await store.put_ids(1, range(3))
        await store.storage.flush()
        disk.crash_after(step)
        deleted = expired = False
        try:
            await store.storage.delete_ledger(LedgerId(1))
            deleted = True
            await store.storage.flush()
            clock.ms += WEEK_MS
            expired = await store.storage.expire_tombstones() == 1
        except (OSError, QuireError):
            assert disk.crashed
        finished = not disk.crashed
        again = await _open(clock, disk.crash("none"))
        await dispose_crashed(store)
        info = await again.storage.load_ledger(LedgerId(1))
        has_time = await _deletions(again) != []
        if info is None:
            assert deleted and not has_time
        else:
            assert not expired and has_time is info.deleted and (info.deleted or not deleted)
        await dispose_crashed(again)
        if finished:
            assert info is None
            return
    raise AssertionError("the scenario did not finish")


@given(st.integers(0, 2**63 - 1), st.integers(-(2**63), 2**63 - 1))
def test_times_round_trip_and_belong_to_their_ledger(ledger: int, at_ms: int) -> None:
    value = encode_deletion(LedgerId(ledger), at_ms)
    assert decode_deletion(LedgerId(ledger), value) == at_ms
    assert decode_deletion(LedgerId(ledger ^ 1), value) is None


@given(st.binary(max_size=20))
def test_other_bytes_decode_to_no_time(value: bytes) -> None:
    assert decode_deletion(LedgerId(5), value) is None


async def test_blocks_that_a_crash_left_are_removed_with_the_tombstone() -> None:
    clock = _Clock()
    store = await _open(clock)
    kept = store.index.delete_range

    async def lost(_start: bytes, _end: bytes) -> None:
        """Do nothing, as if a crash came before this was durable."""

    store.index.delete_range = lost  # type: ignore[method-assign,assignment]
    await _deleted(store, 1)
    store.index.delete_range = kept  # type: ignore[method-assign]
    assert await store.index.get(block_key(LedgerId(1), 0)) is not None
    clock.ms += WEEK_MS
    assert await store.storage.expire_tombstones() == 1
    assert await store.index.get(block_key(LedgerId(1), 0)) is None
    await store.put_ids(1, [7])
    with pytest.raises(NoSuchEntryError):
        await store.read(1, 1)
    await store.storage.close()
