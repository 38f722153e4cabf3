"""The write cache: the newest copy wins, nothing is lost, and the charge follows the memory really held."""

import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire_bookie.bulk.plain_flushes import FlushRun
from quire_bookie.env.page_memory import page_memory
from quire_bookie.errors import TooManyRequestsError
from quire_bookie.model import NO_ENTRY, Buffer, EntryId, LedgerId, Run
from quire_bookie.storage.formats.log_format import RECORD_HEADER_BYTES, encode_records
from quire_bookie.storage.ledgers.ledger_states import LedgerInfo
from quire_bookie.storage.write_cache import CHUNK_BYTES, KEPT_ENTRY_BYTES_MIN, WriteCache
from tests.support.batches import batch_of
from tests.unit.bookie.storage.store import body_of, run_of

MIB = 1 << 20


def info_of(ledger: int) -> LedgerInfo:
    return LedgerInfo(LedgerId(ledger), b"k" * 20)


run_shapes = st.tuples(
    st.integers(1, 3),  # ledger
    st.integers(0, 400),  # first
    st.integers(1, 6),  # entries
    st.sampled_from([0, 1, 100, 3000, KEPT_ENTRY_BYTES_MIN, 300_000]),
)


@settings(deadline=None)
@given(st.lists(run_shapes, min_size=1, max_size=40), st.integers(0, 40))
def test_the_cache_behaves_like_a_dict_across_a_swap(shapes: list[tuple[int, int, int, int]], swap_at: int) -> None:
    cache = WriteCache(1 << 30)
    infos = {ledger: info_of(ledger) for ledger in (1, 2, 3)}
    model: dict[tuple[int, int], bytes] = {}
    for number, (ledger, first, count, size) in enumerate(shapes):
        if number == swap_at:
            cache.swap()
        entries = [body_of(ledger, first + at, size, version=number) for at in range(count)]
        cache.put(infos[ledger], run_of(ledger, first, entries))
        model.update({(ledger, first + at): body for at, body in enumerate(entries)})
    for (ledger, entry), body in model.items():
        assert cache.get(LedgerId(ledger), EntryId(entry)) == body
    for ledger in (1, 2, 3):
        held = [entry for one, entry in model if one == ledger]
        assert cache.last_entry(LedgerId(ledger)) == max(held, default=NO_ENTRY)
        assert cache.get(LedgerId(ledger), EntryId(999)) is None


@settings(deadline=None)
@given(st.lists(run_shapes, min_size=1, max_size=40))
def test_a_half_writes_its_entries_in_order_and_once(shapes: list[tuple[int, int, int, int]]) -> None:
    cache = WriteCache(1 << 30)
    model: dict[int, dict[int, bytes]] = {}
    for number, (ledger, first, count, size) in enumerate(shapes):
        entries = [body_of(ledger, first + at, size, version=number) for at in range(count)]
        cache.put(info_of(ledger), run_of(ledger, first, entries))
        model.setdefault(ledger, {}).update({first + at: body for at, body in enumerate(entries)})
    half = cache.swap()
    assert {int(ledger) for ledger in half.ledgers} == set(model)
    for ledger, expected in model.items():
        ids, places = half.ledgers[LedgerId(ledger)].in_order()
        assert list(ids) == sorted(expected)
        target = page_memory(sum(map(len, expected.values())) + len(ids) * RECORD_HEADER_BYTES)
        runs: list[FlushRun] = [(ledger, ids, places, at, at + 1) for at in range(len(ids))]
        assert half.write_runs(target, 0, 77, runs) == len(target)
        records: list[Buffer] = []
        encode_records(77, LedgerId(ledger), ids, [expected[entry] for entry in ids], records)
        assert target[:] == b"".join(records)
        assert half.sizes(places) == [len(expected[entry]) for entry in ids]
        assert [size for size, _segment in half.segments_of(runs, 1 << 40)] == [
            size + RECORD_HEADER_BYTES for size in half.sizes(places)
        ]


def test_a_small_view_does_not_keep_its_socket_buffer() -> None:
    cache = WriteCache(1 << 30)
    buffer = bytearray(256 * 1024)
    cache.put(info_of(1), run_of(1, 0, [memoryview(buffer)[:100]]))
    before = sys.getrefcount(buffer)
    assert before == 2, "only this test references it"
    assert cache.charged_bytes < 2000


@pytest.mark.parametrize(("share", "kept"), [(0.4, False), (0.9, True)])
def test_a_large_entry_is_kept_uncopied_unless_it_pins_twice_its_size(share: float, kept: bool) -> None:
    cache = WriteCache(1 << 30)
    buffer = bytearray(256 * 1024)
    entry = memoryview(buffer)[: int(len(buffer) * share)]
    cache.put(info_of(1), Run(LedgerId(1), EntryId(0), [entry], EntryId(-1), len(entry)))
    size = len(entry)
    del entry
    assert (sys.getrefcount(buffer) > 2) == kept
    assert cache.charged_bytes >= (len(buffer) if kept else size)
    assert cache.charged_bytes < (len(buffer) if kept else size) + 2000


