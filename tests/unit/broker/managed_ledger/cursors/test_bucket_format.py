"""The stored form of buckets of delayed entries."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire_bookie.errors import MetadataFormatError
from quire_broker.managed_ledger.cursors.ack_ranges import CHUNK_ENTRIES, AckRanges
from quire_broker.managed_ledger.cursors.bucket_format import (
    ENTRY_SHIFT,
    BucketHead,
    Page,
    decode_head,
    decode_page,
    decode_positions,
    encode_head,
    encode_page,
    encode_positions,
)

ROWS = st.lists(st.tuples(st.integers(0, 2**62), st.integers(0, 2**58), st.integers(-1, 65_535)), max_size=50)
HEAD = BucketHead("public/default/persistent/t", "s\u00fcb", "HashRing", [7, 9], (7, 0), [(100, 2), (300, 1)], 1)


def page_of(rows: list[tuple[int, int, int]], *, with_slots: bool) -> Page:
    slots = array("i", [slot for _, _, slot in rows]) if with_slots else None
    return Page(array("q", [at for at, _, _ in rows]), array("q", [key for _, key, _ in rows]), slots)


@given(ROWS, st.booleans())
def test_a_page_is_read_as_it_was_written(rows: list[tuple[int, int, int]], with_slots: bool) -> None:
    page = page_of(rows, with_slots=with_slots)
    found = decode_page(encode_page(page))
    assert (found.times_ms, found.keys, found.slots) == (page.times_ms, page.keys, page.slots)


def test_the_form_of_a_page_and_of_positions_stays() -> None:
    """A changed form needs a new version: buckets of earlier brokers must not be misread."""
    page = page_of([(0x1122, 1 << ENTRY_SHIFT | 5, 3)], with_slots=True)
    assert encode_page(page).hex() == GOLDEN_PAGE
    positions = AckRanges()
    positions.add(9, 4097, 4098)
    ((ledger, number, bits),) = decode_positions(bytes.fromhex(GOLDEN_POSITIONS), [7, 9])
    assert (ledger, number, bits) == (9, 1, 0b110)
    assert list(decode_positions(next(encode_positions(positions, [7, 9])), [7, 9])) == [(9, 1, 0b110)]


GOLDEN_PAGE = "514450470101a8505101000000012211000000000000050000000001000003000000"
GOLDEN_POSITIONS = "5144504f0149c7518078016364606060046210608350a3e4080d010012200009"


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3 * CHUNK_ENTRIES)), max_size=30))
def test_positions_are_read_as_they_were_written(added: list[tuple[int, int]]) -> None:
    positions = AckRanges()
    for ledger, entry in added:
        positions.add(ledger, entry, entry)
    found = AckRanges()
    for data in encode_positions(positions, [0, 1, 2]):
        for ledger, number, bits in decode_positions(data, [0, 1, 2]):
            found.add_chunk(ledger, number, bits)
    assert found == positions


def test_many_chunks_are_several_entries_of_bounded_size() -> None:
    positions = AckRanges()
    for chunk in range(600):
        positions.add(1, chunk * CHUNK_ENTRIES + chunk, chunk * CHUNK_ENTRIES + chunk)
    stored = list(encode_positions(positions, [1]))
    assert len(stored) == 3
    assert [number for data in stored for _, number, _ in decode_positions(data, [1])] == list(range(600))


def test_a_head_is_read_as_it_was_written() -> None:
    assert decode_head(encode_head(HEAD)) == HEAD


@pytest.mark.parametrize("at", range(0, 60, 7))
def test_a_changed_byte_is_noticed(at: int) -> None:
    positions = AckRanges()
    positions.add(1, 5, 5)
    for data, decode in [
        (encode_page(page_of([(1, 2, 3)] * 4, with_slots=True)), decode_page),
        (next(encode_positions(positions, [1])), lambda changed: list(decode_positions(changed, [1]))),
        (encode_head(HEAD), decode_head),
    ]:
        where = at % len(data)
        changed = data[:where] + bytes([data[where] ^ 1]) + data[where + 1 :]
        with pytest.raises(MetadataFormatError, match="bucket of delayed entries"):
            decode(changed)


@pytest.mark.parametrize("size", [0, 5, 8, 29])
def test_a_cut_entry_is_noticed(size: int) -> None:
    for data, decode in [
        (encode_page(page_of([(1, 2, 3)], with_slots=False)), decode_page),
        (encode_head(HEAD), decode_head),
    ]:
        with pytest.raises(MetadataFormatError):
            decode(data[:size])


def test_positions_of_a_ledger_that_the_head_does_not_have_are_refused() -> None:
    positions = AckRanges()
    positions.add(9, 1, 1)
    with pytest.raises(MetadataFormatError, match="ledger number 1"):
        list(decode_positions(next(encode_positions(positions, [7, 9])), [7]))
