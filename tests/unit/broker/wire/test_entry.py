"""Metadata of stored entries: golden sends, checksums, sticky keys, entries for older clients."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire_bookie.errors import PeerProtocolError
from quire_broker.limits import BATCH_MESSAGES_MAX
from quire_broker.wire.entry import (
    NO_KEY,
    broker_metadata,
    broker_metadata_of,
    checksum_matches,
    deliverable,
    entry_time_ms,
    flaw_of,
    peek,
    peek_broker_metadata,
    seal,
)
from quire_broker.wire.frames import FrameDecoder, MessageFrame, SendRun
from quire_broker.wire.proto.pulsar_pb2 import BrokerEntryMetadata, MessageMetadata

GOLDEN = Path(__file__).resolve().parents[3] / "golden" / "pulsar-wire"


def metadata(**fields: Any) -> MessageMetadata:
    return MessageMetadata(**{"producer_name": "p", "sequence_id": 7, "publish_time": 100, **fields})


def entries_of(name: str, kind: type) -> list[bytes]:
    entries = []
    for line in (GOLDEN / f"{name}.txt").read_text().splitlines():
        if line[:2] in ("> ", "< "):
            for frame in FrameDecoder(6_000_000).feed(bytes.fromhex(line[2:])):
                if isinstance(frame, SendRun) and kind is SendRun:
                    entries += [bytes(send.entry) for send in frame.sends]
                if isinstance(frame, MessageFrame) and kind is MessageFrame:
                    entries.append(bytes(frame.entry))
    return entries


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.txt")), ids=lambda path: path.stem)
def test_every_golden_entry_has_a_matching_checksum_and_readable_metadata(path: Path) -> None:
    for entry in entries_of(path.stem, SendRun) + entries_of(path.stem, MessageFrame):
        assert checksum_matches(entry)
        summary = peek(memoryview(entry))
        assert summary.producer_name or summary.marker is not None
        assert summary.num_messages >= 1
        if summary.marker is None:
            assert flaw_of(memoryview(deliverable(entry, broker_metadata=False, checksum=True))) is None


def test_messages_are_delivered_as_they_were_sent() -> None:
    sent, received = entries_of("message-metadata", SendRun), entries_of("message-metadata", MessageFrame)
    assert sent
    assert sent == received


def test_keys_properties_and_event_time_of_a_golden_message() -> None:
    summary = peek(entries_of("message-metadata", SendRun)[0])
    assert (summary.partition_key, summary.ordering_key) == ("key-1", b"ord")
    assert summary.sticky_key() == b"ord"
    assert summary.event_time_ms is not None
    assert not summary.is_batch
    batch = peek(entries_of("message-metadata", SendRun)[3])
    assert batch.is_batch
    assert batch.num_messages == 3


def test_the_last_chunk_is_recognised() -> None:
    chunks = [peek(entry) for entry in entries_of("chunked", SendRun)]
    assert [chunk.chunk_id for chunk in chunks[:3]] == [0, 1, 2]
    assert [chunk.is_last_chunk for chunk in chunks[:3]] == [False, False, True]
    assert len({chunk.uuid for chunk in chunks[:3]}) == 1


def test_broker_entry_metadata_is_read_and_stripped() -> None:
    entries = entries_of("broker-entry-metadata", MessageFrame)
    with_index = [entry for entry in entries if entry[:2] == b"\x0e\x02"]
    inner = seal(metadata(), b"payload")
    added = BrokerEntryMetadata(broker_timestamp=5, index=9).SerializeToString()
    entry = b"\x0e\x02" + len(added).to_bytes(4, "big") + added + inner
    for stored in [*with_index, entry]:
        assert checksum_matches(stored)
        found = peek_broker_metadata(stored)
        assert found is not None
        assert found.HasField("index") or found.HasField("broker_timestamp")
        assert bytes(deliverable(stored, broker_metadata=False, checksum=True))[:2] == b"\x0e\x01"
    assert bytes(deliverable(entry, broker_metadata=False, checksum=True)) == inner
    assert bytes(deliverable(entry, broker_metadata=False, checksum=False)) == inner[6:]
    assert deliverable(inner, broker_metadata=False, checksum=True) is inner
    assert peek_broker_metadata(inner) is None
    assert peek(entry).sequence_id == 7


def test_broker_entry_metadata_is_written_as_stock_brokers_do() -> None:
    stored = [entry for entry in entries_of("broker-entry-metadata", MessageFrame) if entry[:2] == b"\x0e\x02"]
    assert len(stored) == 4
    for entry in stored:
        found = peek_broker_metadata(entry)
        assert found is not None
        head = broker_metadata(found.broker_timestamp, found.index)
        assert bytes(broker_metadata_of(entry)) == head
        assert entry_time_ms(entry) == found.broker_timestamp
        inner = bytes(entry[len(head) :])
        assert entry_time_ms(inner) == entry_time_ms(broker_metadata(None, 7) + inner) == peek(inner).publish_time_ms
        for whole in (entry, memoryview(b"\x0e\x02\x00\x00\x00\x00" + inner)):
            summary, plain = peek(whole), peek(inner)
            assert (summary.is_plain, summary.num_messages, summary.is_batch) == (
                plain.is_plain,
                plain.num_messages,
                plain.is_batch,
            )
            assert summary.metadata == plain.metadata
            assert bytes(whole[summary.payload_offset :]) == inner[plain.payload_offset :]


def test_a_client_cannot_send_broker_entry_metadata() -> None:
    flaw = flaw_of(memoryview(broker_metadata(1, 10**9) + seal(metadata(), b"x")))
    assert flaw is not None
    assert "which only brokers add" in flaw


@given(st.binary(max_size=64), st.integers(0, 10_000))
def test_a_flipped_bit_after_the_checksum_is_detected(payload: bytes, where: int) -> None:
    entry = bytearray(seal(metadata(), payload))
    assert checksum_matches(entry)
    position = 6 + where % (len(entry) - 6)
    entry[position] ^= 1 << where % 8
    assert not checksum_matches(entry)


def test_an_entry_without_a_checksum_always_matches() -> None:
    assert checksum_matches(seal(metadata(), b"x")[6:])


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({"ordering_key": b"o", "partition_key": "k"}, b"o"),
        ({"partition_key": "k"}, b"k"),
        ({"partition_key": "AAE=", "partition_key_b64_encoded": True}, b"\x00\x01"),
        ({"partition_key": "no base64", "partition_key_b64_encoded": True}, b"no base64"),
        ({"partition_key": "schlüssel", "partition_key_b64_encoded": True}, "schlüssel".encode()),
        ({}, b"p-7"),
        ({"producer_name": ""}, NO_KEY),
    ],
)
def test_the_sticky_key(fields: dict[str, Any], key: bytes) -> None:
    assert peek(seal(metadata(**fields), b"")).sticky_key() == key


@pytest.mark.parametrize("entry", [b"", b"\x0e\x01", b"\x0e\x02\x00\x00\x00\x09", b"\x00\x00\x00\x09abc", b"\x00" * 4])
def test_an_invalid_entry_is_refused(entry: bytes) -> None:
    with pytest.raises(PeerProtocolError):
        peek(entry)


def test_optional_fields_are_none_when_absent() -> None:
    summary = peek(seal(metadata(), b"abc"))
    assert summary.deliver_at_ms is None
    assert summary.uuid is None
    assert summary.marker is None
    assert not summary.in_transaction
    assert summary.is_last_chunk
    full = peek(seal(metadata(deliver_at_time=9, marker_type=21, txnid_least_bits=1, txnid_most_bits=2), b""))
    assert (full.deliver_at_ms, full.marker, full.in_transaction) == (9, 21, True)
    assert peek(seal(metadata(highest_sequence_id=12), b"")).highest_sequence_id == 12


@given(
    st.text(st.characters(codec="utf-8"), max_size=140),
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**63 - 1),
    st.one_of(st.none(), st.integers(1, 20_000)),
    st.one_of(st.none(), st.integers(0, 2**32 - 1)),
    st.one_of(st.none(), st.text(st.characters(codec="utf-8"), max_size=3)),
)
def test_the_fast_path_reads_the_same_as_the_parser(
    name: str, sequence_id: int, time_ms: int, batch: int | None, size: int | None, key: str | None
) -> None:
    given_fields: dict[str, Any] = {"num_messages_in_batch": batch, "uncompressed_size": size, "partition_key": key}
    fields = {field: value for field, value in given_fields.items() if value is not None}
    sent = metadata(producer_name=name, sequence_id=sequence_id, publish_time=time_ms, **fields)
    entry = memoryview(seal(sent, b"payload"))
    summary = peek(entry)
    assert summary.metadata == sent
    assert (summary.num_messages, summary.is_batch) == (batch or 1, batch is not None)
    assert bytes(entry[summary.payload_offset :]) == b"payload"
    assert not (summary.is_plain and key is not None)
    assert flaw_of(entry) is None


def test_entries_of_common_clients_take_the_fast_path() -> None:
    for name in ("send-unbatched", "send-batched-none", "send-batched-zstd", "send-compressed-unbatched"):
        assert all(peek(entry).is_plain for entry in entries_of(name, SendRun)), name


@pytest.mark.parametrize(("field", "text"), [(b"\x0a", "producer"), (b"\x32", "key"), (b"\xd2\x01", "uuid of a chunk")])
def test_text_that_is_not_utf8_is_refused_before_dispatch(field: bytes, text: str) -> None:
    raw = metadata().SerializeToString() + field + b"\x02\xc3\x28"
    entry = memoryview(len(raw).to_bytes(4, "big") + raw + b"x")
    assert "UTF-8" in (flaw_of(entry) or ""), text
    with pytest.raises(PeerProtocolError, match="UTF-8"):
        peek(entry)


@pytest.mark.parametrize("size", [BATCH_MESSAGES_MAX + 1, 2**31 - 1])
def test_a_batch_that_claims_to_be_enormous_is_a_flaw_and_takes_no_more_than_the_limit(size: int) -> None:
    entry = memoryview(seal(metadata(num_messages_in_batch=size), b"x"))
    assert "limit" in (flaw_of(entry) or "")
    assert peek(entry).num_messages == BATCH_MESSAGES_MAX


@given(st.binary(max_size=40))
def test_garbage_is_a_flaw_or_an_entry_but_never_another_error(data: bytes) -> None:
    for entry in (data, b"\x0e\x01" + data, b"\x0e\x02" + data, len(data).to_bytes(4, "big") + data):
        if flaw_of(memoryview(entry)) is None:
            assert peek(entry).producer_name is not None
