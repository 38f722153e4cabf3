"""The read cache stays within its bytes and keeps recent entries while other readers catch up."""

import gc
import tracemalloc
from array import array
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from quire_bookie.model import EntryId, LedgerId
from quire_bookie.storage.read_cache import Extent, ReadCache
from tests.sim.disk import SimDisk
from tests.unit.bookie.storage.store import SMALL, body_of, open_store

LIMIT = 100_000


def extent(ledger: int, first: int, entries: int, size: int, *, recent: bool = False) -> Extent:
    """Return an extent of consecutive entries of one size."""
    record = size + 24
    return Extent(
        LedgerId(ledger),
        bytes(entries * record),
        array("q", range(first, first + entries)),
        array("q", range(24, entries * record, record)),
        array("q", [size] * entries),
        recent=recent,
    )


def kept(cache: ReadCache, ledger: int) -> int:
    """Return the number of extents of one ledger."""
    return sum(each.ledger == ledger for each in (*cache._recent.values(), *cache._older.values()))


def test_a_scan_of_old_entries_leaves_half_of_the_cache_for_recent_ones() -> None:
    cache = ReadCache(LIMIT)
    for number in range(40):
        cache.add(extent(1, number * 10, 10, 1000, recent=True))
    for number in range(1000):
        cache.add(extent(2, number * 10, 10, 1000))
    assert kept(cache, 1) >= 4 and kept(cache, 2) >= 4
    for number in range(1000):
        cache.add(extent(3, number * 10, 10, 1000, recent=True))
    assert kept(cache, 2) >= 4, "recent ones do not evict everything else either"
    assert kept(cache, 1) == 0


def test_each_class_may_use_the_space_that_the_other_leaves() -> None:
    for recent in (False, True):
        cache = ReadCache(LIMIT)
        for number in range(100):
            cache.add(extent(1, number * 10, 10, 1000, recent=recent))
        assert LIMIT - 15_000 < cache.charged_bytes <= LIMIT


@given(
    st.lists(
        st.tuples(st.integers(1, 3), st.integers(0, 5000), st.integers(1, 300), st.integers(0, 400), st.booleans()),
        max_size=40,
    ),
    st.integers(1, 3),
)
def test_the_cache_stays_within_its_bytes_and_can_be_emptied(
    added: list[tuple[int, int, int, int, bool]], forgotten: int
) -> None:
    cache = ReadCache(LIMIT)
    for ledger, first, entries, size, recent in added:
        cache.add(extent(ledger, first, entries, size, recent=recent))
        everything = [*cache._recent.values(), *cache._older.values()]
        assert cache.charged_bytes == sum(each.charged_bytes for each in everything) <= LIMIT
        assert cache._recent_bytes == sum(each.charged_bytes for each in everything if each.recent)
    cache.forget_ledger(LedgerId(forgotten))
    assert kept(cache, forgotten) == 0
    for ledger in (1, 2, 3):
        cache.forget(LedgerId(ledger), EntryId(0), EntryId(10_000))
    assert (len(cache), cache.charged_bytes, cache._recent_bytes, cache._by_block) == (0, 0, 0, {})


def test_a_wide_range_of_ids_is_forgotten_without_a_look_up_of_each_block() -> None:
    cache = ReadCache(LIMIT)
    for ledger, first in ((1, 0), (1, 1 << 61), (2, 5), (1, (1 << 62) + 300)):
        cache.add(extent(ledger, first, 10, 100))
    cache.forget(LedgerId(1), EntryId(3), EntryId(1 << 62))
    assert kept(cache, 1) == 1 and kept(cache, 2) == 1
    assert cache.find(LedgerId(1), EntryId((1 << 62) + 305)) is not None


def test_the_charged_memory_is_the_used_memory_for_small_entries_too() -> None:
    for size, entries in ((10, 1000), (100, 1000), (1000, 100), (1, 1)):
        cache = ReadCache(4_000_000)
        gc.collect()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        number = 0
        while cache.charged_bytes < 3_000_000:
            cache.add(extent(1, number * entries, entries, size))
            number += 1
        taken = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        assert taken < 1.1 * cache.charged_bytes, (size, entries, taken, cache.charged_bytes)


async def test_a_reader_that_catches_up_does_not_send_tail_readers_to_the_disk() -> None:
    settings = replace(SMALL, read_cache_bytes=256 * 1024, read_ahead_bytes=32 * 1024)
    store = await open_store(SimDisk(), settings)
    await store.put_ids(1, range(3000), 1000)
    store = await store.restart(settings)
    await store.put_ids(2, range(60), 1000)
    await store.storage.flush()
    tail = range(20, 60)
    for entry in tail:
        assert await store.read(2, entry) == body_of(2, entry, 1000)
    for entry in range(2500):  # later entries are among the last written bytes, and therefore recent
        assert await store.read(1, entry) == body_of(1, entry, 1000)
    before = store.storage.stats.log_reads
    for entry in tail:
        assert await store.read(2, entry) == body_of(2, entry, 1000)
    assert store.storage.stats.log_reads == before
    await store.storage.close()


async def test_entries_are_not_recent_once_more_was_written_than_the_write_cache_holds() -> None:
    store = await open_store(SimDisk(), SMALL)
    await store.put_ids(1, range(50), 1000)
    await store.storage.flush()
    assert await store.read(1, 0) == body_of(1, 0, 1000)
    assert len(store.storage._read_cache._recent) == 1
    await store.put_ids(2, range(600), 1000)
    await store.storage.flush()
    assert await store.read(1, 49) == body_of(1, 49, 1000)
    assert len(store.storage._read_cache._older) == 1
    await store.storage.close()
