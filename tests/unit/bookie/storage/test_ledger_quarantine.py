"""Ledgers in quarantine: held, fenced and readable; changes are atomic; damage never deletes a ledger."""

import asyncio
from dataclasses import replace

import pytest

from quire_bookie.errors import DamagedError, DiskFullError, NoSuchLedgerError, QuireError
from quire_bookie.limits import QUARANTINE_REASON_BYTES_MAX
from quire_bookie.model import LedgerId
from quire_bookie.storage.deletion import Unchanged
from quire_bookie.storage.formats.index_keys import QUARANTINE_CLOCK_KEY, quarantine_key
from quire_bookie.storage.ledger_quarantine import (
    QuarantinedLedger,
    QuarantineState,
    decode_clock,
    decode_quarantined,
    encode_clock,
    encode_quarantined,
)
from tests.sim.disk import SimDisk, Survival
from tests.unit.bookie.storage.crashes import dispose_crashed, replay
from tests.unit.bookie.storage.rebuilt_stores import rebuild
from tests.unit.bookie.storage.store import Store, body_of, open_store

ONE, TWO, THREE = LedgerId(1), LedgerId(2), LedgerId(3)
RECORD = QuarantinedLedger(ONE, QuarantineState.QUARANTINED, 1_700_000_000_000, 12_345, 0, 77, 9_999, "why")


class _Pace:
    stopping = False

    async def spend(self, size_bytes: int, entries: int, /) -> None:
        """Do not wait."""


async def check_held(store: Store, ledger: int, entries: range) -> None:
    """Check that every entry is readable and that no others are held."""
    for entry in entries:
        assert await store.read(ledger, entry) == body_of(ledger, entry)
    assert await store.storage.entry_ranges(LedgerId(ledger)) == [(entries[0], entries[-1])]


async def states(store: Store) -> dict[int, QuarantineState]:
    """Return the state of each ledger with a record."""
    return {one.ledger: one.state for one in await store.storage.ledger_quarantine.all()}


async def test_a_ledger_in_quarantine_is_held_fenced_readable_and_survives_a_restart() -> None:
    store = await open_store()
    await store.put_ids(1, range(300))
    await store.storage.flush()
    await store.put_ids(1, range(300, 310))
    quarantine = store.storage.ledger_quarantine
    assert await quarantine.put(ONE, "its metadata is missing")
    assert not await quarantine.put(ONE, "again")
    await quarantine.advance(5_000)
    assert (quarantine.ledgers, quarantine.size_bytes) == (1, 300 * len(body_of(1, 0)))
    for _ in range(2):
        await check_held(store, 1, range(310))
        assert await store.storage.ledgers() == [1]
        info = await store.storage.load_ledger(ONE)
        assert info is not None and info.fenced and not info.deleted
        quarantine = store.storage.ledger_quarantine
        (one,) = await quarantine.all()
        assert (one.state, one.entries, one.reason) == (QuarantineState.QUARANTINED, 300, "its metadata is missing")
        assert (quarantine.age_ms(one), quarantine.clock_ms) == (5_000, 5_000)
        store = await store.restart()
    await store.storage.close()


async def test_a_ledger_that_is_not_held_does_not_enter_quarantine() -> None:
    store = await open_store()
    await store.put_ids(1, range(3))
    assert not await store.storage.ledger_quarantine.put(TWO, "never here")
    assert await store.storage.delete_ledger(ONE)
    assert not await store.storage.ledger_quarantine.put(ONE, "deleted")
    assert await states(store) == {}
    await store.storage.ledger_quarantine.advance(1000)
    assert await store.index.get(QUARANTINE_CLOCK_KEY) is None, "nothing is written without any record"
    await store.storage.close()


async def test_a_deletion_ends_the_record_and_leaves_a_tombstone() -> None:
    store = await open_store()
    await store.put_ids(1, range(3))
    await store.storage.ledger_quarantine.put(ONE, "test")
    assert await store.storage.delete_ledger(ONE)
    assert store.storage.ledger_quarantine.ledgers == 0
    for _ in range(2):
        assert await states(store) == {}
        info = await store.storage.load_ledger(ONE)
        assert info is not None and info.deleted and info.fenced
        store = await store.restart()
    await store.storage.close()


async def test_an_undeleted_ledger_is_deleted_neither_as_missing_nor_as_a_copy() -> None:
    store = await open_store()
    await store.put_ids(1, range(3))
    quarantine = store.storage.ledger_quarantine
    await quarantine.put(ONE, "test")
    (one,) = await quarantine.undelete([ONE], 60_000)
    assert one.is_undeleted and one.lasts_ms == 60_000
    assert quarantine.ledgers == quarantine.size_bytes == 0
    for _ in range(2):
        info = await store.storage.load_ledger(ONE)
        assert info is not None and info.fenced
        assert not await store.storage.delete_ledger(ONE)
        assert not await store.storage.delete_copy(ONE, Unchanged.of(info))
        await check_held(store, 1, range(3))
        store = await store.restart()
    await store.storage.ledger_quarantine.release([ONE])
    assert await store.storage.delete_ledger(ONE)
    await store.storage.close()


