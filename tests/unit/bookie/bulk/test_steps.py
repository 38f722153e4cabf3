"""Tests the steps over whole buffers: the same tests for plain and native ones, and that both agree."""

import os
import struct
import subprocess
import sys
from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire_bookie.bulk import plain
from quire_bookie.journal import records
from quire_bookie.model import Buffer, EntryId, LedgerId, Run
from quire_bookie.wire import v2
from tests.support.bulk_steps import add_frame, native
from tests.support.bulk_steps import both as steps_of

FRAME_MAX = 1 << 20


both = steps_of(plain)


# take_adds


@both
def test_adds_of_one_run_are_decoded_with_their_bytes_and_highest_lac(steps: Any) -> None:
    frames = [add_frame(7, 40 + n, lac, bytes([n]) * n) for n, lac in enumerate((3, 9, 5))]
    entries: list[Buffer] = []
    position, size, lac = steps.take_adds(b"xx" + b"".join(frames), 2, FRAME_MAX, 40, -1, entries)
    assert position == 2 + sum(map(len, frames))
    assert [bytes(entry) for entry in entries] == [frame[28:] for frame in frames]
    assert (size, lac) == (sum(len(frame) - 28 for frame in frames), 9)


@both
@pytest.mark.parametrize(
    "other",
    [
        add_frame(7, 42, 0, b"a gap"),
        add_frame(8, 41, 0, b"another ledger"),
        add_frame(7, 41, 0, b"another key", key=bytes(20)),
        add_frame(7, 41, 0, b"recovery", flags=v2.RECOVERY_ADD),
        add_frame(7, 41, 0, b"cut short")[:-1],
        (55).to_bytes(4, "big") + add_frame(7, 41, 0, b"")[4:] + b"no whole header",
        (-1).to_bytes(4, "big", signed=True) + add_frame(7, 41, 0, b"")[4:],
        add_frame(7, 41, 0, bytes(FRAME_MAX)),
        b"\0" * 51,
        b"",
    ],
)
def test_a_run_ends_before_a_frame_that_does_not_continue_it(steps: Any, other: bytes) -> None:
    first = add_frame(7, 40, 12, b"first")
    entries: list[Buffer] = []
    assert steps.take_adds(first + other, 0, FRAME_MAX, 40, 20, entries) == (len(first), len(first) - 28, 20)
    assert [bytes(entry) for entry in entries] == [first[28:]]


@both
@pytest.mark.parametrize("size", [16 * 1024 - 33, 16 * 1024 - 32, 16 * 1024, 100_000])
def test_large_entries_are_complete_too(steps: Any, size: int) -> None:
    frames = [add_frame(1, n, 0, bytes([n + 1]) * size) for n in range(3)]
    entries: list[Buffer] = []
    assert steps.take_adds(b"".join(frames), 0, FRAME_MAX, 0, -1, entries)[0] == sum(map(len, frames))
    assert [bytes(entry) for entry in entries] == [frame[28:] for frame in frames]


@both
def test_nothing_is_decoded_at_or_after_the_end(steps: Any) -> None:
    entries: list[Buffer] = []
    assert steps.take_adds(b"short", 0, FRAME_MAX, 0, -1, entries) == (0, 0, -1)
    assert steps.take_adds(b"short", 5, FRAME_MAX, 0, -1, entries) == (5, 0, -1)
    assert steps.take_adds(b"", 99, FRAME_MAX, 0, -1, entries) == (99, 0, -1)
    assert entries == []


@both
def test_a_run_ends_at_the_highest_id_and_does_not_continue_at_the_lowest(steps: Any) -> None:
    """Otherwise its ids would exceed those of the write cache, and no later flush would end."""
    highest, lowest = (1 << 63) - 1, -(1 << 63)
    first, second = bytearray(add_frame(7, 0, 0, b"first")), bytearray(add_frame(7, 0, 0, b"second"))
    first[36:44], second[36:44] = highest.to_bytes(8, "big"), lowest.to_bytes(8, "big", signed=True)
    entries: list[Buffer] = []
    taken = steps.take_adds(bytes(first + second), 0, FRAME_MAX, highest, -1, entries)
    assert taken == (len(first), len(first) - 28, 0)
    assert list(map(bytes, entries)) == [first[28:]]


ID_EDGES = [-(1 << 63), -(1 << 63) + 1, -2, -1, 0, 1, (1 << 31) - 1, 1 << 31, (1 << 63) - 2, (1 << 63) - 1]


