"""Joining chunks: order, repetitions, gaps, and the bound of memory."""

from functools import partial

import pytest

from quire_jobs.decode.chunks import MESSAGES_MAX, Chunk, Chunks, nothing_earlier

ONE, TWO = ("p", "1"), ("p", "2")


def test_messages_whose_chunks_alternate_are_each_joined() -> None:
    chunks = Chunks()
    assert [chunks.add(each, index, 2, b"%d" % index, nothing_earlier) for index in (0, 1) for each in (ONE, TWO)] == [
        None,
        None,
        b"01",
        b"01",
    ]
    assert len(chunks) == chunks.size_bytes == 0


def test_a_repeated_chunk_has_no_effect() -> None:
    chunks = Chunks()
    found = [chunks.add(ONE, index, 3, b"%d" % index, nothing_earlier) for index in (0, 1, 0, 1, 2)]
    assert found == [None, None, None, None, b"012"]


def test_a_message_that_reuses_a_uuid_has_no_chunks_of_the_unfinished_one() -> None:
    chunks = Chunks()
    for index in range(3):
        chunks.add(ONE, index, 4, b"old", nothing_earlier)
    assert [chunks.add(ONE, index, 2, b"%d" % index, nothing_earlier) for index in (0, 1)] == [None, b"01"]
    assert len(chunks) == chunks.size_bytes == 0


@pytest.mark.parametrize("known", [[], [0], [1]])
def test_missing_chunks_are_searched_before_the_range_and_their_absence_is_an_error(known: list[int]) -> None:
    before: list[Chunk] = [(1, b"1"), (1, b"x"), (0, b"0")]
    for found, expected in ((before, b"012"), ([], None)):
        chunks = Chunks()
        for index in known:
            assert chunks.add(ONE, index, 3, b"%d" % index, nothing_earlier) is None
        result = chunks.add(ONE, 2, 3, b"2", partial(iter, found))
        assert result == expected if expected else "does not contain chunk" in str(result)


def test_a_repeated_last_chunk_makes_no_second_message() -> None:
    chunks = Chunks()
    assert [chunks.add(ONE, index, 2, b"%d" % index, nothing_earlier) for index in (0, 1, 1)] == [None, b"01", None]
    assert Chunks().add(ONE, 1, 2, b"1", lambda: [(1, b"1"), (0, b"0")]) is None


def test_the_oldest_message_is_dropped_and_found_again_by_looking_back() -> None:
    chunks = Chunks(bytes_max=10)
    chunks.add(ONE, 0, 2, bytes(6), nothing_earlier)
    chunks.add(TWO, 0, 2, bytes(6), nothing_earlier)
    assert chunks.size_bytes == 6
    assert chunks.add(ONE, 1, 2, b"!", lambda: [(0, bytes(6))]) == bytes(6) + b"!"
    assert chunks.add(TWO, 1, 2, b"!", nothing_earlier) == bytes(6) + b"!"


def test_incomplete_messages_are_bounded_in_number_too() -> None:
    chunks = Chunks()
    for index in range(MESSAGES_MAX + 5):
        chunks.add(("p", str(index)), 0, 2, b"", nothing_earlier)
    assert len(chunks) == MESSAGES_MAX