async def test_undeleting_what_is_not_in_quarantine_changes_nothing() -> None:
    store = await open_store()
    await store.put_ids(1, range(3))
    await store.storage.ledger_quarantine.put(ONE, "test")
    with pytest.raises(NoSuchLedgerError, match="ledger 2 is not in quarantine on this bookie"):
        await store.storage.ledger_quarantine.undelete([ONE, TWO])
    assert await states(store) == {1: QuarantineState.QUARANTINED}
    await store.storage.close()


async def test_an_undeletion_that_waits_for_the_deletion_is_refused() -> None:
    store = await open_store()
    await store.put_ids(1, range(3))
    quarantine = store.storage.ledger_quarantine
    await quarantine.put(ONE, "test")
    deleting = asyncio.ensure_future(store.storage.delete_ledger(ONE))
    await asyncio.sleep(0)
    with pytest.raises(NoSuchLedgerError):
        await quarantine.undelete([ONE])
    assert await deleting
    assert await states(store) == {}
    await store.storage.close()


async def test_compaction_and_the_removal_of_dead_logs_keep_quarantined_ledgers() -> None:
    store = await open_store()
    await store.put_ids(1, range(20), 40_000)
    await store.put_ids(2, range(30), 40_000)
    await store.storage.flush()
    await store.put_ids(3, range(60), 40_000)  # seals the log of the others
    await store.storage.flush()
    await store.storage.ledger_quarantine.put(ONE, "test")
    await store.storage.delete_ledger(TWO)
    await store.storage.compaction.compact([state.log for state in store.storage._logs.sealed()], _Pace())
    assert store.storage.compaction.stats.logs_compacted > 0
    await store.storage.drop_dead_logs()
    for _ in range(2):
        for entry in range(20):
            assert await store.read(1, entry) == body_of(1, entry, 40_000)
        store = await store.restart()
    await store.storage.close()


async def test_a_quarantine_without_space_leaves_the_ledger_held_and_fenced() -> None:
    store = await open_store()
    await store.put_ids(1, range(3))
    await store.storage.flush()
    store.disk.capacity_bytes = 0
    with pytest.raises(DiskFullError):
        await store.storage.ledger_quarantine.put(ONE, "test")
    assert await states(store) == {}
    info = await store.ledger(1)
    assert info.fenced and not info.deleted
    await check_held(store, 1, range(3))
    store.disk.capacity_bytes = 1 << 40
    assert await store.storage.ledger_quarantine.put(ONE, "test")
    store.disk.capacity_bytes = 0
    await store.storage.ledger_quarantine.advance(7)
    assert store.storage.ledger_quarantine.clock_ms == 7, "deletions must continue, to free the disk"
    store.disk.capacity_bytes = 1 << 40
    await store.storage.close()


async def test_a_rebuild_of_the_index_holds_quarantined_ledgers() -> None:
    store = await open_store()
    await store.put_ids(1, range(10))
    await store.put_ids(2, range(10))
    await store.storage.ledger_quarantine.put(ONE, "test")
    await store.storage.ledger_quarantine.put(TWO, "test")
    await store.storage.ledger_quarantine.undelete([TWO])
    await store.storage.close()
    await rebuild(store.disk)
    store = await open_store(store.disk)
    assert await store.storage.ledgers() == [1, 2]
    assert await states(store) == {}
    for ledger in (1, 2):
        await check_held(store, ledger, range(10))
        info = await store.storage.load_ledger(LedgerId(ledger))
        assert info is not None and info.fenced and not info.deleted
    await store.storage.close()


@pytest.mark.parametrize("longer", [0, 1])
def test_a_reason_is_kept_up_to_the_limit(longer: int) -> None:
    kept = "r" * QUARANTINE_REASON_BYTES_MAX
    value = encode_quarantined(replace(RECORD, reason=kept + "s" * longer))
    assert decode_quarantined(ONE, value).reason == kept


# ---- damage
def test_a_record_with_any_flipped_bit_or_truncated_anywhere_is_damaged() -> None:
    value = encode_quarantined(RECORD)
    assert decode_quarantined(ONE, value) == RECORD
    for bit in range(8 * len(value)):
        flipped = bytearray(value)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DamagedError):
            decode_quarantined(ONE, bytes(flipped))
    for size in range(len(value)):
        with pytest.raises(DamagedError):
            decode_quarantined(ONE, value[:size])
    with pytest.raises(DamagedError):
        decode_quarantined(TWO, value)


