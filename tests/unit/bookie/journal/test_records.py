"""Records inside a group: golden bytes, round trips, refusal of invalid bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire_bookie.journal.records import (
    PART_BYTES_MIN,
    SHUTDOWN_RECORD,
    EntryRecord,
    ExplicitLacRecord,
    FenceRecord,
    JournalRecord,
    MasterKeyRecord,
    RecordFormatError,
    ShutdownRecord,
    decode_body,
    encode_body,
    encode_parts,
    explicit_lac_record,
    fence_record,
    master_key_record,
)
from quire_bookie.model import EntryId, LedgerId, Run

I64 = st.integers(0, 2**63 - 1)


def run_of(ledger: int, first: int, entries: list[bytes], lac: int = -1) -> Run:
    return Run(LedgerId(ledger), EntryId(first), entries, EntryId(lac), sum(map(len, entries)))


def test_a_body_matches_version_1() -> None:
    body = encode_body(
        [
            master_key_record(LedgerId(5), b"key"),
            run_of(5, 7, [b"ab", b"", b"c"], 6),
            fence_record(LedgerId(5)),
            explicit_lac_record(LedgerId(5), memoryview(b"lac")),
            SHUTDOWN_RECORD,
            master_key_record(LedgerId(6), b"key", b"ab12"),
        ]
    )
    assert body.hex() == (
        "02000000" "03000000" "0500000000000000" + b"key".hex()
        + "01000000" "03000000" "0500000000000000" "0700000000000000" "0600000000000000"
        + "02000000" "00000000" "01000000" + b"abc".hex()
        + "03000000" "00000000" "0500000000000000"
        + "04000000" "03000000" "0500000000000000" + b"lac".hex()
        + "05000000" "00000000" "ffffffffffffffff"
        + "06000000" "08000000" "0600000000000000" "04" + b"ab12key".hex()
    )  # fmt: skip
    assert list(decode_body(body)) == [
        MasterKeyRecord(LedgerId(5), b"key"),
        EntryRecord(run_of(5, 7, [b"ab", b"", b"c"], 6)),
        FenceRecord(LedgerId(5)),
        ExplicitLacRecord(LedgerId(5), b"lac"),
        ShutdownRecord(),
        MasterKeyRecord(LedgerId(6), b"key", b"ab12"),
    ]


runs = st.builds(run_of, I64, I64, st.lists(st.binary(max_size=40), min_size=1, max_size=8), st.integers(-1, 2**62))
records: st.SearchStrategy[JournalRecord] = st.one_of(
    st.builds(EntryRecord, runs),
    st.builds(MasterKeyRecord, I64.map(LedgerId), st.binary(max_size=20), st.binary(max_size=64)),
    st.builds(FenceRecord, I64.map(LedgerId)),
    st.builds(ExplicitLacRecord, I64.map(LedgerId), st.binary(max_size=60)),
)


def encoded(record: JournalRecord) -> Run | bytes:
    if isinstance(record, EntryRecord):
        return record.run
    if isinstance(record, MasterKeyRecord):
        return master_key_record(record.ledger, record.key, record.token)
    if isinstance(record, FenceRecord):
        return fence_record(record.ledger)
    return explicit_lac_record(record.ledger, record.packet)


@given(st.lists(records, max_size=8))
def test_every_body_round_trips(content: list[JournalRecord]) -> None:
    assert list(decode_body(encode_body([encoded(record) for record in content]))) == content


@given(st.lists(records, min_size=1, max_size=4), st.data())
def test_a_truncated_body_is_refused_or_is_a_prefix(content: list[JournalRecord], data: st.DataObject) -> None:
    body = encode_body([encoded(record) for record in content])
    cut = body[: data.draw(st.integers(0, len(body) - 1))]
    try:
        assert list(decode_body(cut)) == content[: len(list(decode_body(cut)))]
    except RecordFormatError:
        pass


@given(st.binary(max_size=200))
def test_arbitrary_bytes_decode_or_are_refused(junk: bytes) -> None:
    try:
        list(decode_body(junk))
    except RecordFormatError:
        pass


@pytest.mark.parametrize("kind", [0, 6, 255])
def test_an_unknown_kind_is_refused(kind: int) -> None:
    with pytest.raises(RecordFormatError, match=f"unknown kind {kind}"):
        list(decode_body(bytes([kind]).ljust(16, b"\0")))


def test_entries_that_are_views_are_copied_and_not_pinned() -> None:
    socket_read = bytearray(b"....abcdef")
    view = memoryview(socket_read)
    body = encode_body([run_of(1, 0, [view[4:7], view[7:10]])])  # type: ignore[list-item]
    socket_read[:] = b"x" * 10
    [record] = decode_body(body)
    assert isinstance(record, EntryRecord)
    assert record.run.entries == [b"abc", b"def"]
    assert all(type(entry) is bytes for entry in record.run.entries)


@given(
    st.lists(
        st.one_of(
            st.binary(max_size=20),
            st.builds(
                lambda sizes: run_of(3, 40, [bytes(size) for size in sizes]),
                st.lists(st.sampled_from([0, 5, PART_BYTES_MIN - 1, PART_BYTES_MIN, 3 * PART_BYTES_MIN]), min_size=1),
            ),
        ),
        max_size=6,
    )
)
def test_the_joined_parts_of_a_body_are_the_body(items: list[Run | bytes]) -> None:
    assert b"".join(encode_parts(items)) == encode_body(items)


def test_large_entries_are_uncopied_parts_and_small_ones_are_joined() -> None:
    large = [bytes(PART_BYTES_MIN), bytes(PART_BYTES_MIN)]
    parts = encode_parts([b"record", run_of(1, 0, [b"s"]), run_of(2, 0, large), run_of(1, 1, [b"t"]), b"record"])
    assert len(parts) == 5
    assert parts[2] is large[0] and parts[3] is large[1]
