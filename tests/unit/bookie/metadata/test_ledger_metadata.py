"""Ledger metadata: bytes of BookKeeper, all three versions, and refusal of other values."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire_bookie.errors import MetadataFormatError
from quire_bookie.metadata.ledger_metadata import decode_ledger_metadata, encode_ledger_metadata
from quire_bookie.model import NO_ENTRY, BookieId, DigestType, EntryId, LedgerMetadata, LedgerState, Segment
from tests.support.golden_etcd import dump, history

HEAD = b"BookieMetadataFormatVersion\t"

GOLDEN_VALUES = sorted(
    {change.value for change in history() if change.value.startswith(HEAD)}
    | {
        stored.value
        for name in ("pulsar-store.txt", "pulsar-broker.txt", "pulsar-topics.txt")
        for stored in dump(name)
        if stored.value is not None and stored.value.startswith(HEAD)
    }
)

bookie_ids = st.text(
    st.characters(codec="utf-8", exclude_characters="\t\n", exclude_categories=("Cs", "Zl", "Zp", "Cc")), min_size=1
)


@st.composite
def ledgers(draw: st.DrawFn, versions: tuple[int, ...] = (1, 2, 3)) -> LedgerMetadata:
    version = draw(st.sampled_from(versions))
    ensemble_size = draw(st.integers(1, 5))
    write_quorum = draw(st.integers(1, ensemble_size))
    ack_quorum = write_quorum if version == 1 else draw(st.integers(1, write_quorum))
    starts = [0, *sorted(draw(st.sets(st.integers(1, 2**62), max_size=4)))]
    segments = tuple(
        Segment(
            EntryId(start),
            tuple(
                BookieId(name) for name in draw(st.lists(bookie_ids, min_size=ensemble_size, max_size=ensemble_size))
            ),
        )
        for start in starts
    )
    state = draw(st.sampled_from(LedgerState))
    closed = state is LedgerState.CLOSED
    has_password = version > 1 and draw(st.booleans())
    return LedgerMetadata(
        ensemble_size=ensemble_size,
        write_quorum=write_quorum,
        ack_quorum=ack_quorum,
        segments=segments,
        state=state,
        last_entry=EntryId(draw(st.integers(-1, 2**62))) if closed else NO_ENTRY,
        length=draw(st.integers(0, 2**62)) if closed else 0,
        digest_type=draw(st.sampled_from(DigestType)) if has_password else DigestType.CRC32C,
        password=draw(st.binary(max_size=20)) if has_password else b"",
        custom={} if version == 1 else draw(st.dictionaries(st.text(max_size=8), st.binary(max_size=16), max_size=3)),
        ctime_ms=None if version == 1 else draw(st.none() | st.integers(0, 2**60)),
        c_token=draw(st.none() | st.integers(-(2**63), 2**63 - 1)) if version == 3 else None,
        format_version=version,
        has_password=has_password,
    )


def sample(**changes: object) -> LedgerMetadata:
    """Return an open ledger of three bookies."""
    segment = Segment(EntryId(0), (BookieId("b1"), BookieId("b2"), BookieId("b3")))
    ledger = LedgerMetadata(ensemble_size=3, write_quorum=3, ack_quorum=2, segments=(segment,))
    return dataclasses.replace(ledger, **changes)  # type: ignore[arg-type]


def test_the_golden_dumps_contain_ledgers_of_every_state() -> None:
    assert len(GOLDEN_VALUES) > 10
    states = {decode_ledger_metadata(value).state for value in GOLDEN_VALUES}
    assert {LedgerState.OPEN, LedgerState.CLOSED} <= states


@pytest.mark.parametrize("value", GOLDEN_VALUES)
def test_a_stock_value_is_written_back_byte_for_byte(value: bytes) -> None:
    assert encode_ledger_metadata(decode_ledger_metadata(value)) == value


def test_a_closed_stock_ledger_is_decoded_as_its_writer_closed_it() -> None:
    closed = next(c for c in history() if c.key == "/ledgers/00/0000/L0001" and c.key_version == 2)
    ledger = decode_ledger_metadata(closed.value)
    assert (ledger.ensemble_size, ledger.write_quorum, ledger.ack_quorum) == (3, 3, 2)
    assert (ledger.state, ledger.last_entry, ledger.length) == (LedgerState.CLOSED, 6563, 6_721_536)
    assert ledger.digest_type is DigestType.CRC32C
    assert ledger.password == b"" and ledger.has_password
    assert ledger.ensemble_of(EntryId(5)) == ("127.0.0.1:3187", "127.0.0.1:3185", "127.0.0.1:3186")


def test_the_create_of_a_stock_writer_is_what_we_write_for_a_new_ledger() -> None:
    created = next(c for c in history() if c.key == "/ledgers/00/0000/L0001" and c.key_version == 1)
    ensemble = tuple(BookieId(f"127.0.0.1:{port}") for port in (3187, 3185, 3186))
    fresh = LedgerMetadata(ensemble_size=3, write_quorum=3, ack_quorum=2, segments=(Segment(EntryId(0), ensemble),))
    assert encode_ledger_metadata(fresh) == created.value


@given(ledgers())
def test_every_ledger_survives_its_own_format_version(ledger: LedgerMetadata) -> None:
    assert decode_ledger_metadata(encode_ledger_metadata(ledger)) == ledger


def test_version_1_text_is_decoded_in_each_state() -> None:
    body = b"2\n3\n4096\n0\ta:1\tb:1\tc:1\n100\ta:1\tb:1\td:1\n"
    opened = decode_ledger_metadata(HEAD + b"1\n" + body)
    recovering = decode_ledger_metadata(HEAD + b"1\n" + body + b"-102\tCLOSED\n")
    closed = decode_ledger_metadata(HEAD + b"1\n" + body + b"150\tCLOSED")
    assert (opened.state, opened.write_quorum, opened.ack_quorum, opened.ensemble_size) == (LedgerState.OPEN, 2, 2, 3)
    assert (recovering.state, recovering.last_entry) == (LedgerState.IN_RECOVERY, NO_ENTRY)
    assert (closed.state, closed.last_entry, closed.length) == (LedgerState.CLOSED, 150, 4096)
    assert closed.ensemble_of(EntryId(99))[2] == "c:1"
    assert closed.ensemble_of(EntryId(100))[2] == "d:1"
    assert not closed.has_password


def test_version_2_is_protobuf_text_without_a_creator_token() -> None:
    text = encode_ledger_metadata(sample(format_version=2, custom={"application": b"pulsar"})).decode()
    assert text.startswith("BookieMetadataFormatVersion\t2\nquorumSize: 3\nensembleSize: 3\nlength: 0\n")
    assert 'ensembleMember: "b1"' in text
    assert 'digestType: CRC32C\npassword: ""\nackQuorumSize: 2\n' in text
    assert "cToken" not in text


def test_a_missing_ack_quorum_means_the_write_quorum() -> None:
    body = b'quorumSize: 1 ensembleSize: 1 length: 0 state: OPEN segment { ensembleMember: "a" firstEntryId: 0 }'
    ledger = decode_ledger_metadata(HEAD + b"2\n" + body)
    assert ledger.ack_quorum == 1
    assert not ledger.has_password


def test_length_and_last_entry_count_only_once_closed() -> None:
    ledger = sample(length=77, last_entry=EntryId(3))
    assert decode_ledger_metadata(encode_ledger_metadata(ledger)) == sample()


@given(ledgers(versions=(3,)), st.data())
def test_a_truncated_value_is_refused_and_never_misread(ledger: LedgerMetadata, data: st.DataObject) -> None:
    value = encode_ledger_metadata(ledger)
    with pytest.raises(MetadataFormatError):
        decode_ledger_metadata(value[: data.draw(st.integers(0, len(value) - 1))])


@given(st.binary(max_size=60), st.sampled_from([b"1", b"2", b"3", b"4", b""]))
def test_invalid_values_are_refused_with_our_own_error(junk: bytes, version: bytes) -> None:
    for value in (junk, HEAD + junk, HEAD + version + b"\n" + junk):
        with pytest.raises(MetadataFormatError):
            decode_ledger_metadata(value)


@pytest.mark.parametrize(
    "broken",
    [
        sample(ack_quorum=0),
        sample(ack_quorum=4, write_quorum=3),
        sample(write_quorum=4),
        sample(segments=()),
        sample(segments=(Segment(EntryId(1), (BookieId("a"), BookieId("b"), BookieId("c"))),)),
        sample(segments=(Segment(EntryId(0), (BookieId("a"), BookieId("b"))),)),
        sample(segments=(*sample().segments, *sample().segments)),
        sample(format_version=1),
        sample(format_version=4),
    ],
)
def test_an_invalid_ledger_is_never_written(broken: LedgerMetadata) -> None:
    with pytest.raises(MetadataFormatError):
        encode_ledger_metadata(broken)
