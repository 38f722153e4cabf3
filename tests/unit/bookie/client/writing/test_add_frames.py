"""Tests runs of ADD frames against those of the codec, entry by entry, and against the vector of the protocol."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire_bookie.client.writing.add_frames import AddFrames
from quire_bookie.errors import LedgerError
from quire_bookie.model import DigestType, EntryId, LedgerId
from quire_bookie.wire.client_codec import v2_adds
from quire_bookie.wire.digest import Digest, master_key

_payload = st.one_of(
    st.binary(max_size=80),
    st.binary(max_size=80).map(lambda data: memoryview(data)),
    st.lists(st.binary(max_size=30), max_size=4).map(tuple),
)


@pytest.mark.parametrize("digest_type", list(DigestType))
@given(
    first=st.integers(0, 2**40),
    length=st.integers(0, 2**40),
    payloads=st.lists(_payload, min_size=1, max_size=6),
    password=st.binary(max_size=8),
)
def test_a_run_equals_its_entries_encoded_one_by_one(
    digest_type: DigestType, first: int, length: int, payloads: list[bytes | tuple[bytes, ...]], password: bytes
) -> None:
    ledger, digest, key = LedgerId(7), Digest(digest_type, password), master_key(password)
    frames, end = AddFrames(ledger, digest, key, 200).encode(EntryId(first), EntryId(first - 1), length, payloads)
    entries = []
    for entry, payload in enumerate(payloads, first):
        whole = b"".join(payload) if isinstance(payload, tuple) else bytes(payload)
        length += len(whole)
        head = digest.encode_entry(ledger, EntryId(entry), EntryId(first - 1), length, (whole,))
        entries.append((head, whole))
    assert frames == b"".join(v2_adds(key, entries))
    assert end == length


def test_the_frame_equals_the_test_vector_of_the_protocol() -> None:
    adds = AddFrames(LedgerId(1), Digest(DigestType.CRC32C, b"secret"), master_key(b"secret"), 6)
    frames, length = adds.encode(EntryId(5), EntryId(4), 30, [b"hello!"])
    assert length == 36
    assert frames.hex() == (
        "0000004202010000e793cbc379107648537183605cd361d3bb789a39"
        "0000000000000001000000000000000500000000000000040000000000000024ecb17abc68656c6c6f21"
    )


@pytest.mark.parametrize("digest_type", list(DigestType))
def test_a_payload_above_the_limit_is_refused_with_its_size(digest_type: DigestType) -> None:
    adds = AddFrames(LedgerId(1), Digest(digest_type, b""), master_key(b""), 5)
    with pytest.raises(LedgerError, match="an entry of 6 bytes; the limit is 5: write smaller entries"):
        adds.encode(EntryId(0), EntryId(-1), 0, [b"fits", (b"not", b"me!")])
