"""Tests the steps over adds of many ledgers: the same tests for plain and native ones, and that both agree."""

import struct
from array import array
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quire_bookie.bulk import plain
from quire_bookie.journal.records import EntryRecord, decode_body
from quire_bookie.model import EntryId, LedgerId, Run
from quire_bookie.wire import v2
from tests.support.bulk_steps import KEY, add_frame, native
from tests.support.bulk_steps import both as steps_of

FRAME_MAX = 1 << 20


both = steps_of(plain)


def runs_in(records: bytes) -> list[Run]:
    """Return the runs that a replay of these journal records delivers."""
    found = list(decode_body(records))
    assert all(isinstance(record, EntryRecord) for record in found)
    return [record.run for record in found if isinstance(record, EntryRecord)]


@both
def test_adds_of_several_ledgers_become_a_row_and_a_journal_record_for_each_run(steps: Any) -> None:
    frames = [
        add_frame(7, 40, 3, b"a"),
        add_frame(8, 0, -1, b"bb"),
        add_frame(7, 41, 9, b""),
        add_frame(8, 5, 4, b"after a gap"),
        add_frame(7, 42, 8, b"c"),
    ]
    data = b"??" + b"".join(frames)
    position, rows, records, entries, size = steps.take_add_rows(data, 2, FRAME_MAX)
    assert position == len(data)
    assert (entries, size) == (5, sum(len(frame) - 28 for frame in frames))
    assert [row[:5] for row in rows] == [(7, 40, 3, 9, KEY), (8, 0, 1, -1, KEY), (8, 5, 1, 4, KEY)]
    bodies = [frame[28:] for frame in frames]
    assert runs_in(records) == [
        Run(LedgerId(7), EntryId(40), [bodies[0], bodies[2], bodies[4]], EntryId(9), sum(map(len, bodies[::2]))),
        Run(LedgerId(8), EntryId(0), [bodies[1]], EntryId(-1), len(bodies[1])),
        Run(LedgerId(8), EntryId(5), [bodies[3]], EntryId(4), len(bodies[3])),
    ]
    for (_ledger, _first, _count, _lac, _key, start, end), run in zip(rows, runs_in(records), strict=True):
        assert runs_in(records[start:end]) == [run]


@both
def test_each_row_has_the_key_of_its_adds(steps: Any) -> None:
    other = bytes(20)
    data = add_frame(7, 0, 0, b"") + add_frame(7, 1, 0, b"", key=other) + add_frame(7, 1, 0, b"")
    _position, rows, _records, entries, _size = steps.take_add_rows(data, 0, FRAME_MAX)
    assert entries == 3
    assert [(row[1], row[2], row[4]) for row in rows] == [(0, 2, KEY), (1, 1, other)]


@both
@pytest.mark.parametrize(
    "other",
    [
        add_frame(7, 41, 0, b"recovery", flags=v2.RECOVERY_ADD),
        add_frame(7, 41, 0, b"cut short")[:-1],
        add_frame(7, 41, 0, bytes(plain.BATCHED_ENTRY_BYTES_MAX - 31)),
        (55).to_bytes(4, "big") + add_frame(7, 41, 0, b"")[4:] + b"no whole header",
        (-1).to_bytes(4, "big", signed=True) + add_frame(7, 41, 0, b"")[4:],
        add_frame(7, 41, 0, bytes(FRAME_MAX)),
        b"\0" * 51,
        b"",
    ],
)
def test_rows_end_before_a_frame_that_is_not_a_small_add_of_the_same_kind(steps: Any, other: bytes) -> None:
    first = add_frame(7, 40, 12, b"first")
    position, rows, records, entries, _size = steps.take_add_rows(first + other, 0, FRAME_MAX)
    assert (position, entries, len(rows)) == (len(first), 1, 1)
    assert [bytes(entry) for entry in runs_in(records)[0].entries] == [first[28:]]


@both
def test_an_entry_of_the_largest_size_is_decoded_and_none_if_the_first_is_larger(steps: Any) -> None:
    largest = add_frame(7, 41, 0, bytes(plain.BATCHED_ENTRY_BYTES_MAX - 32))
    assert steps.take_add_rows(largest, 0, FRAME_MAX)[3] == 1
    larger = add_frame(7, 41, 0, bytes(plain.BATCHED_ENTRY_BYTES_MAX - 31))
    assert steps.take_add_rows(larger, 0, FRAME_MAX) == (0, [], b"", 0, 0)


