"""Tests the client's steps for adds and reads: native and plain ones against the codec and each other."""

from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire_bookie.bulk import plain_adds
from quire_bookie.client.ledger_entry import LedgerEntry
from quire_bookie.model import DigestType, EntryId, LedgerId
from quire_bookie.wire import v2
from quire_bookie.wire.client_codec import v2_adds
from quire_bookie.wire.digest import Digest
from tests.support.bulk_steps import KEY, both

PREFIX = v2.header_word(v2.ADD).to_bytes(4, "big") + KEY
BOTH = both(plain_adds, "encode_adds")
COPIES = both(plain_adds, "encode_copies")
STORED = both(plain_adds, "encode_stored")

_bytes = st.binary(max_size=40)
_part = st.one_of(_bytes, _bytes.map(bytearray), _bytes.map(lambda data: memoryview(data)))
_payload = st.one_of(_part, st.lists(_part, max_size=4).map(tuple))


@BOTH
@given(
    ledger=st.integers(-(2**63), 2**63 - 1),
    first=st.integers(0, 2**62),
    lac=st.integers(-1, 2**62),
    length=st.integers(0, 2**62),
    payloads=st.lists(_payload, max_size=6),
)
def test_the_frames_equal_those_of_the_codec(
    steps: ModuleType, ledger: int, first: int, lac: int, length: int, payloads: list[bytes | tuple[bytes, ...]]
) -> None:
    found = steps.encode_adds(PREFIX, ledger, first, lac, length, 1000, payloads)
    assert found == steps.encode_adds(PREFIX, ledger, first, lac, length, 1000, tuple(payloads))
    digest = Digest(DigestType.CRC32C, b"")
    entries = []
    for entry, payload in enumerate(payloads, first):
        whole = b"".join(payload) if isinstance(payload, tuple) else bytes(payload)
        length += len(whole)
        entries.append((digest.encode_entry(LedgerId(ledger), EntryId(entry), EntryId(lac), length, (whole,)), whole))
    assert found == (b"".join(v2_adds(KEY, entries)), length)


@BOTH
def test_a_payload_above_the_limit_is_refused(steps: ModuleType) -> None:
    frames, length = steps.encode_adds(PREFIX, 1, 0, -1, 0, 10, [b"x" * 10, (b"y" * 4, b"z" * 6)])
    assert (len(frames), length) == (2 * (4 + 24 + 32 + 4 + 10), 20)
    for payload in (b"x" * 11, (b"y" * 4, b"z" * 7)):
        with pytest.raises(OverflowError, match=r"^11$"):
            steps.encode_adds(PREFIX, 1, 0, -1, 0, 10, [b"fits", payload])


@BOTH
def test_an_object_that_is_not_a_buffer_is_refused(steps: ModuleType) -> None:
    for payload in (7, "text", None, (b"part", 7)):
        with pytest.raises(TypeError):
            steps.encode_adds(PREFIX, 1, 0, -1, 0, 100, [payload])


_number = st.integers(-(2**63), 2**63 - 1)
_read = st.builds(
    LedgerEntry, st.just(LedgerId(7)), _number.map(EntryId), _number.map(EntryId), _number, _bytes.map(memoryview)
)


@COPIES
@given(ledger=_number, entries=st.lists(_read, max_size=6))
def test_copies_have_the_ids_lac_and_length_that_were_read(
    steps: ModuleType, ledger: int, entries: list[LedgerEntry]
) -> None:
    digest = Digest(DigestType.CRC32C, b"")
    stored = [
        (digest.encode_entry(LedgerId(ledger), one.entry_id, one.lac, one.length, (one.payload,)), one.payload)
        for one in entries
    ]
    assert steps.encode_copies(PREFIX, ledger, entries) == b"".join(v2_adds(KEY, stored))


def _stored(first: int, payloads: list[bytes]) -> list[bytes]:
    encode = Digest(DigestType.CRC32C, b"").encode_entry
    return [
        encode(LedgerId(7), EntryId(entry), EntryId(entry - 3), 5 * entry, (payload,)) + payload
        for entry, payload in enumerate(payloads, first)
    ]


@COPIES
@given(first=st.integers(0, 2**60), payloads=st.lists(_bytes, min_size=1, max_size=6), data=st.data())
def test_entries_are_valid_up_to_the_first_with_a_flipped_bit(
    steps: ModuleType, first: int, payloads: list[bytes], data: st.DataObject
) -> None:
    entries = _stored(first, payloads)
    heads = [number for entry in range(first, first + len(entries)) for number in (entry - 3, 5 * entry)]
    assert steps.check_entries(7, first, entries) == heads
    assert steps.check_entries(7, first, [memoryview(one) for one in entries]) == heads
    assert steps.check_entries(8, first, entries) == steps.check_entries(7, first + 1, entries) == []
    which = data.draw(st.integers(0, len(entries) - 1))
    bit = data.draw(st.integers(0, 8 * len(entries[which]) - 1))
    changed = bytearray(entries[which])
    changed[bit // 8] ^= 1 << bit % 8
    assert steps.check_entries(7, first, [*entries[:which], changed, *entries[which + 1 :]]) == heads[: 2 * which]
    short = entries[which][: data.draw(st.integers(0, len(entries[which]) - 1))]
    assert steps.check_entries(7, first, [*entries[:which], short]) == heads[: 2 * which]


@COPIES
def test_no_entry_follows_the_highest_id(steps: ModuleType) -> None:
    encode = Digest(DigestType.CRC32C, b"").encode_entry
    last, beyond = (encode(LedgerId(7), EntryId(entry), EntryId(1), 2, ()) for entry in (2**63 - 1, -(2**63)))
    assert steps.check_entries(7, 2**63 - 1, [last, beyond]) == [1, 2]


@STORED
@given(entries=st.lists(_part, max_size=6))
def test_stored_entries_are_added_unchanged(steps: ModuleType, entries: list[bytes]) -> None:
    assert steps.encode_stored(PREFIX, entries) == b"".join(v2_adds(KEY, [(bytes(one),) for one in entries]))


@STORED
@given(entries=st.lists(_bytes, max_size=6), data=st.data())
def test_a_batch_is_split_into_its_entries_or_refused(
    steps: ModuleType, entries: list[bytes], data: st.DataObject
) -> None:
    body = b"".join(len(one).to_bytes(4, "big") + one for one in entries)
    for given_as in (body, bytearray(body), memoryview(b"ahead" + body)[5:]):
        found = steps.split_batch(given_as)
        assert found == entries and all(isinstance(one, memoryview) for one in found)
    ends = [0]
    for one in entries:
        ends.append(ends[-1] + 4 + len(one))
    cut = data.draw(st.integers(0, len(body)))
    if cut in ends:
        assert steps.split_batch(body[:cut]) == entries[: ends.index(cut)]
    else:
        with pytest.raises(ValueError, match="runs over"):
            steps.split_batch(body[:cut])
    for size in (-1, -(2**31), 2**31 - 1):
        with pytest.raises(ValueError, match="runs over"):
            steps.split_batch(body + size.to_bytes(4, "big", signed=True))