@both
@given(data=st.data())
def test_both_decode_the_same_runs_at_the_limits_of_ids_and_lengths_for_any_cut(
    steps: Any, data: st.DataObject
) -> None:
    first = data.draw(st.sampled_from(ID_EDGES))
    stream = bytearray()
    entry = first
    for _ in range(data.draw(st.integers(1, 5))):
        frame = bytearray(add_frame(7, 0, data.draw(st.sampled_from(ID_EDGES)), bytes(data.draw(st.integers(0, 40)))))
        size = data.draw(st.sampled_from([len(frame) - 4] * 8 + [len(frame) - 5, len(frame) - 3, 0, -1, (1 << 31) - 1]))
        frame[:4] = size.to_bytes(4, "big", signed=True)
        frame[36:44] = entry.to_bytes(8, "big", signed=True)
        stream += frame
        entry = (entry + 1 + (1 << 63)) % (1 << 64) - (1 << 63)
    frame_bytes_max = data.draw(st.sampled_from([56, 70, 96, (1 << 31) - 1]))
    lac = data.draw(st.sampled_from(ID_EDGES))
    for cut in range(len(stream) + 1):
        taken: list[Buffer] = []
        expected: list[Buffer] = []
        result = steps.take_adds(bytes(stream[:cut]), 0, frame_bytes_max, first, lac, taken)
        assert result == plain.take_adds(bytes(stream[:cut]), 0, frame_bytes_max, first, lac, expected)
        assert list(map(bytes, taken)) == list(map(bytes, expected))


@both
@given(data=st.data())
def test_arbitrary_bytes_give_the_same_adds_and_never_cause_reads_outside(steps: Any, data: st.DataObject) -> None:
    frames = data.draw(
        st.lists(
            st.builds(
                add_frame,
                st.integers(0, 1),
                st.integers(0, 3),
                st.integers(-1, 5),
                st.binary(max_size=40),
                flags=st.sampled_from([0, v2.RECOVERY_ADD]),
            ),
            max_size=6,
        )
    )
    stream = bytearray(b"".join(frames))
    for at, value in data.draw(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=3)):
        if at < len(stream):
            stream[at] = value
    cut = bytes(stream[: data.draw(st.integers(0, len(stream)))])
    position, first = data.draw(st.integers(0, 70)), data.draw(st.integers(-1, 3))
    taken: list[Buffer] = []
    expected: list[Buffer] = []
    result = steps.take_adds(cut, position, 200, first, -1, taken)
    assert result == plain.take_adds(cut, position, 200, first, -1, expected)
    assert list(map(bytes, taken)) == list(map(bytes, expected))


# add_replies


@both
@pytest.mark.parametrize("count", [0, 1, 2, 300])
def test_every_add_of_a_run_gets_its_response(steps: Any, count: int) -> None:
    header = v2.answer_header(2, v2.ADD)
    expected = b"".join(v2.RESPONSE.pack(24, header, 101, 1 << 40, (1 << 33) + n) for n in range(count))
    assert steps.add_replies(24, header, 101, 1 << 40, 1 << 33, count) == expected


@both
def test_responses_beyond_the_highest_id_are_refused(steps: Any) -> None:
    highest = (1 << 63) - 1
    assert steps.add_replies(24, 1, 0, 7, highest, 1)[20:] == highest.to_bytes(8, "big")
    with pytest.raises((struct.error, ValueError)):
        steps.add_replies(24, 1, 0, 7, highest, 2)


# store_entries


@both
@pytest.mark.parametrize("size", [1, 100, 3000])
def test_entries_are_copied_consecutively_and_their_places_locate_them(steps: Any, size: int) -> None:
    chunk = bytearray(plain.CHUNK_BYTES)
    entries: list[Buffer] = [bytes([n]) * (size + n) for n in range(20)]
    entries[3] = memoryview(entries[3])
    start = 5 * plain.CHUNK_BYTES + 77
    places = array("q")
    places.frombytes(steps.store_entries(chunk, 77, start, entries))
    at = start
    for entry, place in zip(entries, places, strict=True):
        assert (place >> plain.PLACE_SIZE_BITS, place & plain.PLACE_SIZE_MASK) == (at, len(entry))
        assert chunk[at % plain.CHUNK_BYTES :][: len(entry)] == entry
        at += len(entry)


