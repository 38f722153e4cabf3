"""The bytes of journal files: golden bytes, round trips, and flipped bits."""

from dataclasses import replace

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from quire_bookie.journal.format import (
    GROUP_HEAD_BYTES,
    HEADER_BLOCK_BYTES,
    FileHeader,
    JournalFormatError,
    JournalPosition,
    Mark,
    decode_header,
    decode_mark,
    encode_group_head,
    encode_header,
    encode_mark,
    group_bytes,
    group_is_valid,
    parse_group_head,
)

UUID = bytes(range(16))
HEADER = FileHeader(UUID, 7, 1 << 26, 1000, 65536, 4096)
MARK = Mark(UUID, JournalPosition(7, 8192, 1001))
U64 = st.integers(0, 2**64 - 1)


def test_the_header_block_matches_version_1() -> None:
    rest = (
        "000102030405060708090a0b0c0d0e0f"  # uuid
        "0700000000000000"  # generation
        "0000000400000000"  # file bytes
        "e803000000000000"  # first sequence
        "0000010000000000"  # previous end
        "0010000000000000"  # alignment, zero
    )
    crc = crc32c(bytes.fromhex(rest)).to_bytes(4, "little").hex()
    assert crc == "39bd95bd"
    golden = bytes.fromhex("51756972654a6e6c" + "01000000" + crc + rest)
    assert encode_header(HEADER) == golden.ljust(HEADER_BLOCK_BYTES, b"\0")
    assert decode_header(encode_header(HEADER)) == HEADER


def test_the_mark_matches_versions_1_and_2() -> None:
    rest = "000102030405060708090a0b0c0d0e0f07000000000000000020000000000000e903000000000000"
    crc = crc32c(bytes.fromhex(rest)).to_bytes(4, "little").hex()
    for version, mark in ((1, replace(MARK, witnessed=False)), (2, MARK)):
        assert encode_mark(mark) == bytes.fromhex(f"51756972654d726b0{version}000000" + crc + rest)
        assert decode_mark(encode_mark(mark)) == mark


def test_a_group_head_matches_version_1() -> None:
    rest = bytes.fromhex("000102030405060708090a0b0c0d0e0f0700000000000000e8030000000000000400000001000000")
    crc = crc32c(rest + b"body").to_bytes(4, "little")
    assert encode_group_head(UUID, 7, 1000, b"body", 1) == b"QJg1" + crc + rest


def test_the_used_part_of_a_header_fits_one_sector() -> None:
    assert not any(encode_header(HEADER)[512:])


@given(U64, U64, U64, U64, st.integers(0, 2**32 - 1), st.binary(min_size=16, max_size=16))
def test_every_header_round_trips(a: int, b: int, c: int, d: int, alignment: int, uuid: bytes) -> None:
    header = FileHeader(uuid, a, b, c, d, alignment)
    assert decode_header(encode_header(header)) == header


@given(st.integers(0, 16 + 56 - 1), st.integers(0, 7))
def test_a_flipped_bit_makes_a_header_invalid(at: int, bit: int) -> None:
    block = bytearray(encode_header(HEADER))
    block[at] ^= 1 << bit
    with pytest.raises(JournalFormatError):
        decode_header(block)


@given(st.integers(0, 55), st.integers(0, 7))
def test_a_flipped_bit_makes_a_mark_invalid(at: int, bit: int) -> None:
    content = bytearray(encode_mark(MARK))
    content[at] ^= 1 << bit
    with pytest.raises(JournalFormatError):
        decode_mark(content)


@given(st.integers(0, 55))
def test_a_mark_of_another_length_is_refused(size: int) -> None:
    with pytest.raises(JournalFormatError):
        decode_mark(encode_mark(MARK)[:size])


@given(U64, U64, st.binary(max_size=300), st.integers(0, 2**32 - 1))
def test_every_group_round_trips(generation: int, sequence: int, body: bytes, records: int) -> None:
    head = parse_group_head(b"xx" + encode_group_head(UUID, generation, sequence, body, records), 2)
    assert head is not None
    assert (head.uuid, head.generation, head.sequence) == (UUID, generation, sequence)
    assert (head.body_bytes, head.records) == (len(body), records)
    assert group_is_valid(head, body)


@given(st.binary(min_size=1, max_size=100), st.data())
def test_a_flipped_bit_anywhere_makes_a_group_invalid(body: bytes, data: st.DataObject) -> None:
    group = bytearray(encode_group_head(UUID, 3, 4, body, 1) + body)
    group[data.draw(st.integers(0, len(group) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    head = parse_group_head(group)
    assert head is None or not group_is_valid(head, bytes(group[GROUP_HEAD_BYTES : GROUP_HEAD_BYTES + head.body_bytes]))


@given(st.integers(0, 10**7), st.sampled_from([512, 4096]))
def test_a_group_fills_whole_blocks_and_wastes_less_than_one(body: int, alignment: int) -> None:
    size = group_bytes(body, alignment)
    assert size % alignment == 0
    assert 0 <= size - GROUP_HEAD_BYTES - body < alignment


@pytest.mark.parametrize("junk", [b"", b"QJg1", bytes(GROUP_HEAD_BYTES), b"QJg1".ljust(GROUP_HEAD_BYTES - 1)])
def test_bytes_that_are_not_a_group_head_parse_to_none(junk: bytes) -> None:
    assert parse_group_head(junk) is None


def test_the_error_names_a_later_version() -> None:
    block = bytearray(encode_header(HEADER))
    block[8] = 2
    with pytest.raises(JournalFormatError, match="version 2; this program knows versions up to 1"):
        decode_header(block)