def test_a_full_half_refuses_and_an_empty_one_accepts_any_run() -> None:
    cache = WriteCache(2 * MIB)
    info = info_of(1)
    cache.put(info, run_of(1, 0, [bytes(3 * MIB)]))
    assert not cache.has_space(run_of(1, 1, [b"x"]))
    with pytest.raises(TooManyRequestsError):
        cache.put(info, run_of(1, 1, [b"x"]))
    cache.swap()
    assert cache.has_space(run_of(1, 1, [b"x"]))
    cache.put(info, run_of(1, 1, [b"x"]))
    cache.release()
    assert cache.get(LedgerId(1), EntryId(0)) is None
    assert cache.get(LedgerId(1), EntryId(1)) == b"x"


def test_a_returned_entry_is_unchanged_when_the_chunk_is_reused() -> None:
    cache = WriteCache(8 * MIB)
    info = info_of(1)
    cache.put(info, run_of(1, 0, [b"a" * 100]))
    cache.swap()
    found = cache.get(LedgerId(1), EntryId(0))
    cache.release()
    cache.put(info, run_of(1, 1, [b"b" * 100]))
    assert found == b"a" * 100


def test_the_charge_is_close_to_the_memory_of_entries_that_fill_chunks() -> None:
    cache = WriteCache(1 << 30)
    info = info_of(1)
    for first in range(0, 40_000, 100):
        cache.put(info, run_of(1, first, [bytes(100)] * 100))
    held = cache.active.ledgers[LedgerId(1)]
    arrays = sys.getsizeof(held.ids) + sys.getsizeof(held.places)
    chunks = -(-4_000_000 // CHUNK_BYTES) * CHUNK_BYTES
    assert arrays + 4_000_000 <= cache.charged_bytes <= 1.2 * (arrays + chunks)


def test_spare_chunks_are_released_when_large_entries_need_their_memory() -> None:
    cache = WriteCache(64 * MIB)
    for entry in range(20 * 1024):
        cache.put(info_of(1), run_of(1, entry, [body_of(1, entry, 1000)]))
    cache.swap()
    cache.release()
    idle = cache.spare_bytes
    assert idle >= 20 * MIB
    for entry in range(10):
        cache.put(info_of(2), run_of(2, entry, [bytes(MIB)]))
    assert cache.spare_bytes == idle - 10 * MIB
    for entry in range(10, 30):
        cache.put(info_of(2), run_of(2, entry, [bytes(MIB)]))
    assert cache.spare_bytes == 0


def test_an_entry_stored_a_third_time_after_an_overlapping_run_is_the_newest() -> None:
    """The overlapping run extends beyond the ids in order; later entries in order are newer than it."""
    cache = WriteCache(1 << 30)
    info = info_of(1)
    cache.put(info, run_of(1, 0, [body_of(1, entry, 10, version=1) for entry in range(6)]))
    cache.put(info, run_of(1, 5, [body_of(1, entry, 10, version=2) for entry in range(5, 9)]))
    cache.put(info, run_of(1, 6, [body_of(1, entry, 10, version=3) for entry in range(6, 8)]))
    versions = [1, 1, 1, 1, 1, 2, 3, 3, 2]
    expected = [body_of(1, entry, 10, version=version) for entry, version in enumerate(versions)]
    assert [cache.get(LedgerId(1), EntryId(entry)) for entry in range(9)] == expected
    half = cache.swap()
    ids, places = half.ledgers[LedgerId(1)].in_order()
    assert list(ids) == list(range(9))
    assert [half.body(at) for at in places] == expected


@settings(deadline=None)
@given(
    st.lists(st.lists(run_shapes, min_size=1, max_size=8), min_size=1, max_size=12),
    st.integers(0, 12),
)
def test_runs_added_together_are_held_like_runs_added_one_by_one(
    batches: list[list[tuple[int, int, int, int]]], swap_at: int
) -> None:
    together, one_by_one = WriteCache(1 << 30), WriteCache(1 << 30)
    infos = {ledger: info_of(ledger) for ledger in (1, 2, 3)}
    held: set[tuple[int, int]] = set()
    for number, shapes in enumerate(batches):
        if number == swap_at:
            together.swap()
            one_by_one.swap()
        runs = []
        for ledger, first, count, size in shapes:
            entries = [body_of(ledger, first + at, size, version=number) for at in range(count)]
            runs.append(run_of(ledger, first, entries))
            held |= {(ledger, first + at) for at in range(count)}
        together.active.add_batch([infos[run.ledger] for run in runs], batch_of(runs[::2], runs[1::2]))
        for run in (*runs[::2], *runs[1::2]):
            one_by_one.put(infos[run.ledger], run)
    for ledger, entry in held:
        found = together.get(LedgerId(ledger), EntryId(entry))
        assert found is not None
        assert found == one_by_one.get(LedgerId(ledger), EntryId(entry))
    for ledger in (1, 2, 3):
        assert together.last_entry(LedgerId(ledger)) == one_by_one.last_entry(LedgerId(ledger))
        assert list(map(list, together.ids_of(LedgerId(ledger)))) == list(
            map(list, one_by_one.ids_of(LedgerId(ledger)))
        )
    assert (together.active.entries, together.active.payload_bytes) == (
        one_by_one.active.entries,
        one_by_one.active.payload_bytes,
    )


def test_runs_added_together_are_charged_like_single_runs() -> None:
    runs = [run_of(ledger, 5, [body_of(ledger, 5, 100)]) for ledger in range(50)]
    cache = WriteCache(1 << 30)
    cache.active.add_batch([info_of(run.ledger) for run in runs], batch_of(runs))
    alone = WriteCache(1 << 30)
    for run in runs:
        alone.put(info_of(run.ledger), run)
    assert cache.charged_bytes == alone.charged_bytes