@both
def test_a_chunk_never_grows(steps: Any) -> None:
    chunk = bytearray(100)
    with pytest.raises((IndexError, ValueError)):
        steps.store_entries(chunk, 90, 90, [b"x" * 11])
    assert len(chunk) == 100


# encode_body


@both
@given(
    st.lists(
        st.one_of(
            st.binary(max_size=50),
            st.builds(
                lambda ledger, first, entries, lac: Run(
                    LedgerId(ledger), EntryId(first), entries, EntryId(lac), sum(map(len, entries))
                ),
                st.integers(0, 1 << 62),
                st.integers(0, 1 << 62),
                st.lists(st.binary(max_size=30), min_size=1, max_size=5),
                st.integers(-(1 << 63), 1 << 62),
            ),
        ),
        max_size=8,
    )
)
def test_both_encode_the_same_body_with_every_run(steps: Any, items: list[Run | bytes]) -> None:
    body = steps.encode_body(items)
    assert body == plain.encode_body(items)
    runs = b"".join(plain.encode_body([item]) for item in items)
    assert body == runs


@both
def test_a_body_decodes_to_its_runs(steps: Any) -> None:
    run = Run(LedgerId(5), EntryId(9), [b"one", memoryview(b"xtwo")[1:], bytearray(b"three")], EntryId(7), 11)
    single = Run(LedgerId(6), EntryId(1), (b"alone",), EntryId(-1), 5)
    found = list(records.decode_body(steps.encode_body([run, records.fence_record(LedgerId(6)), single])))
    assert found == [
        records.EntryRecord(Run(LedgerId(5), EntryId(9), [b"one", b"two", b"three"], EntryId(7), 11)),
        records.FenceRecord(LedgerId(6)),
        records.EntryRecord(Run(LedgerId(6), EntryId(1), [b"alone"], EntryId(-1), 5)),
    ]


@both
@given(data=st.data())
def test_both_store_the_same_bytes_and_places(steps: Any, data: st.DataObject) -> None:
    for number in range(2):
        chunk = bytearray(plain.CHUNK_BYTES)
        entries: list[Buffer] = [
            memoryview(b"x" + body)[1:] if view else body
            for body, view in data.draw(st.lists(st.tuples(st.binary(max_size=50), st.booleans()), max_size=6))
        ]
        size = sum(map(len, entries))
        offset = data.draw(st.sampled_from([0, 1, plain.CHUNK_BYTES - size]))
        start = number * plain.CHUNK_BYTES + offset
        stored = steps.store_entries(chunk, offset, start, entries)
        assert chunk[offset : offset + size] == b"".join(entries)
        assert stored == plain.store_entries(bytearray(plain.CHUNK_BYTES), offset, start, entries)


@both
def test_no_buffer_is_held_after_a_step_succeeded_or_failed(steps: Any) -> None:
    """A bytearray whose buffer is held cannot change its size."""
    chunk, body = bytearray(plain.CHUNK_BYTES), bytearray(b"body")
    steps.store_entries(chunk, 0, 0, [body])
    steps.encode_body([Run(LedgerId(1), EntryId(1), [body], EntryId(0), 4)])
    with pytest.raises((IndexError, ValueError)):
        steps.store_entries(chunk, plain.CHUNK_BYTES - 1, 0, [body])
    with pytest.raises(TypeError):
        steps.store_entries(chunk, 0, 0, [body, None])
    for held in (chunk, body):
        held.append(0)


@both
def test_a_released_view_is_an_error(steps: Any) -> None:
    gone = memoryview(b"gone")
    gone.release()
    with pytest.raises(ValueError, match="released"):
        steps.store_entries(bytearray(100), 0, 0, [gone])
    with pytest.raises(ValueError, match="released"):
        steps.encode_body([Run(LedgerId(1), EntryId(1), [gone], EntryId(0), 4)])


# The choice


@pytest.mark.parametrize(("wanted", "native_is_used"), [("0", False), ("1", True)])
def test_the_environment_selects_the_steps(wanted: str, native_is_used: bool) -> None:
    answer = subprocess.run(
        [sys.executable, "-c", "import quire_bookie.bulk as bulk; print(bulk.IS_NATIVE)"],
        env=os.environ | {"QUIRE_NATIVE": wanted},
        capture_output=True,
        text=True,
        check=False,
    )
    if native_is_used and native() is None:
        assert answer.returncode != 0 and "_native" in answer.stderr
    else:
        assert answer.stdout.strip() == str(native_is_used)