@both
def test_a_row_ends_at_the_highest_id(steps: Any) -> None:
    highest, lowest = (1 << 63) - 1, -(1 << 63)
    data = add_frame(7, highest, 0, b"") + add_frame(7, lowest, 0, b"")
    _position, rows, _records, entries, _size = steps.take_add_rows(data, 0, FRAME_MAX)
    assert [row[:3] for row in rows] == [(7, highest, 1), (7, lowest, 1)]
    assert entries == 2


@both
def test_rows_are_stored_consecutively_without_those_removed(steps: Any) -> None:
    frames = [add_frame(ledger, 0, 0, bytes([ledger]) * ledger) for ledger in range(1, 6)]
    _position, rows, records, _entries, _size = steps.take_add_rows(b"".join(frames), 0, FRAME_MAX)
    more = add_frame(9, 0, 0, b"x") + add_frame(9, 1, 0, b"yy")
    _position, others, other_records, _entries, _size = steps.take_add_rows(more, 0, FRAME_MAX)
    chunk = bytearray(1000)
    pieces = [(records, [rows[0], rows[3]]), (records, []), (other_records, others)]
    places = array("q", steps.store_rows(chunk, 100, 5000, pieces, 4))
    at = 100
    for place, body in zip(places, [frames[0][28:], frames[3][28:], more[28:61], more[89:]], strict=True):
        assert place >> plain.PLACE_SIZE_BITS == 5000 + at - 100
        assert place & plain.PLACE_SIZE_MASK == len(body)
        assert chunk[at : at + len(body)] == body
        at += len(body)
    assert not any(chunk[at:]) and not any(chunk[:100])


@both
@pytest.mark.parametrize(("row", "count"), [((0, 60), 1), ((0, 200), 1), ((1 << 40, 0), 1), ((0, 0), 1), ((0, 0), 3)])
def test_rows_that_do_not_match_their_records_are_refused(steps: Any, row: tuple[int, int], count: int) -> None:
    _position, rows, records, _entries, _size = steps.take_add_rows(
        add_frame(1, 0, 0, b"x") + add_frame(1, 1, 0, b"y"), 0, FRAME_MAX
    )
    ledger, first, entries, lac, key, _start, _end = rows[0]
    wrong = (ledger, first, entries + row[0], lac, key, row[1], row[1] + 1)
    with pytest.raises((IndexError, ValueError, MemoryError, struct.error)):
        steps.store_rows(bytearray(1000), 0, 0, [(records, [wrong])], count)


@both
def test_rows_that_do_not_fit_the_chunk_are_refused(steps: Any) -> None:
    _position, rows, records, _entries, _size = steps.take_add_rows(add_frame(1, 0, 0, b"x" * 100), 0, FRAME_MAX)
    with pytest.raises(IndexError):
        steps.store_rows(bytearray(131), 0, 0, [(records, rows)], 1)


@both
def test_every_add_of_some_rows_is_answered(steps: Any) -> None:
    rows = [(7, 40, 2, 0, KEY, 0, 0), (8, 5, 1, 0, KEY, 0, 0)]
    expected = b"".join(steps.add_replies(24, 99, -3, ledger, first, count) for ledger, first, count, *_ in rows)
    assert steps.row_replies(24, 99, -3, rows) == expected
    assert steps.row_replies(24, 99, -3, []) == b""


@pytest.mark.skipif(native() is None, reason="not built: `make native`")
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    adds=st.lists(
        st.tuples(st.integers(-1, 3), st.integers(-2, 3), st.integers(-1, 5), st.binary(max_size=40), st.booleans()),
        max_size=30,
    ),
    cut=st.integers(0, 40),
    damage=st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=3),
    frame_max=st.sampled_from([60, 80, FRAME_MAX]),
)
def test_both_decode_the_same_rows_from_any_bytes(
    adds: list[tuple[int, int, int, bytes, bool]], cut: int, damage: list[tuple[int, int]], frame_max: int
) -> None:
    data = bytearray(b"".join(add_frame(*add[:4], key=KEY if add[4] else bytes(20)) for add in adds))
    data = data[: max(0, len(data) - cut)]
    for at, value in damage:
        if at < len(data):
            data[at] = value
    steps: Any = native()
    ours = plain.take_add_rows(bytes(data), 0, frame_max)
    theirs = steps.take_add_rows(bytes(data), 0, frame_max)
    assert theirs == ours
    pieces, count = [(ours[2], ours[1])], ours[3]
    chunks = bytearray(4096), bytearray(4096)
    assert steps.store_rows(chunks[0], 3, 17, pieces, count) == plain.store_rows(chunks[1], 3, 17, pieces, count)
    assert chunks[0] == chunks[1]
    assert steps.row_replies(24, 1, 0, ours[1]) == plain.row_replies(24, 1, 0, ours[1])
