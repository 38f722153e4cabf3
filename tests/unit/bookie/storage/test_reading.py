"""Read cache and read-ahead: few disk reads, bounded bytes, damage reported only for damaged entries."""

import asyncio
import dataclasses
from array import array
from typing import Any

import pytest

from quire_bookie.errors import DamagedError
from quire_bookie.limits import READS_PER_TURN
from quire_bookie.model import Buffer, EntryId, LedgerId
from quire_bookie.storage import LedgerInfo
from quire_bookie.storage.formats import log_format
from quire_bookie.storage.read_cache import Extent, ReadCache
from tests.sim.disk import SimDisk
from tests.unit.bookie.storage.store import SMALL, Store, body_of, open_store

WIDE = dataclasses.replace(SMALL, read_cache_bytes=4 << 20, write_cache_bytes=4 << 20)


def extent(ledger: int, first: int, bodies: list[bytes]) -> Extent:
    records: list[Buffer] = []
    ids = list(range(first, first + len(bodies)))
    log_format.encode_records(9, LedgerId(ledger), ids, bodies, records)
    starts, at = array("q"), 0
    for body in bodies:
        starts.append(at + log_format.RECORD_HEADER_BYTES)
        at += len(body) + log_format.RECORD_HEADER_BYTES
    return Extent.checked(LedgerId(ledger), 9, b"".join(records), array("q", ids), starts, array("q", map(len, bodies)))


def test_the_cache_stays_within_its_bytes_and_drops_the_least_recently_used() -> None:
    cache = ReadCache(10_000)
    for number in range(100):
        cache.add(extent(1, number * 300, [body_of(1, number, 900)]))
        cache.get(LedgerId(1), EntryId(0))
        assert cache.charged_bytes <= 10_000
    assert cache.get(LedgerId(1), EntryId(0)) == body_of(1, 0, 900)
    assert cache.get(LedgerId(1), EntryId(300)) is None
    assert cache.get(LedgerId(1), EntryId(99 * 300)) is not None
    cache.add(extent(1, 7, [bytes(20_000)]))
    assert cache.get(LedgerId(1), EntryId(7)) is None


def test_entries_stored_again_are_forgotten_with_their_extents() -> None:
    cache = ReadCache(1 << 20)
    cache.add(extent(1, 250, [b"x"] * 20))
    cache.add(extent(1, 300, [b"y"] * 5))
    cache.add(extent(2, 250, [b"z"] * 20))
    cache.forget(LedgerId(1), EntryId(260), EntryId(261))
    assert cache.get(LedgerId(1), EntryId(250)) is None
    assert cache.get(LedgerId(1), EntryId(301)) == b"y"
    assert cache.get(LedgerId(2), EntryId(260)) == b"z"
    cache.forget_ledger(LedgerId(2))
    assert cache.get(LedgerId(2), EntryId(260)) is None
    cache.forget_ledger(LedgerId(1))
    assert len(cache) == 0 and cache.charged_bytes == 0


async def _cold(ids: "range | list[int]", size: int, ledgers: int = 3) -> Store:
    store = await open_store(SimDisk(), WIDE)
    for ledger in range(1, ledgers + 1):
        await store.put_ids(ledger, ids, size)
    return await store.restart(WIDE)


def hold_next_read(store: Store) -> tuple[asyncio.Event, asyncio.Event]:
    """Hold the result of the next read of a log; return the events that it has begun, and that it may end."""
    reader, begun, go_on = store.storage._reader, asyncio.Event(), asyncio.Event()
    fetch = reader._read_extent

    async def slowly(info: LedgerInfo, plan: Any) -> Any:
        reader._read_extent = fetch  # type: ignore[method-assign]
        extent = await fetch(info, plan)
        begun.set()
        await go_on.wait()
        return extent

    reader._read_extent = slowly  # type: ignore[method-assign]
    return begun, go_on


