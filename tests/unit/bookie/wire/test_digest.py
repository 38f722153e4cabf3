"""Tests digests and keys: the vectors of the protocol, and bytes that must not be accepted as an entry."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire_bookie.errors import DigestMismatchError
from quire_bookie.model import DigestType, EntryId, LedgerId
from quire_bookie.wire.digest import Digest, master_key

HEADER = "0000000000000001000000000000000500000000000000040000000000000024"
VECTORS = {
    DigestType.CRC32C: ("ecb17abc", "71d4dbbd"),
    DigestType.CRC32: ("0000000097fb280a", "00000000fcad9b0f"),
    DigestType.HMAC: ("8cc56e3597c44dba8c4b9a65075cf5138b3a17a3", "f76e7d2efcd67cd9c3b35df51e6d050faaa18230"),
    DigestType.DUMMY: ("", ""),
}
ids = st.integers(0, 2**63 - 1)
digests = st.builds(Digest, st.sampled_from(list(DigestType)), st.binary(max_size=20))


def test_the_master_key_matches_the_protocol_even_for_an_empty_password() -> None:
    assert master_key(b"secret").hex() == "e793cbc379107648537183605cd361d3bb789a39"
    assert master_key(b"").hex() == "850bf1071c5e3d8c24235676f8816ae0cbe2f14f"


@pytest.mark.parametrize("kind", list(DigestType))
def test_heads_and_lac_packets_match_the_protocol(kind: DigestType) -> None:
    entry, lac = VECTORS[kind]
    digest = Digest(kind, b"secret")
    head = digest.encode_entry(LedgerId(1), EntryId(5), EntryId(4), 36, (b"hel", memoryview(b"lo!")))
    assert head.hex() == HEADER + entry
    assert len(head) == 32 + digest.size
    assert digest.encode_lac(LedgerId(1), EntryId(4)).hex() == HEADER[:16] + HEADER[32:48] + lac


@given(digests, ids, ids, st.integers(-1, 2**63 - 1), ids, st.lists(st.binary(max_size=50), max_size=3))
def test_an_encoded_entry_decodes_to_the_same_values(
    digest: Digest, ledger: int, entry: int, lac: int, length: int, parts: list[bytes]
) -> None:
    head = digest.encode_entry(LedgerId(ledger), EntryId(entry), EntryId(lac), length, parts)
    decoded = digest.decode_entry(head + b"".join(parts), LedgerId(ledger), EntryId(entry))
    assert (decoded.ledger, decoded.entry, decoded.lac, decoded.length) == (ledger, entry, lac, length)
    assert decoded.payload == b"".join(parts)
    assert digest.decode_lac(digest.encode_lac(LedgerId(ledger), EntryId(lac)), LedgerId(ledger)) == lac


@given(st.sampled_from([DigestType.CRC32, DigestType.CRC32C, DigestType.HMAC]), st.binary(max_size=60), st.data())
def test_a_flipped_bit_at_any_position_is_detected(kind: DigestType, payload: bytes, data: st.DataObject) -> None:
    digest = Digest(kind, b"pw")
    entry = bytearray(digest.encode_entry(LedgerId(3), EntryId(4), EntryId(3), 99, (payload,)) + payload)
    at = data.draw(st.integers(0, len(entry) - 1))
    entry[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(DigestMismatchError):
        digest.decode_entry(entry, LedgerId(3), None)


def test_another_ledger_another_entry_and_too_few_bytes_are_mismatches() -> None:
    digest = Digest(DigestType.DUMMY, b"")
    entry = digest.encode_entry(LedgerId(3), EntryId(4), EntryId(3), 0, ())
    assert digest.decode_entry(entry, LedgerId(3), None).entry == 4
    with pytest.raises(DigestMismatchError, match="expected entry 4 of ledger 2"):
        digest.decode_entry(entry, LedgerId(2), EntryId(4))
    with pytest.raises(DigestMismatchError, match="expected entry 5"):
        digest.decode_entry(entry, LedgerId(3), EntryId(5))
    with pytest.raises(DigestMismatchError, match="31 bytes"):
        digest.decode_entry(entry[:-1], LedgerId(3), EntryId(4))


def test_a_lac_packet_of_another_ledger_size_or_digest_is_a_mismatch() -> None:
    digest = Digest(DigestType.CRC32C, b"")
    packet = digest.encode_lac(LedgerId(3), EntryId(4))
    for wrong in (packet[:-1], packet + b"x", packet[:-1] + bytes([packet[-1] ^ 1])):
        with pytest.raises(DigestMismatchError):
            digest.decode_lac(wrong, LedgerId(3))
    with pytest.raises(DigestMismatchError):
        digest.decode_lac(packet, LedgerId(2))
