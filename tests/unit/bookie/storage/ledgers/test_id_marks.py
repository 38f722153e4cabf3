"""The marks of ledger ids never decrease, despite restarts, crashes, deletions, expired tombstones and rebuilds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire_bookie.errors import DamagedError, QuireError
from quire_bookie.model import IdCounters, LedgerId
from quire_bookie.storage import LedgerStorage
from quire_bookie.storage.formats.index_keys import ID_MARKS_KEY, deletion_key, state_key
from quire_bookie.storage.ledgers.id_marks import ID_MARKS_NAME, IdRecord, decode_id_record, encode_id_record
from tests.sim.disk import SimDisk
from tests.sim.index_store import SimIndexStore
from tests.unit.bookie.storage.crashes import dispose_crashed
from tests.unit.bookie.storage.ledgers.test_tombstones import WEEK_MS, _Clock, _deleted
from tests.unit.bookie.storage.ledgers.test_tombstones import _open as open_at
from tests.unit.bookie.storage.rebuilt_stores import rebuild
from tests.unit.bookie.storage.store import DIRECTORY, SMALL, SimMarks, Store, open_store

LONG = 1 << 40
FILE = f"{DIRECTORY}/{ID_MARKS_NAME}"


def highest(store: Store) -> tuple[int, int]:
    marks = store.storage.id_marks
    return marks.short, marks.long


@given(
    st.integers(0, 2**63),
    st.integers(-1, 2**31 - 1),
    st.integers(-1, 2**63 - 1),
    st.integers(0, 2**63),
    st.integers(-1, 2**31),
    st.integers(-1, 2**63 - 1),
)
def test_a_record_round_trips(number: int, short: int, long: int, epoch: int, counter: int, long_counter: int) -> None:
    record = IdRecord(number, LedgerId(short), LedgerId(long), IdCounters(epoch, counter, long_counter))
    assert decode_id_record(encode_id_record(record), "x") == record


def test_any_flipped_bit_of_a_record_is_damage() -> None:
    value = encode_id_record(IdRecord(3, LedgerId(7), LedgerId(LONG), IdCounters(2, 9, LONG)))
    for at in range(len(value)):
        bad = bytearray(value)
        bad[at] ^= 16
        with pytest.raises(DamagedError):
            decode_id_record(bytes(bad), "x")


def test_counters_of_one_epoch_never_decrease_and_a_later_epoch_starts_again() -> None:
    seen = IdCounters(3, 100, LONG)
    assert IdCounters(3, 100, LONG).behind(seen) is None and IdCounters(3, 101, LONG + 1).behind(seen) is None
    assert "counter of ledger ids is at 99 and was at 100" in str(IdCounters(3, 99, LONG).behind(seen))
    assert "long" in str(IdCounters(3, 100, -1).behind(seen))
    assert "epoch is 2 and was 3" in str(IdCounters(2, 500, LONG).behind(seen))
    assert IdCounters(4, 5, -1).behind(seen) is None
    assert seen.highest(IdCounters(4, 5, -1)) == IdCounters(4, 5, -1)
    assert seen.highest(IdCounters(3, 90, LONG + 1)) == IdCounters(3, 100, LONG + 1)


async def test_the_two_id_spaces_have_separate_marks_which_survive_a_restart() -> None:
    store = await open_store()
    assert highest(store) == (-1, -1)
    for ledger in (7, 3, LONG):
        await store.put_ids(ledger, range(2))
    assert highest(store) == (7, LONG)
    store = await store.restart()
    assert highest(store) == (7, LONG)
    await store.storage.close()


async def test_an_expired_tombstone_does_not_lower_the_mark() -> None:
    clock = _Clock()
    store = await open_at(clock)
    await store.put_ids(2, range(2))
    await _deleted(store, 9, LONG)
    clock.ms += WEEK_MS
    assert await store.storage.expire_tombstones() == 2
    assert highest(store) == (9, LONG)
    assert highest(await store.restart()) == (9, LONG)


@pytest.mark.parametrize("lost", ["index", "file", "damaged file", "proof too"])
async def test_either_copy_of_the_record_is_enough(lost: str) -> None:
    clock = _Clock()
    store = await open_at(clock)
    await store.put_ids(2, range(2))
    await _deleted(store, 9)
    await store.storage.keep_counters(IdCounters(5, 12, -1))
    clock.ms += WEEK_MS
    await store.storage.expire_tombstones()
    await store.storage.close()
    if lost == "index":
        await store.index.commit([], [ID_MARKS_KEY])
    elif lost == "damaged file":
        store.disk.corrupt(FILE, 9)
    else:
        await store.disk.remove(FILE)
    for _ in range(2):
        store = await open_store(store.disk)
        assert highest(store) == (9, -1) and store.storage.id_marks.seen == IdCounters(5, 12, -1)
        await store.storage.close()
        assert decode_id_record(await store.disk.read_file(FILE), FILE).short == 9
        assert await store.index.get(ID_MARKS_KEY) is not None


async def test_a_damaged_record_without_another_copy_refuses_to_open() -> None:
    store = await open_store()
    await store.storage.keep_counters(IdCounters(5, 12, -1))
    await store.storage.close()
    await store.index.commit([], [ID_MARKS_KEY])
    store.disk.corrupt(FILE, 9)
    with pytest.raises(DamagedError, match=ID_MARKS_NAME):
        await open_store(store.disk)


async def test_a_storage_of_an_earlier_version_derives_the_marks_from_its_ledgers() -> None:
    store = await open_store()
    await store.put_ids(4, range(2))
    await _deleted(store, 8)
    await store.storage.close()
    await store.index.commit([], [ID_MARKS_KEY])
    await store.disk.remove(FILE)
    store = await open_store(store.disk)
    assert highest(store) == (8, -1) and store.storage.id_marks.seen == IdCounters()
    await store.storage.close()


async def test_a_rebuild_of_the_index_keeps_the_mark_of_a_completely_removed_ledger() -> None:
    store = await open_store()
    await store.put_ids(2, range(2))
    await store.storage.flush()
    await _deleted(store, 9)
    await store.storage.keep_counters(IdCounters(5, 12, -1))
    await store.storage.close()
    await store.index.commit([], [state_key(LedgerId(9)), deletion_key(LedgerId(9))])
    await rebuild(store.disk)
    store = await open_store(store.disk)
    assert highest(store) == (9, -1) and store.storage.id_marks.seen == IdCounters(5, 12, -1)
    await store.storage.close()


async def test_no_crash_loses_a_mark_once_a_deletion_or_a_stored_counter_has_returned() -> None:
    for step in range(60):
        disk = SimDisk()
        clock = _Clock()
        store = await open_at(clock, disk)
        await store.put_ids(2, range(2))
        await store.put_ids(9, range(2))
        await store.storage.flush()
        disk.crash_after(step)
        deleted = stored = False
        try:
            await store.storage.delete_ledger(LedgerId(9))
            deleted = True
            await store.storage.keep_counters(IdCounters(1, 20, -1))
            stored = True
            clock.ms += WEEK_MS
            await store.storage.expire_tombstones()
            await store.storage.keep_counters(IdCounters(1, 30, -1))
            done = True
        except (QuireError, OSError):
            done = False
        found = disk.crash("none", seed=step)
        await dispose_crashed(store)
        index, marks = SimIndexStore(found), SimMarks(found)
        storage = await LedgerStorage.open(
            disk=found, index=index, directories=[DIRECTORY], settings=SMALL, marks=marks, clock=clock
        )
        assert storage.id_marks.short == 9, f"step {step}, deleted {deleted}"
        assert storage.id_marks.seen.short >= (20 if stored else -1)
        await storage.close()
        if done:
            return
    raise AssertionError("the scenario did not finish")