@pytest.mark.parametrize(
    ("name", "ids"),
    [
        ("dense", range(3000)),
        ("every third", range(0, 9000, 3)),
        ("two of three", [entry for entry in range(4500) if entry % 3 != 1]),
    ],
)
async def test_a_sequential_reader_needs_few_disk_reads(name: str, ids: "range | list[int]") -> None:
    store = await _cold(ids, 200)
    for entry in ids:
        assert await store.read(2, entry) == body_of(2, entry, 200), name
    assert store.storage.stats.log_reads <= 8
    await store.storage.close()


async def test_a_random_reader_reads_few_other_bytes() -> None:
    store = await _cold(range(3000), 200)
    before = store.storage.stats.log_bytes_read
    for entry in (2500, 100, 1700, 900):
        assert await store.read(1, entry) == body_of(1, entry, 200)
    assert store.storage.stats.log_bytes_read - before <= 4 * 16 * 1024
    await store.storage.close()


async def test_a_batch_read_fetches_its_bytes_at_once() -> None:
    store = await _cold(range(3000), 200)
    await store.storage.load_ledger(LedgerId(1))
    before = store.storage.stats.log_reads
    found = await store.storage.read_many(LedgerId(1), EntryId(0), 3000, 500_000)
    assert len(found) == 500_000 // 232
    assert store.storage.stats.log_reads - before == 1
    await store.storage.close()


async def test_a_batch_read_from_memory_yields_to_the_event_loop_and_is_counted() -> None:
    store = await _cold(range(3000), 200)
    stats = store.storage.stats
    warm = await store.storage.read_many(LedgerId(1), EntryId(0), 3000, 500_000)
    before, steps, going = stats.reads, 0, True

    async def others() -> None:
        nonlocal steps
        while going:
            steps += 1
            await asyncio.sleep(0)

    concurrent = asyncio.create_task(others())
    again = await store.storage.read_many(LedgerId(1), EntryId(0), len(warm), 500_000)
    going = False
    await concurrent
    assert again == warm
    assert stats.reads - before == len(warm)
    assert steps >= len(warm) // READS_PER_TURN
    await store.storage.close()


async def test_an_entry_larger_than_the_window_is_read_whole() -> None:
    store = await _cold([0, 1], 1_300_000, ledgers=1)
    assert await store.read(1, 0) == body_of(1, 0, 1_300_000)
    assert await store.read(1, 1) == body_of(1, 1, 1_300_000)
    await store.storage.close()


async def test_an_entry_is_read_from_a_log_that_ends_in_the_read_ahead_window() -> None:
    store = await _cold(range(100), 300, ledgers=1)
    await store.storage.load_ledger(LedgerId(1))
    path = store.storage._logs.files.path(1)
    at = store.disk.content(path).index(body_of(1, 50, 300))
    store.disk.cut(path, at + 5)
    for entry in (45, 49):
        assert await store.read(1, entry) == body_of(1, entry, 300)
    with pytest.raises(DamagedError) as caught:
        await store.read(1, 50)
    assert caught.value.path == path
    assert abs(caught.value.offset - at) < 200
    await store.storage.close()


async def test_a_short_ledger_is_read_by_one_disk_read() -> None:
    store = await _cold(range(10), 1000)
    before = store.storage.stats.log_reads
    for entry in range(10):
        assert await store.read(2, entry) == body_of(2, entry, 1000)
    assert store.storage.stats.log_reads - before == 1
    await store.storage.close()


async def test_damage_in_a_short_ledger_does_not_hide_its_other_entries() -> None:
    store = await _cold(range(10), 1000, ledgers=1)
    path = store.storage._logs.files.path(1)
    store.disk.corrupt(path, store.disk.content(path).index(body_of(1, 0, 1000)) + 900, 1)
    info = await store.storage.load_ledger(LedgerId(1))
    assert info is not None and info.last_entry == 9
    for entry in range(1, 10):
        assert await store.read(1, entry) == body_of(1, entry, 1000)
    with pytest.raises(DamagedError):
        await store.read(1, 0)
    await store.storage.close()


async def test_what_a_flush_stored_again_during_a_load_is_not_cached_as_it_was_before() -> None:
    store = await _cold(range(10), 1000, ledgers=1)
    begun, go_on = hold_next_read(store)
    loading = asyncio.ensure_future(store.storage.load_ledger(LedgerId(1)))
    await begun.wait()
    await store.put_ids(1, [4], 1000, version=1)
    await store.storage.flush()
    go_on.set()
    await loading
    assert await store.read(1, 4) == body_of(1, 4, 1000, version=1)
    await store.storage.close()


