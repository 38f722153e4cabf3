"""Tests the steps of a flush: plain and native ones against the block index, the log's encoder and each other."""

import mmap
from array import array
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire_bookie.bulk import plain_flushes
from quire_bookie.bulk.plain import CHUNK_BYTES, PLACE_KEPT, PLACE_SIZE_BITS
from quire_bookie.bulk.plain_flushes import FlushRun
from quire_bookie.errors import DamagedError
from quire_bookie.model import Buffer, EntryId, LedgerId
from quire_bookie.storage.formats import log_format
from quire_bookie.storage.formats.block_index import (
    BlockSegment,
    decode_block,
    merge_block,
    merge_encoded,
    segment_head,
)
from quire_bookie.storage.formats.index_keys import block_key
from quire_bookie.storage.ledgers.ledger_states import LedgerInfo
from quire_bookie.storage.write_cache import LedgerEntries
from tests.support.bulk_steps import both

BOTH = both(plain_flushes, "run_segments", "encode_runs", "merge_blocks", "ledger_runs", "place_runs", "join_spans")
NO_BOUND = 1 << 62
KEY = block_key(LedgerId(5), 3)

patterns = st.one_of(
    st.builds(range, st.integers(0, 255), st.just(256), st.integers(1, 4)).map(list),
    st.sets(st.integers(0, 255), min_size=1, max_size=40).map(sorted),
)


@st.composite
def blocks(draw: st.DrawFn) -> tuple[int, list[int], list[int]]:
    """Draw a ledger, the ids of one block, and their sizes; entries above 1 KiB are kept as objects."""
    block, lows = draw(st.integers(0, 1 << 50)), draw(patterns)
    size = st.sampled_from([0, 1, 100, 1000, 65_535, 65_536])
    sizes = [draw(size)] * len(lows) if draw(st.booleans()) else [draw(size) for _ in lows]
    return draw(st.integers(0, (1 << 63) - 1)), [(block << 8) + low for low in lows], sizes


