"""The bytes of an entry log, as documented in the module docstring."""

import struct

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from quire_bookie.errors import DamagedError
from quire_bookie.model import NO_ENTRY, Buffer, EntryId, LedgerId
from quire_bookie.storage.formats import log_format
from quire_bookie.storage.formats.log_catalog import (
    LogState,
    Proof,
    StoreState,
    decode_log_state,
    decode_proof,
    decode_store_state,
    encode_log_state,
    encode_proof,
    encode_store_state,
    runs_of,
)
from quire_bookie.storage.formats.log_format import LedgerSpan, LogHeader

HEADER = LogHeader(7, b"L" * 16, b"S" * 16)
PATH = "7.qlog"


def record(ledger: int, entry: int, body: bytes, salt: int = 5) -> bytes:
    out: list[Buffer] = []
    log_format.encode_records(salt, LedgerId(ledger), (entry,), (body,), out)
    return b"".join(out)


def test_the_header_has_the_documented_format() -> None:
    data = log_format.encode_header(HEADER)
    fixed = b"QUIRELOG" + struct.pack("<IIQ", 1, 4096, 7) + b"L" * 16 + b"S" * 16
    assert data == (fixed + struct.pack("<I", crc32c(fixed))).ljust(4096, b"\0")
    assert log_format.decode_header(data, PATH) == HEADER
    assert log_format.salt_of(HEADER) == crc32c(fixed)


@pytest.mark.parametrize("at", [0, 8, 12, 16, 24, 40, 55, 56])
def test_a_changed_header_is_damage(at: int) -> None:
    data = bytearray(log_format.encode_header(HEADER))
    data[at] ^= 4
    with pytest.raises(DamagedError):
        log_format.decode_header(data, PATH)
    with pytest.raises(DamagedError):
        log_format.decode_header(data[:at], PATH)


def test_a_record_has_the_documented_format() -> None:
    rest = struct.pack("<Iqq", 3, 9, 2) + b"abc"
    assert record(9, 2, b"abc") == struct.pack("<I", crc32c(rest, 5)) + rest
    assert log_format.record_size(record(9, 2, b"abc")) == 27


@settings(deadline=None)
@given(st.binary(max_size=200), st.integers(0, 2**63 - 1), st.integers(-2, 2**63 - 1), st.data())
def test_a_record_round_trips_and_any_flipped_bit_is_damage(
    body: bytes, ledger: int, entry: int, data: st.DataObject
) -> None:
    good = record(ledger, entry, body)
    assert log_format.check_record(5, good, LedgerId(ledger), EntryId(entry), PATH, 0) == body
    bad = bytearray(good)
    bad[data.draw(st.integers(0, len(bad) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    cut = good[: data.draw(st.integers(0, len(good) - 1))]
    for wrong in (bad, cut, good + b"\0"):
        with pytest.raises(DamagedError, match="offset 4096"):
            log_format.check_record(5, wrong, LedgerId(ledger), EntryId(entry), PATH, 4096)


def test_a_record_of_another_log_ledger_or_entry_is_damage() -> None:
    good = record(9, 2, b"abc")
    for salt, ledger, entry in ((6, 9, 2), (5, 8, 2), (5, 9, 3)):
        with pytest.raises(DamagedError):
            log_format.check_record(salt, good, LedgerId(ledger), EntryId(entry), PATH, 0)


spans = st.dictionaries(
    st.integers(0, 2**63 - 1).map(LedgerId),
    st.builds(
        LedgerSpan,
        st.integers(0, 1000).map(EntryId),
        st.integers(1000, 2**63 - 1).map(EntryId),
        st.integers(0, 2**32 - 1),
        st.integers(0, 2**63 - 1),
    ),
    max_size=20,
)


@settings(deadline=None)
@given(spans, st.integers(0, 2**63 - 1))
def test_a_map_round_trips(ledgers: log_format.LedgerMap, previous: int) -> None:
    body = log_format.encode_map(log_format.map_lines(ledgers), previous)
    assert log_format.decode_map(body, PATH, 0) == (ledgers, previous)
    with pytest.raises(DamagedError):
        log_format.decode_map(body[:-1], PATH, 0)


def test_maps_add_up_and_state_records_count_no_entry() -> None:
    one: log_format.LedgerMap = {}
    log_format.note_entries(one, LedgerId(1), NO_ENTRY, NO_ENTRY, 0, 50)
    log_format.note_entries(one, LedgerId(1), EntryId(10), EntryId(20), 11, 500)
    log_format.merge_map(one, {LedgerId(1): LedgerSpan(EntryId(3), EntryId(3), 1, 30)})
    log_format.merge_map(one, {LedgerId(1): LedgerSpan(NO_ENTRY, NO_ENTRY, 0, 20)})
    assert one == {LedgerId(1): LedgerSpan(EntryId(3), EntryId(20), 12, 600)}


def test_a_seal_round_trips_only_for_its_log_and_size() -> None:
    seal = log_format.encode_seal(7, 5000, 8192)
    assert len(seal) == log_format.SEAL_BYTES
    assert log_format.decode_seal(seal, 7, 8192, PATH) == 5000
    for log, size, data in ((8, 8192, seal), (7, 8193, seal), (7, 8192, seal[:-1]), (7, 8192, b"\0" + seal[1:])):
        with pytest.raises(DamagedError):
            log_format.decode_seal(data, log, size, PATH)


def test_states_of_logs_and_store_round_trip_and_any_flipped_bit_is_damage() -> None:
    log = LogState(7, b"u" * 16, 1 << 30, 4096, True)
    store = StoreState(b"s" * 16, 12, 8)
    assert decode_log_state(7, encode_log_state(log)) == log
    assert decode_store_state(encode_store_state(store)) == store
    proof = Proof(b"s" * 16, 12, LedgerId(9), LedgerId(1 << 40), ((1, 4), (6, 7)), ((7, 4096),))
    assert decode_proof(encode_proof(proof), "proof") == proof
    assert proof.logs() == {1, 2, 3, 4, 6, 7}
    with pytest.raises(DamagedError):
        decode_log_state(8, encode_log_state(log))
    for at in range(len(encode_proof(proof))):
        for value, decode in (
            (encode_log_state(log), lambda data: decode_log_state(7, data)),
            (encode_store_state(store), decode_store_state),
            (encode_proof(proof), lambda data: decode_proof(data, "proof")),
        ):
            bad = bytearray(value)
            bad[at % len(bad)] ^= 8
            with pytest.raises(DamagedError):
                decode(bytes(bad))


def test_a_proof_of_version_1_is_accepted_and_names_no_logs() -> None:
    fixed = struct.pack("<8sI16sQ", b"QUIREIDX", 1, b"s" * 16, 12)
    proof = decode_proof(fixed + struct.pack("<I", crc32c(fixed)), "proof")
    assert proof == Proof(b"s" * 16, 12) and proof.runs is None


def test_ids_are_joined_into_runs() -> None:
    assert runs_of([]) == ()
    assert runs_of({9, 1, 3, 2}) == ((1, 3), (9, 9))
