"""Limbo: entries that may have been lost are unknown, never absent; it is durable in two places until ended."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire_bookie.errors import (
    DamagedError,
    NoSuchEntryError,
    NoSuchLedgerError,
    QuireError,
    UnknownLedgerStateError,
)
from quire_bookie.model import NO_ENTRY, EntryId, LedgerId
from quire_bookie.storage.formats.index_keys import LIMBO_KEY
from quire_bookie.storage.ledgers.limbo import LIMBO_NAME, Limbo, decode_limbo, encode_limbo
from tests.sim.disk import SimDisk
from tests.unit.bookie.storage.crashes import dispose_crashed
from tests.unit.bookie.storage.store import DIRECTORY, Store, body_of, open_store

LONG = 1 << 40
FILE = f"{DIRECTORY}/{LIMBO_NAME}"


def bounds(*ledgers: int) -> list[LedgerId]:
    return [LedgerId(ledger) for ledger in ledgers]


async def store_in_limbo(bound: int = 10) -> Store:
    store = await open_store()
    await store.put_ids(1, range(5))
    await store.storage.enter_limbo(bounds(bound))
    return store


@settings(deadline=None)
@given(
    st.integers(0, 2**63), st.integers(0, 2**32 - 1), st.integers(-1, 2**31 - 1), st.integers(-1, 2**62), st.booleans()
)
def test_a_record_round_trips(number: int, generation: int, short: int, long: int, active: bool) -> None:
    limbo = Limbo(number, generation, LedgerId(short), LedgerId(long), active)
    assert decode_limbo(encode_limbo(limbo), "x") == limbo


def test_a_record_has_the_layout_of_version_1() -> None:
    """A change of layout needs another version: a bookie reads the record that its predecessor wrote."""
    value = encode_limbo(Limbo(3, 2, LedgerId(100), LedgerId(LONG), active=True))
    assert value[4:].hex() == "01" + "01" + "0300000000000000" + "02000000" + "6400000000000000" + "0000000000010000"
    assert encode_limbo(Limbo())[4:6].hex() == "01" + "00"


def test_the_first_long_id_belongs_to_the_long_space_and_each_change_is_newer() -> None:
    entered = Limbo().entered(bounds(2**31))
    assert entered == Limbo(1, 1, LedgerId(-1), LedgerId(2**31), active=True)
    assert entered.ended() == Limbo(2, 1, LedgerId(-1), LedgerId(2**31), active=False)
    assert entered.ended().entered(bounds(2**31 - 1)) == Limbo(3, 2, LedgerId(2**31 - 1), LedgerId(2**31), active=True)


def test_any_flipped_bit_of_a_record_is_damage() -> None:
    value = encode_limbo(Limbo().entered(bounds(5)))
    for at in range(len(value)):
        bad = bytearray(value)
        bad[at] ^= 16
        with pytest.raises(DamagedError):
            decode_limbo(bytes(bad), "x")
    with pytest.raises(DamagedError):
        decode_limbo(value[:-1], "x")


def test_the_two_id_spaces_have_separate_bounds_which_never_decrease() -> None:
    limbo = Limbo().entered(bounds(100, LONG, 7))
    held = [ledger for ledger in (0, 100, 101, 2**31 - 1, 2**31, LONG, LONG + 1) if limbo.covers(LedgerId(ledger))]
    assert held == [0, 100, 2**31, LONG]
    again = limbo.entered(bounds(3))
    assert again.covers(LedgerId(100)) and again.generation == 2
    assert not Limbo().covers(LedgerId(0))


async def test_in_limbo_held_entries_are_served_and_missing_ones_are_unknown() -> None:
    store = await store_in_limbo()
    assert store.storage.in_limbo
    assert await store.read(1, 3) == body_of(1, 3)
    for ledger, entry in ((1, 7), (1, NO_ENTRY), (9, 0), (9, NO_ENTRY)):
        with pytest.raises(UnknownLedgerStateError):
            await store.read(ledger, entry)
    with pytest.raises(UnknownLedgerStateError):
        await store.storage.entry_ranges(LedgerId(1))
    assert await store.storage.entry_ranges(LedgerId(1), known_only=True) == [(0, 4)]
    found = await store.storage.read_many(LedgerId(1), EntryId(3), 10, 1 << 20)
    assert len(found) == 2
    assert await store.storage.load_ledger(LedgerId(9)) is None
    assert store.storage.is_limbo(LedgerId(9)) and store.storage.is_limbo(LedgerId(1))
    await store.storage.close()


async def test_ledgers_above_the_bound_are_not_affected() -> None:
    store = await store_in_limbo(10)
    await store.put_ids(11, range(3))
    info = await store.ledger(11)
    assert not info.limbo and not info.fenced
    assert not store.storage.is_limbo(LedgerId(11)) and not store.storage.is_limbo(LedgerId(12))
    with pytest.raises(NoSuchEntryError):
        await store.read(11, 3)
    with pytest.raises(NoSuchLedgerError):
        await store.read(12, 0)
    await store.storage.close()


async def test_limbo_fences_ledgers_already_in_memory_and_new_ones() -> None:
    store = await open_store()
    await store.put_ids(1, range(5))
    held = await store.ledger(1)
    assert not held.fenced
    await store.storage.enter_limbo(bounds(10))
    assert held.fenced and held.limbo
    created = await store.ledger(5)
    assert created.fenced and created.limbo
    await store.storage.close()


async def test_limbo_and_its_end_for_one_ledger_survive_restarts() -> None:
    store = await store_in_limbo()
    await store.put_ids(2, range(3))
    store = await store.restart()
    assert store.storage.in_limbo and (await store.ledger(1)).limbo
    await store.storage.end_limbo(LedgerId(1))
    await store.storage.end_limbo(LedgerId(1))
    assert await store.read(1, NO_ENTRY) == body_of(1, 4)
    store = await store.restart()
    one, two = await store.ledger(1), await store.ledger(2)
    assert (one.limbo, one.fenced, two.limbo, two.fenced) == (False, True, True, True)
    with pytest.raises(NoSuchEntryError):
        await store.read(1, 5)
    with pytest.raises(NoSuchLedgerError):
        await store.storage.end_limbo(LedgerId(7))
    await store.storage.close()


async def test_the_end_of_limbo_for_one_ledger_is_durable_when_it_returns() -> None:
    store = await store_in_limbo()
    await store.storage.flush()
    await store.storage.end_limbo(LedgerId(1))
    survivor = store.disk.crash()
    await dispose_crashed(store)
    again = await open_store(survivor)
    assert not (await again.ledger(1)).limbo
    await again.storage.close()


async def test_after_the_end_for_all_old_ledgers_stay_fenced_and_new_ones_are_not() -> None:
    store = await store_in_limbo()
    store = await store.restart()
    await store.storage.end_limbo_of_all()
    for number in range(2):
        assert not store.storage.in_limbo
        info = await store.ledger(1)
        assert info.fenced and not info.limbo
        with pytest.raises(NoSuchEntryError):
            await store.read(1, 5)
        fresh = await store.ledger(3 + number)  # at or below the old bound, but never here before
        assert not fenced_or_limbo(fresh)
        store = await store.restart()
    assert not fenced_or_limbo(await store.ledger(3))
    await store.storage.enter_limbo(bounds(4))
    for ledger in (1, 3, 4):
        info = await store.ledger(ledger)
        assert info.fenced and info.limbo, "in a second generation all ledgers are in limbo again"
    await store.storage.close()


def fenced_or_limbo(info: object) -> bool:
    return bool(getattr(info, "fenced") or getattr(info, "limbo"))  # noqa: B009


async def test_a_deleted_ledger_is_not_in_limbo() -> None:
    store = await store_in_limbo()
    await store.storage.delete_ledger(LedgerId(1))
    assert not store.storage.is_limbo(LedgerId(1))
    store = await store.restart()
    with pytest.raises(NoSuchLedgerError):
        await store.read(1, 0)
    assert not (await store.ledger(1)).limbo
    await store.storage.close()


@pytest.mark.parametrize("lost", ["index", "file", "damaged file"])
async def test_either_copy_of_the_record_is_enough(lost: str) -> None:
    store = await store_in_limbo()
    await store.storage.close()
    if lost == "index":
        await store.index.commit([], [LIMBO_KEY])
    elif lost == "file":
        await store.disk.remove(FILE)
    else:
        store.disk.corrupt(FILE, 9)
    for _ in range(2):
        store = await open_store(store.disk)
        assert store.storage.in_limbo and store.storage.is_limbo(LedgerId(10))
        await store.storage.close()
        assert decode_limbo(await store.disk.read_file(FILE), FILE).active
        assert await store.index.get(LIMBO_KEY) is not None


async def test_a_damaged_record_without_another_copy_refuses_to_open() -> None:
    store = await store_in_limbo()
    await store.storage.close()
    await store.index.commit([], [LIMBO_KEY])
    store.disk.corrupt(FILE, 9)
    with pytest.raises(DamagedError, match=LIMBO_NAME):
        await open_store(store.disk)


async def test_a_crash_at_any_write_leaves_limbo_once_entering_it_has_returned() -> None:
    for step in range(100):
        disk = SimDisk()
        store = await open_store(disk)
        await store.put_ids(1, range(3))
        await store.storage.flush()
        disk.crash_after(step)
        entered = ended = False
        try:
            await store.storage.enter_limbo(bounds(10))
            entered = True
            await store.storage.end_limbo_of_all()
            ended = True
        except (OSError, QuireError):
            assert disk.crashed
        survivor = disk.crash("none", seed=step)
        await dispose_crashed(store)
        again = await open_store(survivor)
        if ended:
            assert not again.storage.in_limbo and (await again.ledger(1)).fenced
            await again.storage.close()
            assert step > 4, "the scenario must write often enough to mean something"
            return
        assert again.storage.in_limbo or not entered or (await again.ledger(1)).fenced
        if entered:
            assert (await again.ledger(1)).fenced
        await again.storage.close()
    raise AssertionError("the scenario did not finish")
