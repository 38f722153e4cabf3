"""Tests the steps of reads over whole buffers: the same tests for plain and native ones, and that both agree."""

from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire_bookie.bulk import plain_reads
from quire_bookie.model import Buffer, EntryId, LedgerId
from quire_bookie.storage.formats import log_format
from quire_bookie.wire import client_codec, server_v2, v2
from quire_bookie.wire.messages import Status, V2Origin
from tests.support.bulk_steps import both as steps_of
from tests.support.bulk_steps import native

LEDGER = LedgerId(7)
SALT = 99
HEADER = v2.answer_header(v2.VERSION, v2.READ)


both = steps_of(plain_reads, "take_reads")


def read_frame(ledger: int, entry: int, *, flags: int = 0) -> bytes:
    """One V2 read."""
    head = v2.header_word(v2.READ, flags).to_bytes(4, "big")
    return (20).to_bytes(4, "big") + head + ledger.to_bytes(8, "big") + entry.to_bytes(8, "big", signed=True)


def ids_of(taken: bytes) -> list[int]:
    """What `take_reads` gave."""
    return array("q", taken).tolist()


class Records:
    """Builds a stretch of some entries."""

    def __init__(self, bodies: dict[int, bytes]) -> None:
        self.ids, self.starts, self.sizes = array("q", sorted(bodies)), array("q"), array("q")
        parts: list[Buffer] = []
        log_format.encode_records(SALT, LEDGER, self.ids, [bodies[entry] for entry in self.ids], parts)
        at = 0
        for entry in self.ids:
            self.starts.append(at + log_format.RECORD_HEADER_BYTES)
            self.sizes.append(len(bodies[entry]))
            at += log_format.RECORD_HEADER_BYTES + len(bodies[entry])
        self.data = b"".join(parts)
        self.all = (self.data, self.ids, self.starts, self.sizes)

    def damaged(self, steps: Any, data: bytes | None = None, *, salt: int = SALT, ledger: int = LEDGER) -> list[int]:
        """What `check_records` says."""
        found: list[int] = steps.check_records(
            self.data if data is None else data, salt, ledger, self.ids, self.starts, self.sizes
        )
        return found


def answers(bodies: dict[int, bytes], entries: list[int]) -> bytes:
    """Return the codec's responses to single reads."""
    origin = V2Origin(HEADER)
    parts = [server_v2.encode_read(origin, LEDGER, EntryId(each), Status.OK, bodies[each]) for each in entries]
    return b"".join(buffer for part in parts for buffer in part)


BODIES = {entry: bytes([entry]) * (entry * 7 % 50) for entry in (3, 4, 5, 8, 11, 12, 13, 14)}


# take_reads


@both
def test_reads_of_one_ledger_are_decoded_with_any_ids(steps: Any) -> None:
    ids = [5, 6, 6, 1 << 60, -1, 0]
    data = b"xx" + b"".join(read_frame(7, entry) for entry in ids)
    position, taken = steps.take_reads(data, 2)
    assert (position, ids_of(taken)) == (len(data), ids)


@both
@pytest.mark.parametrize(
    "other",
    [
        read_frame(8, 2),
        read_frame(7, 2, flags=v2.HIGH_PRIORITY),
        read_frame(7, 2)[:-1],
        b"",
        (21).to_bytes(4, "big") + read_frame(7, 2)[4:] + b"x",
        b"\0" * 24,
    ],
)
def test_reads_end_at_a_frame_that_does_not_continue_them(steps: Any, other: bytes) -> None:
    run = read_frame(7, 0) + read_frame(7, 1)
    position, taken = steps.take_reads(run + other, 0)
    assert (position, ids_of(taken)) == (len(run), [0, 1])


@both
@pytest.mark.parametrize("position", [0, 3, 500])
def test_nothing_is_decoded_without_a_complete_read(steps: Any, position: int) -> None:
    assert steps.take_reads(read_frame(7, 0)[:20], position) == (position, b"")


def test_a_read_of_the_client_is_decoded() -> None:
    assert client_codec.v2_read(LEDGER, EntryId(9)) == read_frame(7, 9)


# check_records


@both
def test_records_are_intact_but_not_as_those_of_another_log_or_ledger(steps: Any) -> None:
    records = Records(BODIES)
    assert records.damaged(steps) == []
    assert records.damaged(steps, salt=SALT + 1) == list(range(len(BODIES)))
    assert records.damaged(steps, ledger=8) == list(range(len(BODIES)))
    assert Records({}).damaged(steps) == []


@both
def test_a_flipped_bit_damages_only_its_record(steps: Any) -> None:
    records = Records(BODIES)
    starts = [start - log_format.RECORD_HEADER_BYTES for start in records.starts]
    for at in range(len(records.data)):
        data = bytearray(records.data)
        data[at] ^= 1 << at % 8
        assert records.damaged(steps, bytes(data)) == [max(n for n, start in enumerate(starts) if start <= at)]