def stored(found: list[tuple[int, list[int], list[int]]]) -> tuple[list[FlushRun], list[bytearray], list[Buffer]]:
    """Return the runs of some blocks as in a half of the write cache, surrounded by entries of other blocks."""
    chunk, end = bytearray(range(256)) * (CHUNK_BYTES // 256), 7
    kept: list[Buffer] = [b"another's"]
    runs: list[FlushRun] = []
    for ledger, ids, sizes in found:
        places = []
        for size in sizes:
            if size > 1000 or end + size > CHUNK_BYTES:
                kept.append(bytes([size % 251]) * size)
                places.append(PLACE_KEPT | len(kept) - 1)
            else:
                places.append(end << PLACE_SIZE_BITS | size)
                end += size
        other = ids[-1] + 1000
        runs.append((ledger, array("q", [0, *ids, other]), array("q", [0, *places, 0]), 1, len(ids) + 1))
    return runs, [chunk], kept


@BOTH
@settings(deadline=None, max_examples=60)
@given(st.lists(blocks(), min_size=1, max_size=6))
def test_segments_equal_those_of_the_block_index_and_records_those_of_the_log(
    steps: ModuleType, found: list[tuple[int, list[int], list[int]]]
) -> None:
    runs, chunks, kept = stored(found)
    segments = steps.run_segments(runs, kept, NO_BOUND)
    records: list[Buffer] = []
    for (ledger, ids, sizes), run, (size_bytes, tail) in zip(found, runs, segments, strict=True):
        assert size_bytes == sum(sizes) + 24 * len(sizes)
        lows = [entry & 255 for entry in ids]
        whole = merge_block(KEY, None, [BlockSegment(7, 4096, lows, sizes)])
        assert whole[6:] == segment_head(7, 4096) + tail
        bodies = []
        for place in run[2][1:-1]:
            start, size = place >> PLACE_SIZE_BITS, place & ((1 << PLACE_SIZE_BITS) - 1)
            bodies.append(kept[place ^ PLACE_KEPT] if place & PLACE_KEPT else chunks[0][start : start + size])
        log_format.encode_records(99, LedgerId(ledger), ids, bodies, records)
    expected = b"".join(records)
    target = bytearray(len(expected) + 20)
    assert steps.encode_runs(target, 10, 99, runs, chunks, kept) == 10 + len(expected)
    assert target == bytes(10) + expected + bytes(10)
    with pytest.raises((ValueError, IndexError)):
        steps.encode_runs(bytearray(len(expected) - 1), 0, 99, runs, chunks, kept)


def place(start: int, size: int) -> int:
    """Return the place of an entry in a chunk."""
    return start << PLACE_SIZE_BITS | size


def run_of(ids: list[int], places: list[int], ledger: int = 77) -> FlushRun:
    """Return a run of all these entries."""
    return ledger, array("q", ids), array("q", places), 0, len(ids)


@BOTH
@pytest.mark.parametrize("target", [bytearray(9000), memoryview(bytearray(9000)), mmap.mmap(-1, 9000)])
def test_records_of_several_chunks_are_valid_in_the_log_format(steps: ModuleType, target: Any) -> None:
    chunks = [bytearray(CHUNK_BYTES), bytearray(CHUNK_BYTES)]
    chunks[0][10:15] = b"small"
    chunks[1][-6:] = b"second"
    kept: list[Buffer] = [b"", memoryview(b"-a kept one")[1:], b"x" * 3000]
    ids = [-(1 << 63), 4, 9, 10, (1 << 63) - 1]
    places = [place(10, 5), PLACE_KEPT | 1, place(2 * CHUNK_BYTES - 6, 6), PLACE_KEPT | 2, PLACE_KEPT]
    end = steps.encode_runs(target, 4096, 99, [run_of(ids, places)], chunks, kept)
    at = 4096
    for entry, body in zip(ids, (b"small", b"a kept one", b"second", b"x" * 3000, b""), strict=True):
        size = log_format.RECORD_HEADER_BYTES + len(body)
        record = bytes(target[at : at + size])
        assert log_format.check_record(99, record, LedgerId(77), EntryId(entry), "log", at) == body
        at += size
    assert at == end
    assert not any(target[end:])


@BOTH
@pytest.mark.parametrize(
    "wrong", [PLACE_KEPT | 7, place(CHUNK_BYTES - 3, 4), place(7 * CHUNK_BYTES, 4), place(CHUNK_BYTES, 0)]
)
def test_invalid_places_are_refused(steps: ModuleType, wrong: int) -> None:
    with pytest.raises((IndexError, ValueError)):
        steps.encode_runs(bytearray(500), 0, 0, [run_of([1], [wrong])], [bytearray(CHUNK_BYTES)], [b"kept"])


@BOTH
def test_records_are_never_written_beyond_the_end_of_their_target(steps: ModuleType) -> None:
    runs, target = [run_of([1], [PLACE_KEPT])], bytearray(100)
    assert steps.encode_runs(target, 0, 0, runs, [], [b"x" * 76]) == 100
    with pytest.raises((IndexError, ValueError)):
        steps.encode_runs(target, 1, 0, runs, [], [b"x" * 76])
    assert len(target) == 100


@BOTH
def test_no_buffer_is_held_after_records_were_written_or_refused(steps: ModuleType) -> None:
    """An object whose buffer is held cannot change its size."""
    chunk, body, target = bytearray(CHUNK_BYTES), bytearray(b"body"), bytearray(100)
    run = run_of([1, 2], [place(0, 4), PLACE_KEPT])
    steps.encode_runs(target, 0, 0, [run], [chunk], [body])
    with pytest.raises((IndexError, ValueError)):
        steps.encode_runs(target, 99, 0, [run], [chunk], [body])
    for held in (chunk, body, target, run[1], run[2]):
        held.append(0)
    gone = memoryview(b"gone")
    gone.release()
    with pytest.raises(ValueError, match="released"):
        steps.encode_runs(target, 0, 0, [run_of([1], [PLACE_KEPT])], [], [gone])


@BOTH
def test_only_runs_that_fit_the_limit_together_are_processed(steps: ModuleType) -> None:
    runs, _chunks, kept = stored([(1, [0, 1], [100, 100]), (2, [0], [100]), (3, [0], [10])])
    assert [size for size, _tail in steps.run_segments(runs, kept, 248 + 124)] == [248, 124]
    assert [size for size, _tail in steps.run_segments(runs, kept, 248 + 123)] == [248]
    assert steps.run_segments(runs, kept, 247) == []
    assert steps.run_segments([], kept, 247) == []


@BOTH
@pytest.mark.parametrize("wrong", ["empty", "outside", "two blocks", "places missing", "kept missing", "chunk missing"])
def test_an_invalid_run_is_an_error_and_nothing_outside_is_read(steps: ModuleType, wrong: str) -> None:
    ids, places, start, stop = array("q", [255, 256]), array("q", [0, 0]), 0, 1
    if wrong == "empty":
        stop = 0
    elif wrong == "outside":
        start, stop = 1, 3
    elif wrong == "two blocks":
        stop = 2
    elif wrong == "places missing":
        places = array("q", [0])
    elif wrong == "kept missing":
        places = array("q", [PLACE_KEPT | 5, 0])
    else:
        places = array("q", [(3 * CHUNK_BYTES) << PLACE_SIZE_BITS | 9, 0])
    runs = [(1, ids, places, start, stop)]
    with pytest.raises((ValueError, IndexError)):
        steps.run_segments(runs, [], NO_BOUND)
        steps.encode_runs(bytearray(1000), 0, 1, runs, [bytearray(CHUNK_BYTES)], [])


def segment_of(log: int, lows: list[int]) -> bytes:
    runs, _chunks, kept = stored([(1, lows, [100] * len(lows))])
    ((_size, tail),) = plain_flushes.run_segments(runs, kept, NO_BOUND)
    return segment_head(log, 4096) + tail


@BOTH
@settings(deadline=None, max_examples=60)
@given(st.lists(patterns, min_size=2, max_size=4), st.booleans())
def test_values_equal_those_of_the_block_index_or_are_left_to_it(
    steps: ModuleType, patterns_of_flushes: list[list[int]], lost: bool
) -> None:
    value = merge_encoded(KEY, None, segment_of(1, patterns_of_flushes[0]), lost=lost)
    held = set(patterns_of_flushes[0])
    for log, lows in enumerate(patterns_of_flushes[1:], 2):
        fresh = segment_of(log, lows)
        (found,) = steps.merge_blocks([KEY], [value], [fresh])
        expected = merge_encoded(KEY, value, fresh)
        assert found == (None if held & set(lows) else expected)
        assert decode_block(KEY, expected).lost == lost
        value = expected
        held |= set(lows)


@BOTH
def test_a_first_value_is_merged_and_a_damaged_one_is_left_to_the_block_index(steps: ModuleType) -> None:
    fresh = segment_of(2, [7, 8])
    assert steps.merge_blocks([KEY], [None], [fresh]) == [merge_encoded(KEY, None, fresh)]
    value = merge_encoded(KEY, None, segment_of(1, [1, 5, 6]))
    for at in range(len(value)):
        damaged = bytearray(value)
        damaged[at] ^= 1
        assert steps.merge_blocks([KEY], [bytes(damaged)], [fresh]) == [None]
        assert steps.merge_blocks([KEY], [value[:at]], [fresh]) == [None]
    with pytest.raises(DamagedError):
        decode_block(b"another key", value)
    assert steps.merge_blocks([b"another key"], [value], [fresh]) == [None]
    with pytest.raises(ValueError):
        steps.merge_blocks([KEY], [], [fresh])


held_ids = st.lists(st.integers(0, 1 << 20) | st.integers((1 << 62) - 3, (1 << 62) - 1), min_size=1, max_size=30)


@BOTH
@settings(deadline=None, max_examples=60)
@given(st.dictionaries(st.integers(0, (1 << 63) - 1), held_ids, max_size=8), st.integers(1, 5), st.data())
def test_the_runs_of_ledgers_have_each_entry_once_in_the_block_of_its_key(
    steps: ModuleType, ids_of: dict[int, list[int]], runs_max: int, data: st.DataObject
) -> None:
    held: dict[LedgerId, LedgerEntries] = {}
    for ledger, ids in ids_of.items():
        each = held[LedgerId(ledger)] = LedgerEntries(LedgerInfo(LedgerId(ledger), b""))
        for number, entry in enumerate(ids):  # the later copy of an id wins
            if not each.ids or entry > each.ids[-1]:
                each.append(entry, (number,))
            else:
                each.strays[entry] = number
    gone = set(data.draw(st.lists(st.sampled_from(sorted(ids_of)), unique=True))) if ids_of else set()
    for ledger in gone:
        held[LedgerId(ledger)].info.deleted = True
    ledgers = sorted({*ids_of, 7})  # one may have no entries
    found: dict[int, dict[int, int]] = {}
    at = 0
    while at < len(ledgers):
        before = at
        at, runs, keys = steps.ledger_runs(held, ledgers, at, runs_max)
        assert before < at <= len(ledgers) and len(runs) == len(keys)
        fewer = plain_flushes.ledger_runs(held, ledgers, before, runs_max)
        assert (at, [run[3:] for run in runs], keys) == (fewer[0], [run[3:] for run in fewer[1]], fewer[2])
        for (ledger, ids, places, start, stop), key in zip(runs, keys, strict=True):
            part = ids[start:stop]
            assert part and {block_key(LedgerId(ledger), entry >> 8) for entry in part} == {key}
            assert not found.setdefault(ledger, {}).keys() & set(part)
            found[ledger].update(zip(part, places[start:stop], strict=True))
    assert found == {
        ledger: {entry: number for number, entry in enumerate(ids)}
        for ledger, ids in ids_of.items()
        if ledger not in gone
    }


@BOTH
def test_a_ledger_without_entries_and_a_wrong_index_are_errors(steps: ModuleType) -> None:
    held = {1: LedgerEntries(LedgerInfo(LedgerId(1), b""))}
    with pytest.raises(ValueError):
        steps.ledger_runs(held, [1], 0, 5)
    assert steps.ledger_runs(held, [1], 1, 5) == (1, [], [])
    assert steps.ledger_runs(held, [1], 0, 0) == (0, [], [])


@BOTH
@settings(deadline=None, max_examples=60)
@given(st.lists(blocks(), max_size=6), st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 32) - (1 << 27)))
def test_placed_runs_have_the_segments_of_their_offsets_and_the_lines_of_a_map(
    steps: ModuleType, found: list[tuple[int, list[int], list[int]]], log: int, base: int
) -> None:
    runs, _chunks, kept = stored(found)
    segments = plain_flushes.run_segments(runs, kept, NO_BOUND)
    placed, lines, entries = steps.place_runs(runs, segments, log, base)
    expected = b""
    for (ledger, ids, sizes), segment, (_size, tail) in zip(found, placed, segments, strict=True):
        size_bytes = sum(sizes) + 24 * len(sizes)
        assert segment == segment_head(log, base) + tail
        expected += log_format.map_line(LedgerId(ledger), EntryId(ids[0]), EntryId(ids[-1]), len(ids), size_bytes)
        base += size_bytes
    assert (lines, entries) == (expected, sum(len(ids) for _ledger, ids, _sizes in found))