def test_a_damaged_clock_decodes_to_zero() -> None:
    value = encode_clock(123_456)
    assert (decode_clock(value), decode_clock(None)) == (123_456, 0)
    for bit in range(8 * len(value)):
        flipped = bytearray(value)
        flipped[bit // 8] ^= 1 << bit % 8
        assert decode_clock(bytes(flipped)) == 0
    for size in range(len(value)):
        assert decode_clock(value[:size]) == 0


@pytest.mark.parametrize("value", [b"", b"rubbish", bytes(70)])
async def test_a_damaged_record_counts_as_undeleted_until_an_administrator_replaces_it(value: bytes) -> None:
    store = await open_store()
    await store.put_ids(1, range(3))
    await store.storage.ledger_quarantine.put(ONE, "test")
    await store.index.commit([(quarantine_key(ONE), value)])
    store = await store.restart()
    assert await states(store) == {1: QuarantineState.UNDELETED}
    assert not await store.storage.delete_ledger(ONE)
    await store.storage.ledger_quarantine.undelete([ONE], 1000)
    store = await store.restart()
    (one,) = await store.storage.ledger_quarantine.all()
    assert one.lasts_ms == 1000
    await store.storage.close()


async def test_a_lost_clock_restarts_at_the_newest_record() -> None:
    store = await open_store()
    await store.put_ids(1, range(3))
    await store.put_ids(2, range(3))
    quarantine = store.storage.ledger_quarantine
    await quarantine.put(ONE, "test")
    await quarantine.advance(9_000)
    await quarantine.put(TWO, "test")
    await quarantine.advance(500)
    await store.index.commit([(QUARANTINE_CLOCK_KEY, b"rubbish")])
    store = await store.restart()
    ages = [store.storage.ledger_quarantine.age_ms(one) for one in await store.storage.ledger_quarantine.all()]
    assert ages == [9_000, 0]
    await store.storage.close()


async def test_while_the_records_cannot_be_read_the_bookie_serves_and_deletes_nothing() -> None:
    store = await open_store()
    await store.put_ids(1, range(3))
    await store.storage.ledger_quarantine.put(ONE, "test")
    await store.storage.close()
    index = type(store.index)(store.disk)
    index.damage(quarantine_key(ONE))
    storage = await type(store.storage).open(
        disk=store.disk,
        index=index,
        directories=store.directories,
        settings=store.storage._settings,
        marks=store.marks,
    )
    again = Store(store.disk, index, store.marks, storage)
    await check_held(again, 1, range(3))
    with pytest.raises(DamagedError):
        await storage.delete_ledger(ONE)
    with pytest.raises(DamagedError):
        await storage.ledger_quarantine.all()
    await storage.close()


# ---- crashes
async def _scenario(store: Store, done: list[str]) -> None:
    quarantine = store.storage.ledger_quarantine
    for ledger in (1, 2, 3):
        await store.put_ids(ledger, range(6))
    await store.storage.flush()
    await store.put_ids(2, range(6, 10))
    for ledger in (ONE, TWO, THREE):
        assert await quarantine.put(ledger, "test")
    done.append("quarantined")
    await quarantine.advance(10_000)
    done.append("advanced")
    await quarantine.undelete([TWO])
    done.append("undeleted")
    await quarantine.release([THREE])
    done.append("released")
    assert not await store.storage.delete_ledger(TWO)
    done.append("deleting")
    assert await store.storage.delete_ledger(ONE)
    done.append("deleted")
    await store.storage.flush()


@pytest.mark.parametrize("survival", ["none", "all", "random"])
async def test_a_crash_anywhere_keeps_each_ledger_complete_and_each_returned_change(survival: Survival) -> None:
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
        again = await again.restart()
        await _check_done(again, done)
        await again.storage.close()
        await rebuild(survivor)
        rebuilt = await open_store(survivor)
        await _check_rebuilt(rebuilt, done)
        await rebuilt.storage.close()
    assert step > 15


async def _check_done(store: Store, done: list[str]) -> None:
    found = await states(store)
    held = set(await store.storage.ledgers())
    if "quarantined" not in done:
        return
    await check_held(store, 2, range(10))
    await check_held(store, 3, range(6))
    assert held >= {2, 3}
    for ledger in held:
        info = await store.storage.load_ledger(ledger)
        assert info is not None and info.fenced and not info.deleted
    assert (1 in found) == (1 in held), "a record without its ledger, or a deletion in two steps"
    if "deleting" not in done:
        await check_held(store, 1, range(6))
        assert found[1] is QuarantineState.QUARANTINED
    if "deleted" in done:
        assert 1 not in held
    assert found[2] is QuarantineState.UNDELETED or "undeleted" not in done
    assert 3 not in found or "released" not in done
    if "advanced" in done:
        assert store.storage.ledger_quarantine.clock_ms == 10_000


async def _check_rebuilt(store: Store, done: list[str]) -> None:
    """Check that there are no records and that quarantined ledgers are held."""
    assert await states(store) == {}
    if "quarantined" in done:
        await check_held(store, 2, range(10))
        await check_held(store, 3, range(6))
        if "deleting" not in done:
            await check_held(store, 1, range(6))