async def test_a_ledger_that_is_deleted_during_a_load_is_not_cached() -> None:
    store = await _cold(range(10), 1000, ledgers=1)
    begun, go_on = hold_next_read(store)
    loading = asyncio.ensure_future(store.storage.load_ledger(LedgerId(1)))
    await begun.wait()
    await store.storage.delete_ledger(LedgerId(1))
    go_on.set()
    await loading
    assert store.storage._reader._cache.find(LedgerId(1), EntryId(4)) is None
    await store.storage.close()


async def test_an_unreadable_device_is_damage_and_a_later_read_may_succeed() -> None:
    store = await _cold(range(5), 100, ledgers=1)
    await store.storage.load_ledger(LedgerId(1))
    store = await store.restart(WIDE)
    store.disk.fail_next("read", ".qlog", OSError(5, "Input/output error"))
    store.disk.fail_next("read", ".qlog", OSError(5, "Input/output error"))
    info = await store.storage.load_ledger(LedgerId(1))
    assert info is not None and info.last_entry == 4
    assert await store.read(1, 2) == body_of(1, 2, 100)
    await store.storage.close()


async def test_open_handles_are_bounded() -> None:
    settings = dataclasses.replace(WIDE, open_logs_max=2)
    store = await open_store(SimDisk(), settings)
    for ledger in range(1, 9):
        await store.put_ids(ledger, range(20), 60_000)
        await store.storage.flush()
    store = await store.restart(settings)
    for ledger in range(1, 9):
        assert await store.read(ledger, 3) == body_of(ledger, 3, 60_000)
    assert len(store.storage._logs.files._open) <= 2
    await store.storage.close()


async def test_a_log_of_very_many_flushes_is_continued_with_its_whole_map() -> None:
    store = await open_store()
    for entry in range(150):
        await store.put_ids(entry % 7, [entry])
        await store.storage.flush()
    store = await store.restart()
    writer = store.storage._logs.flushed._lanes[0].writer
    assert writer is not None
    spans, _previous = log_format.decode_map(log_format.encode_map(writer._whole(), 0), "log", 0)
    assert sum(span.entries for span in spans.values()) == 150
    assert set(spans) == set(range(7))
    assert writer._chain < 65
    await store.storage.close()


async def test_older_copies_cached_by_read_ahead_are_dropped_when_the_newer_ones_are_flushed() -> None:
    store = await open_store()
    await store.put_ids(1, range(100))
    await store.storage.flush()
    await store.put_ids(1, range(40, 60), version=1)
    assert await store.read(1, 10) == body_of(1, 10), "reads ahead over 40 to 59, whose newer copies are in memory"
    assert await store.read(1, 50) == body_of(1, 50, version=1)
    await store.storage.flush()
    assert await store.read(1, 50) == body_of(1, 50, version=1)
    await store.storage.close()


async def test_a_read_planned_before_a_flush_caches_no_entry_that_the_flush_stored_again() -> None:
    store = await open_store()
    await store.put_ids(1, range(100))
    await store.storage.flush()
    await store.put_ids(1, range(40, 60), version=1)
    begun, go_on = hold_next_read(store)
    reading = asyncio.ensure_future(store.read(1, 10))
    await begun.wait()
    await store.storage.flush()
    go_on.set()
    assert await reading == body_of(1, 10)
    assert await store.read(1, 50) == body_of(1, 50, version=1)
    await store.storage.close()


async def _settled(store: Store) -> None:
    """Wait until no read-ahead is running."""
    await asyncio.gather(*store.storage._reader._following)


async def _walk_through(store: Store, ids: "range | list[int]", size: int) -> list[int]:
    """Read in order; return the ids that were not in memory when they were read."""
    waited = []
    info = await store.ledger(1)
    for entry in ids:
        if store.storage.read_cached(info, EntryId(entry)) is None:
            waited.append(entry)
        assert await store.read(1, entry) == body_of(1, entry, size)
        await _settled(store)
    return waited


