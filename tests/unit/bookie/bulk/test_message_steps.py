"""Tests the steps from stored entries to columns: native and plain ones against their specification."""

from array import array
from itertools import accumulate
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire_bookie.bulk import plain_adds, plain_messages
from quire_bookie.model import DigestType, EntryId, LedgerId
from quire_bookie.wire.digest import Digest
from quire_bookie.wire.packed_entries import PackedEntries, stored_bytes
from tests.support.bulk_steps import both

JOINED = both(plain_messages, "join_payloads", "join_batch")
BATCHES = both(plain_adds, "count_batch", "check_batch")
DIGEST = Digest(DigestType.CRC32C, b"")


def stored(count: int, first: int = 7) -> list[bytes]:
    """Return entries of ledger 3 as a bookie stores them."""
    payloads = [b"%d" % number * number for number in range(count)]
    return [
        DIGEST.encode_entry(LedgerId(3), EntryId(first + at), EntryId(-1), 1, (payload,)) + payload
        for at, payload in enumerate(payloads)
    ]


def packed(entries: list[bytes]) -> bytes:
    """Return the entries as the body of a batch response."""
    return b"".join(len(entry).to_bytes(4, "big") + entry for entry in entries)


@JOINED
@given(entries=st.lists(st.binary(min_size=3, max_size=9), max_size=6), skip=st.integers(0, 3))
def test_payloads_are_joined_without_their_heads(steps: ModuleType, entries: list[bytes], skip: int) -> None:
    wanted = [entry[skip:] for entry in entries]
    offsets = array("i", accumulate(map(len, wanted), initial=0)).tobytes()
    for found in (
        steps.join_payloads(entries, skip),
        steps.join_payloads([memoryview(entry) for entry in entries], skip),
        steps.join_batch(memoryview(packed(entries)), skip),
    ):
        assert (bytes(found[0]), bytes(found[1])) == (offsets, b"".join(wanted))


@JOINED
def test_an_entry_shorter_than_its_head_is_refused(steps: ModuleType) -> None:
    with pytest.raises(IndexError, match="shorter than its head"):
        steps.join_payloads([b"1234", b"12"], 3)
    with pytest.raises(IndexError, match="shorter than its head"):
        steps.join_batch(packed([b"12"]), 3)


@BATCHES
def test_a_batch_is_valid_up_to_the_first_invalid_entry(steps: ModuleType) -> None:
    entries = stored(6)
    assert steps.count_batch(packed(entries)) == steps.check_batch(3, 7, packed(entries)) == 6
    assert steps.check_batch(4, 7, packed(entries)) == steps.check_batch(3, 8, packed(entries)) == 0
    assert steps.check_batch(3, 7, packed([*entries[:4], entries[5]])) == 4
    for at in range(len(entries[3])):
        damaged = entries[3][:at] + bytes([entries[3][at] ^ 1]) + entries[3][at + 1 :]
        assert steps.check_batch(3, 7, packed([*entries[:3], damaged, *entries[4:]])) == 3
    assert steps.check_batch(3, 7, packed([*entries[:2], entries[2][:35]])) == 2


@BATCHES
def test_an_entry_that_extends_beyond_the_end_of_its_batch_is_refused(steps: ModuleType) -> None:
    body = packed(stored(3))
    for cut in (1, 5, len(body) - 1):
        with pytest.raises(ValueError, match="runs over the end"):
            steps.count_batch(body[:cut])
        with pytest.raises(ValueError, match="runs over the end"):
            steps.check_batch(3, 7, body[:cut])


def test_packed_entries_are_a_sequence_of_views() -> None:
    entries = stored(5)
    found = PackedEntries(memoryview(packed(entries)))
    assert len(found) == 5 and list(found) == entries and found[1:3] == entries[1:3] and found[-1] == entries[-1]
    assert stored_bytes(found) == stored_bytes(entries) == sum(map(len, entries))
    assert found.are_valid(3, 7) and not found.are_valid(3, 6)
    assert found.payloads(36)[1] == b"".join(entry[36:] for entry in entries)
    assert not PackedEntries(b"") and stored_bytes(PackedEntries(b"")) == 0