@BOTH
def test_runs_without_segments_or_beyond_a_log_are_refused(steps: ModuleType) -> None:
    runs = [run_of([1], [place(0, 5)]), run_of([2], [place(5, 5)], 78)]
    segments = plain_flushes.run_segments(runs, [], NO_BOUND)
    with pytest.raises(ValueError):
        steps.place_runs(runs, segments[:1], 1, 0)
    with pytest.raises(OverflowError):
        steps.place_runs(runs, segments, 1, (1 << 32) - 1)


spans = st.tuples(
    st.integers(0, 5),
    st.just((-1, -1, 0)) | st.tuples(st.integers(0, 99), st.integers(100, 199), st.integers(1, 9)),
    st.integers(0, 1 << 40),
)


@BOTH
@settings(deadline=None, max_examples=60)
@given(st.lists(st.lists(spans, max_size=6), max_size=5))
def test_joined_lines_count_as_the_maps_of_the_log_do(
    steps: ModuleType, drawn: list[list[tuple[int, tuple[int, int, int], int]]]
) -> None:
    counted: log_format.LedgerMap = {}
    parts: list[bytes] = []
    for part in drawn:
        lines = b""
        for number, (first, last, entries), size_bytes in part:
            one = LedgerId(number), EntryId(first), EntryId(last), entries, size_bytes
            log_format.note_entries(counted, *one)
            lines += log_format.map_line(*one)
        parts.append(lines)
    assert steps.join_spans(parts) == log_format.map_lines(counted)


@BOTH
def test_a_line_that_ends_early_or_counts_too_much_is_refused(steps: ModuleType) -> None:
    line = log_format.map_line(LedgerId(1), EntryId(0), EntryId(9), (1 << 32) - 1, 5)
    assert steps.join_spans([]) == b""
    assert steps.join_spans([line]) == line
    with pytest.raises(ValueError):
        steps.join_spans([line[:-1]])
    with pytest.raises(OverflowError):
        steps.join_spans([line, line])
