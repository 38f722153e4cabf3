"""Ranges of held ids: arithmetic compared with sets, and storage compared with the entries put."""

import asyncio
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire_bookie.errors import DamagedError, NoSuchLedgerError
from quire_bookie.model import EntryId, LedgerId
from quire_bookie.storage.entry_ranges import join_ranges, runs_of_mask
from quire_bookie.storage.formats.index_keys import block_key
from tests.unit.bookie.storage.store import Store, open_store


def ids_of(ranges: list[tuple[EntryId, EntryId]]) -> set[int]:
    return {entry for first, last in ranges for entry in range(first, last + 1)}


@settings(deadline=None)
@given(st.sets(st.integers(0, 255)) | st.sampled_from([set(range(256)), set(), {0}, {255}, set(range(0, 256, 2))]))
def test_the_runs_of_a_mask_are_its_ids_and_never_touch(ids: set[int]) -> None:
    runs = list(runs_of_mask(sum(1 << low for low in ids)))
    assert {low for first, last in runs for low in range(first, last + 1)} == ids
    assert all(after[0] > before[1] + 1 for before, after in itertools.pairwise(runs))


@settings(deadline=None)
@given(st.lists(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 9)), max_size=9), max_size=3))
def test_joined_ranges_hold_all_ids_and_never_touch(lists: list[list[tuple[int, int]]]) -> None:
    given_ranges = [[(EntryId(first), EntryId(first + more)) for first, more in pairs] for pairs in lists]
    joined = join_ranges(given_ranges)
    assert ids_of(joined) == {entry for ranges in given_ranges for entry in ids_of(ranges)}
    assert all(after[0] > before[1] + 1 for before, after in itertools.pairwise(joined))


async def ranges(store: Store, ledger: int) -> list[tuple[EntryId, EntryId]]:
    return await store.storage.entry_ranges(LedgerId(ledger))


async def test_ranges_come_from_the_index_and_from_both_halves() -> None:
    store = await open_store()
    await store.put_ids(1, [*range(300), *range(400, 410)])
    await store.storage.flush()
    assert await ranges(store, 1) == [(0, 299), (400, 409)]
    await store.put_ids(1, [300, 302, 301, 5, 600])
    assert await ranges(store, 1) == [(0, 302), (400, 409), (600, 600)]
    store = await store.restart()
    assert await ranges(store, 1) == [(0, 302), (400, 409), (600, 600)]
    await store.storage.close()


async def test_ids_of_a_striped_ledger_are_many_short_ranges() -> None:
    store = await open_store()
    ids = [entry for entry in range(1000) if entry % 3 != 1]
    await store.put_ids(2, ids)
    for _ in range(2):
        found = await ranges(store, 2)
        assert ids_of(found) == set(ids) and len(found) == 334
        await store.storage.flush()
    await store.storage.close()


async def test_a_flush_during_the_scan_hides_nothing() -> None:
    store = await open_store()
    await store.put_ids(1, range(600))
    flush = asyncio.ensure_future(store.storage.flush())
    while not flush.done():
        assert await ranges(store, 1) == [(0, 599)]
    await flush
    await store.storage.close()


async def test_a_ledger_without_entries_has_no_ranges_and_an_absent_one_is_refused() -> None:
    store = await open_store()
    await store.ledger(4)
    assert await ranges(store, 4) == []
    for ledger in (5, 4):
        if ledger == 4:
            await store.storage.delete_ledger(LedgerId(4))
        with pytest.raises(NoSuchLedgerError):
            await ranges(store, ledger)
    await store.storage.close()


async def test_damage_to_a_block_is_damage_of_the_list() -> None:
    store = await open_store()
    await store.put_ids(1, range(600))
    store = await store.restart()
    key = block_key(LedgerId(1), 1)
    value = bytearray(store.index._image.current[key])
    value[8] ^= 1
    store.index._image.current[key] = bytes(value)
    with pytest.raises(DamagedError):
        await ranges(store, 1)
    await store.put_ids(1, [300])
    await store.storage.flush()  # the block is valid again, but may have held more entries
    with pytest.raises(DamagedError):
        await ranges(store, 1)
    await store.storage.close()


async def test_many_entries_are_one_range() -> None:
    store = await open_store()
    body = b"\0" * 32
    for first in range(0, 200_000, 2_000):
        await store.put(1, first, [body] * 2_000)
    assert await ranges(store, 1) == [(0, 199_999)]
    await store.storage.close()
