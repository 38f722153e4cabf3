"""Bytes of blocks and of the index, written by hand; names of objects; errors of damaged ones."""

import struct

import pytest

from quire_bookie.metadata.ledger_metadata import decode_kept_metadata
from quire_broker.errors import OffloadError, SegmentDamagedError
from quire_broker.offload.format import (
    Block,
    SegmentEncoder,
    SegmentIndex,
    check_block,
    data_key,
    decode_index,
    encode_index,
    index_key,
    new_uuid,
    parse_key,
    uuid_halves,
    uuid_text,
)
from tests.unit.broker.offload.ledgers import UUID, closed_metadata

STOCK_METADATA = bytes.fromhex(
    "08021003182820082803321d0a0762313a333138310a0762323a333138310a0762333a333138311000321d0a0762313a3331"
    "38310a0762343a333138310a0762333a333138311002380348025080d095ffbc315a1b0a09636f6d706f6e656e74120e6d61"
    "6e616765642d6c6564676572"
)
"""`closed_metadata(9, 40)` as stock 4.0.7 classes write it into an index."""


def header(size: int, first: int) -> bytes:
    return (bytes.fromhex("fbdbabcb") + struct.pack(">qqq", 128, size, first)).ljust(128, b"\0")


def entry(entry_id: int, payload: bytes) -> bytes:
    return struct.pack(">iq", len(payload), entry_id) + payload


def test_a_ledger_that_fits_one_block_has_no_padding() -> None:
    encoder = SegmentEncoder(2, 6, 1000)
    data = encoder.encode(0, [b"abc", b""]) + encoder.encode(2, [b"def"])
    encoder.finish()
    assert data == header(128 + 36 + 6, 0) + entry(0, b"abc") + entry(1, b"") + entry(2, b"def")
    assert encoder.blocks == [Block(0, 1, 0)]
    assert encoder.data_bytes == 170


def test_a_block_that_the_next_entry_does_not_fit_is_padded() -> None:
    encoder = SegmentEncoder(3, 40, 168)  # 40 bytes of entries per block
    data = encoder.encode(0, [b"a" * 10, b"b" * 10, b"c" * 10, b"d" * 10])
    encoder.finish()
    blocks = [
        header(168, 0) + entry(0, b"a" * 10) + bytes.fromhex("fedcdeadfedcdeadfedcdeadfedcdeadfedc"),
        header(168, 1) + entry(1, b"b" * 10) + bytes.fromhex("fedcdeadfedcdeadfedcdeadfedcdeadfedc"),
        header(168, 2) + entry(2, b"c" * 10) + bytes.fromhex("fedcdeadfedcdeadfedcdeadfedcdeadfedc"),
        header(150, 3) + entry(3, b"d" * 10),
    ]
    assert data == b"".join(blocks)
    assert encoder.blocks == [Block(0, 1, 0), Block(1, 2, 168), Block(2, 3, 336), Block(3, 4, 504)]


def test_a_block_that_is_exactly_full_has_no_padding() -> None:
    encoder = SegmentEncoder(3, 40, 128 + 44)
    data = encoder.encode(0, [bytes(10)] * 4)
    assert len(data) == 2 * 172 and b"\xfe\xdc" not in data


@pytest.mark.parametrize(
    ("last", "length", "payloads", "says"),
    [
        (1, 10, [b"12345", b"123456"], "there are more at entry 1"),
        (0, 10, [b"1234567890", b""], "there are more at entry 1"),
        (1, 11, [b"12345", b"12345"], "there are 2 of 10"),
        (2, 10, [b"12345", b"12345"], "there are 2 of 10"),
        (0, 200, [bytes(200)], "set a larger block"),
    ],
)
def test_entries_that_do_not_match_the_ledgers_metadata_are_refused(
    last: int, length: int, payloads: list[bytes], says: str
) -> None:
    encoder = SegmentEncoder(last, length, 300)
    with pytest.raises(OffloadError, match=says):
        encoder.encode(0, payloads)
        encoder.finish()