@both
@pytest.mark.parametrize(("start", "size"), [(23, 1), (24, 1000), (5000, 1), (24, -1), (-30, 5)])
def test_a_record_outside_of_the_bytes_is_refused(steps: Any, start: int, size: int) -> None:
    with pytest.raises(IndexError):
        steps.check_records(bytes(100), SALT, 7, array("q", [1]), array("q", [start]), array("q", [size]))


# read_replies


@both
def test_the_responses_to_a_run_equal_those_to_its_single_reads(steps: Any) -> None:
    wanted = [3, 4, 5, 8, 11, 3, 14, 13]
    joined, count = steps.read_replies(
        *Records(BODIES).all, HEADER, LEDGER, array("q", wanted), 0, len(wanted), 1 << 20
    )
    assert (joined, count) == (answers(BODIES, wanted), len(wanted))


@both
@pytest.mark.parametrize(
    ("wanted", "at", "count_max", "bytes_max", "answered"),
    [
        ([3, 4, 6, 8], 0, 10, 1 << 20, [3, 4]),
        ([6, 3], 0, 10, 1 << 20, []),
        ([3, 4, 5], 1, 10, 1 << 20, [4, 5]),
        ([3, 4, 5], 0, 2, 1 << 20, [3, 4]),
        ([3, 4, 5], 0, 10, 1, [3]),
        ([3, 4, 5], 0, 10, 28 + 21 + 1, [3, 4]),
        ([3, 4, 5], 3, 10, 1 << 20, []),
        ([-1, 3], 0, 10, 1 << 20, []),
    ],
)
def test_responses_end_at_an_entry_outside_of_the_stretch_and_at_their_limits(
    steps: Any, wanted: list[int], at: int, count_max: int, bytes_max: int, answered: list[int]
) -> None:
    found = steps.read_replies(*Records(BODIES).all, HEADER, LEDGER, array("q", wanted), at, count_max, bytes_max)
    assert found == (answers(BODIES, answered), len(answered))


# batch_bodies


@both
@pytest.mark.parametrize(
    ("first", "entries_max", "bytes_max", "found"),
    [
        (3, 10, 1 << 20, [3, 4, 5]),
        (4, 10, 1 << 20, [4, 5]),
        (11, 3, 1 << 20, [11, 12, 13]),
        (11, 10, 4 + 27 + 4 + 34, [11, 12]),
        (11, 10, 4 + 27 + 4 + 33, [11]),
        (11, 10, 3, []),
        (11, 0, 1 << 20, []),
        (6, 10, 1 << 20, []),
        (-1, 10, 1 << 20, []),
        (99, 10, 1 << 20, []),
    ],
)
def test_a_batch_has_the_entries_that_follow_without_a_gap_within_its_limits(
    steps: Any, first: int, entries_max: int, bytes_max: int, found: list[int]
) -> None:
    joined = b"".join(len(BODIES[each]).to_bytes(4, "big") + BODIES[each] for each in found)
    assert steps.batch_bodies(*Records(BODIES).all, first, entries_max, bytes_max) == (joined, len(found))


@both
def test_records_outside_of_the_bytes_return_no_other_memory(steps: Any) -> None:
    for start, size in ((95, 10), (0, 101), (1 << 62, 1 << 62)):
        stretch = (bytes(100), array("q", [1]), array("q", [start]), array("q", [size]))
        if steps is plain_reads:
            continue  # slices of Python end with the bytes
        with pytest.raises((IndexError, MemoryError, OverflowError)):
            steps.read_replies(*stretch, HEADER, LEDGER, array("q", [1]), 0, 1, 1 << 20)


# both agree


@pytest.mark.skipif(native("take_reads") is None, reason="not built: `make native`")
@given(
    st.dictionaries(st.integers(0, 40), st.binary(max_size=60), max_size=20),
    st.lists(st.integers(-2, 45), max_size=30),
    st.integers(0, 5),
    st.integers(0, 30),
    st.integers(0, 2000),
)
def test_native_and_plain_steps_agree(
    bodies: dict[int, bytes], wanted: list[int], at: int, count_max: int, bytes_max: int
) -> None:
    other: Any = native("take_reads")
    records = Records(bodies)
    arguments = (*records.all, HEADER, LEDGER, array("q", wanted), at, count_max, bytes_max)
    assert other.read_replies(*arguments) == plain_reads.read_replies(*arguments)
    for first in wanted:
        batch = (*records.all, first, count_max, bytes_max)
        assert other.batch_bodies(*batch) == plain_reads.batch_bodies(*batch)


@pytest.mark.skipif(native("take_reads") is None, reason="not built: `make native`")
@given(st.lists(st.integers(-2, 3), max_size=12), st.data())
def test_native_and_plain_steps_decode_the_same_reads_from_damaged_frames(ids: list[int], data: st.DataObject) -> None:
    other: Any = native("take_reads")
    frames = bytearray(b"".join(read_frame(7, entry) for entry in ids))
    for _ in range(data.draw(st.integers(0, 3))):
        if frames:
            frames[data.draw(st.integers(0, len(frames) - 1))] = data.draw(st.integers(0, 255))
    position = data.draw(st.integers(0, len(frames) + 2))
    assert other.take_reads(bytes(frames), position) == plain_reads.take_reads(bytes(frames), position)