@pytest.mark.parametrize(
    "ids",
    [range(4000), range(0, 12_000, 3), [entry for entry in range(6000) if entry % 3 != 1]],
    ids=["dense", "every third", "two of three"],
)
async def test_the_next_window_is_read_before_a_sequential_reader_needs_it(ids: "range | list[int]") -> None:
    store = await _cold(ids, 200, ledgers=1)
    waited = await _walk_through(store, ids, 200)
    assert len(waited) <= 4, "only until the reader is known to be sequential, and perhaps at the end of a log"
    await store.storage.close()


async def test_a_random_reader_causes_no_read_ahead() -> None:
    store = await _cold(range(3000), 200, ledgers=1)
    await _walk_through(store, [2500, 100, 1700, 900, 1701, 2501, 30], 200)
    assert store.storage.stats.log_reads <= 8
    await store.storage.close()


async def test_read_ahead_leaves_most_of_a_small_cache_to_other_readers() -> None:
    small = dataclasses.replace(SMALL, read_cache_bytes=128 * 1024, write_cache_bytes=4 << 20)
    store = await open_store(SimDisk(), small)
    await store.put_ids(1, range(3000), 200)
    store = await store.restart(small)
    await _walk_through(store, range(3000), 200)
    assert len(store.storage._read_cache) >= 3
    assert store.storage._read_cache.charged_bytes <= 128 * 1024
    await store.storage.close()


async def test_a_failed_read_ahead_is_not_reported_until_the_entry_is_read() -> None:
    store = await _cold(range(1000), 200, ledgers=1)
    for entry in range(100):
        await store.read(1, entry)
    await _settled(store)
    path = store.storage._logs.files.path(1)
    at = store.disk.content(path).index(body_of(1, 700, 200))
    store = await store.restart(WIDE)
    store.disk.cut(path, at)
    info = await store.ledger(1)
    await store.storage._reader._read_on(info, EntryId(600), 64 * 1024)
    with pytest.raises(DamagedError):
        await store.read(1, 700)
    await store.storage.close()


async def test_only_the_damaged_records_of_a_read_ahead_window_are_missing() -> None:
    store = await _cold(range(1000), 200, ledgers=1)
    path = store.storage._logs.files.path(1)
    damaged = (0, 5, 300, 301, 999)
    for entry in damaged:
        store.disk.corrupt(path, store.disk.content(path).index(body_of(1, entry, 200)) + 100)
    for _ in range(2):
        for entry in range(1000):
            if entry in damaged:
                with pytest.raises(DamagedError) as caught:
                    await store.read(1, entry)
                assert caught.value.path == path
            else:
                assert await store.read(1, entry) == body_of(1, entry, 200)
    await store.storage.close()


async def test_closing_waits_for_running_read_aheads() -> None:
    store = await _cold(range(3000), 200, ledgers=1)
    info = await store.ledger(1)
    for entry in range(200):
        await store.read(1, entry)
    reader = store.storage._reader
    extent = store.storage._read_cache.find(LedgerId(1), EntryId(100))
    assert extent is not None
    await _settled(store)
    extent.followed = False
    store.storage._read_cache.forget_ledger(LedgerId(1))
    reader.follow(info, extent)
    assert len(reader._following) == 1
    await store.storage.close()
    assert not reader._following


async def test_no_stretch_is_returned_while_a_newer_copy_of_one_of_its_entries_is_unflushed() -> None:
    store = await open_store()
    await store.put_ids(1, range(100))
    await store.storage.flush()
    await store.read(1, 10)
    info = await store.ledger(1)
    found = store.storage.stretch(info, EntryId(10))
    assert found is not None and list(found.ids) == list(range(10, 100))
    await store.put_ids(1, range(100, 120))
    assert store.storage.stretch(info, EntryId(10)) is not None
    await store.put_ids(1, range(40, 60), version=1)
    await store.read(1, 10)
    assert store.storage._read_cache.find(LedgerId(1), EntryId(10)) is not None
    assert store.storage.stretch(info, EntryId(10)) is None
    assert await store.read(1, 50) == body_of(1, 50, version=1)
    await store.storage.close()
