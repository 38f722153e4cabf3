"""Tests entry lists of bookies: the stock form is written, both forms are read, other bytes are refused."""

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire_bookie.errors import PeerProtocolError
from quire_bookie.model import EntryId
from quire_bookie.wire.availability import EntryGroup, EntryRange, decode, encode
from quire_bookie.wire.client_codec import ClientCodec
from quire_bookie.wire.messages import ListEntriesResponse

GOLDEN = Path(__file__).resolve().parents[3] / "golden" / "bookkeeper-wire" / "v3-list-of-entries.txt"
PLENTY_BYTES = 1 << 20
SETS = st.sets(st.integers(0, 400), max_size=200)


def ranges_of(ids: set[int], *, split_every: int = 0) -> list[EntryRange]:
    """Return ascending ranges of the ids; `split_every`: split at blocks, as an index returns them."""
    found: list[EntryRange] = []
    for entry in sorted(ids):
        joins = found and found[-1][1] == entry - 1 and not (split_every and entry % split_every == 0)
        if joins:
            found[-1] = (found[-1][0], EntryId(entry))
        else:
            found.append((EntryId(entry), EntryId(entry)))
    return found


def encoded(ids: set[int]) -> bytes:
    """Return the list of some ids in the stock form."""
    data = encode(ranges_of(ids), PLENTY_BYTES)
    assert data is not None
    return data


def raw(*groups: tuple[int, int, int, int], version: int = 0) -> bytes:
    """Return a list as a peer may send it."""
    head = struct.pack(">ii", version, len(groups)).ljust(64, b"\0")
    return head + b"".join(struct.pack(">qqii", *group) for group in groups)


def test_every_list_of_the_stock_bookie_decodes_and_encodes_to_the_same_bytes() -> None:
    frames = [bytes.fromhex(line[2:]) for line in GOLDEN.read_text().splitlines() if line.startswith("< ")]
    lists = [
        answer.availability
        for answer in ClientCodec(3).feed(b"".join(frames))
        if isinstance(answer, ListEntriesResponse) and answer.availability is not None
    ]
    assert len(lists) >= 5
    for data in lists:
        assert encode(list(decode(data).ranges()), PLENTY_BYTES) == data


def test_the_example_of_the_format_has_two_groups() -> None:
    assert encoded({0, 1, 2, 5, 6, 7}) == raw((0, 0, 3, 0), (5, 5, 3, 0))


def test_the_list_of_a_ledger_without_entries_is_only_a_header() -> None:
    assert encoded(set()) == bytes(64)
    assert decode(bytes(64)).entries == 0


@given(SETS, st.sampled_from([0, 8, 64]))
def test_encoded_ids_decode_to_the_same_ids(ids: set[int], split_every: int) -> None:
    data = encode(ranges_of(ids, split_every=split_every), PLENTY_BYTES)
    assert data == encoded(ids)
    found = decode(data)
    assert list(found.ranges()) == ranges_of(ids)
    assert found.entries == len(ids)
    assert {entry for entry in range(410) if EntryId(entry) in found} == ids


@given(SETS)
def test_the_short_form_contains_the_same_ids(ids: set[int]) -> None:
    stock = encoded(ids)
    short = encode(ranges_of(ids), len(stock) - 1)
    if short is None:
        return
    assert len(short) < len(stock)
    found = decode(short)
    assert {entry for run in found.ranges() for entry in range(run[0], run[1] + 1)} == ids
    assert {entry for entry in range(410) if EntryId(entry) in found} == ids


def test_the_list_of_a_striped_ledger_that_would_not_fit_has_one_group() -> None:
    ranges = [(EntryId(start), EntryId(start + 2)) for start in range(0, 5_000_000, 5)]
    data = encode(ranges, PLENTY_BYTES)
    assert data == raw((0, 4_999_995, 3, 5))


def test_a_list_that_fits_in_no_form_is_not_truncated() -> None:
    assert encode(ranges_of({0, 1, 5, 8, 9, 10}), 64 + 24) is None


def test_a_run_longer_than_its_size_field_is_split() -> None:
    largest = (1 << 31) - 1
    data = encode([(EntryId(0), EntryId(largest))], PLENTY_BYTES)
    assert data == raw((0, 0, largest, 0), (largest, largest, 1, 0))


def test_groups_of_several_runs_are_read() -> None:
    (group,) = decode(raw((10, 30, 2, 5))).groups
    assert group == EntryGroup(EntryId(10), EntryId(30), 2, 5)
    assert list(group.ranges())[-1] == (30, 31)
    assert group.entries == 10
    assert [entry for entry in range(40) if EntryId(entry) in group] == [10, 11, 15, 16, 20, 21, 25, 26, 30, 31]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        bytes(63),
        raw(version=1),
        raw((0, 0, 3, 0))[:-1],
        raw((0, 0, 3, 0)) + b"\0",
        struct.pack(">ii", 0, -1).ljust(64, b"\0"),
        raw((0, 0, 0, 0)),
        raw((0, 0, -1, 0)),
        raw((0, 5, 3, 0)),
        raw((0, 5, 3, -5)),
        raw((0, 9, 3, 5)),
        raw((0, 5, 6, 5)),
        raw((5, 0, 1, 5)),
        raw((-1, -1, 1, 0)),
        raw((5, 5, 3, 0), (0, 0, 3, 0)),
        raw((0, 0, 3, 0), (2, 2, 3, 0)),
    ],
)
def test_an_invalid_list_is_refused(data: bytes) -> None:
    with pytest.raises(PeerProtocolError):
        decode(data)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_a_list_or_refused(data: bytes) -> None:
    try:
        found = decode(data)
    except PeerProtocolError:
        return
    assert found.entries >= len(found.groups)