def test_an_entry_out_of_order_is_refused() -> None:
    with pytest.raises(OffloadError, match="got entry 1 instead of entry 0"):
        SegmentEncoder(1, 1, 300).encode(1, [b"x"])


def test_an_index_has_a_head_the_ledger_metadata_and_a_row_per_block() -> None:
    metadata = closed_metadata(9, 40)
    index = SegmentIndex(654, metadata, (Block(0, 1, 0), Block(5, 2, 400)))
    value = encode_index(index)
    kept = value[32:-40]
    assert value[:32] == bytes.fromhex("de47de47") + struct.pack(">iqqii", len(value), 654, 128, 2, len(kept))
    assert value[-40:] == struct.pack(">qiq", 0, 1, 0) + struct.pack(">qiq", 5, 2, 400)
    read = decode_index(value)
    assert (read.data_bytes, read.blocks, read.end_of(0), read.end_of(1)) == (654, index.blocks, 400, 654)
    assert read.metadata.segments == metadata.segments
    assert (read.metadata.last_entry, read.metadata.length, read.metadata.ctime_ms) == (8, 40, 1_700_000_000_000)
    assert read.metadata.custom == metadata.custom
    assert read.metadata.digest_type is metadata.digest_type


def test_the_ledger_metadata_is_written_as_pulsar_writes_it() -> None:
    value = encode_index(SegmentIndex(654, closed_metadata(9, 40), (Block(0, 1, 0),)))
    assert value[32:-20] == STOCK_METADATA


def test_the_stored_metadata_has_no_password() -> None:
    value = encode_index(SegmentIndex(654, closed_metadata(9, 40), (Block(0, 1, 0),)))
    assert not decode_kept_metadata(value[32:-20]).has_password


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda value: value[:20], "an index of 20 bytes"),
        (lambda value: b"\0" + value[1:], "begins with 0047de47"),
        (lambda value: value + b"x", "says"),
        (lambda value: value[:32] + b"\xff" + value[33:], "metadata"),
        (lambda value: value[:-20] + value[-40:-20], "do not ascend"),
        (lambda value: value[:8] + struct.pack(">q", 100) + value[16:], "do not ascend"),
        (lambda value: value[:-32] + struct.pack(">q", 7) + value[-24:], "does not begin with entry 0|do not ascend"),
    ],
)
def test_a_damaged_index_is_reported_and_never_read(change: object, says: str) -> None:
    value = encode_index(SegmentIndex(654, closed_metadata(9, 40), (Block(0, 1, 0), Block(5, 2, 400))))
    assert callable(change)
    with pytest.raises(SegmentDamagedError, match=says):
        decode_index(change(value))


def test_a_block_is_checked_against_the_index() -> None:
    check_block(header(500, 9), 9, 500)
    for head in (header(501, 9), header(500, 8), bytes(128)):
        with pytest.raises(SegmentDamagedError, match="no block of 500 bytes from entry 9"):
            check_block(head, 9, 500)


def test_uuids_have_the_same_two_halves_as_in_pulsar() -> None:
    assert uuid_halves("ffffffff-ffff-4fff-8000-000000000001") == (-45057, -9223372036854775807)
    assert uuid_text(*uuid_halves(UUID)) == UUID
    assert uuid_text(-45057, -9223372036854775807) == "ffffffff-ffff-4fff-8000-000000000001"
    assert new_uuid(bytes(16)) == "00000000-0000-4000-8000-000000000000"
    with pytest.raises(ValueError, match="not a uuid"):
        uuid_halves("0a1b2c3d4e5f47898abcdef012345678")


def test_names_of_objects_can_be_parsed_again() -> None:
    assert data_key(UUID, 12) == f"{UUID}-ledger-12"
    assert index_key(UUID, 12) == f"{UUID}-ledger-12-index"
    assert parse_key(f"{UUID}-ledger-12") == (UUID, 12, False)
    assert parse_key(f"{UUID}-ledger-12-index") == (UUID, 12, True)
    for foreign in (UUID, f"{UUID}-index", f"{UUID}-ledger-", f"{UUID}-ledger-x", f"x{UUID}-ledger-1", "manifest.json"):
        assert parse_key(foreign) is None
