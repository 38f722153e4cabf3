"""Entries to messages: all forms that the stock client sends are decoded, and no content raises an error."""

import struct
import zlib
from base64 import b64encode
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import cramjam
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire_broker.wire.entry import seal
from quire_broker.wire.frames import FrameDecoder, SendRun
from quire_broker.wire.proto.pulsar_pb2 import BrokerEntryMetadata, MessageMetadata, SingleMessageMetadata
from quire_jobs.decode.columns import ENTRY_SCHEMA, MESSAGE_SCHEMA
from quire_jobs.decode.messages import MessageDecoder

GOLDEN = Path(__file__).resolve().parents[3] / "golden" / "pulsar-wire"
COMPRESS: dict[int, Callable[[bytes], bytes]] = {
    0: lambda body: body,
    1: lambda body: bytes(cramjam.lz4.compress_block(body, store_size=False)),
    2: zlib.compress,
    3: lambda body: bytes(cramjam.zstd.compress(body)),
    4: lambda body: bytes(cramjam.snappy.compress_raw(body)),
}


def recorded(name: str) -> list[bytes]:
    """Return the entries that the stock client sent in a recorded scenario."""
    found = []
    for line in (GOLDEN / f"{name}.txt").read_text().splitlines():
        if line.startswith("> "):
            for frame in FrameDecoder(1 << 24).feed(bytes.fromhex(line[2:])):
                if isinstance(frame, SendRun):
                    found += [bytes(send.entry) for send in frame.sends]
    return found


def as_batch(entries: Sequence[bytes], first: int = 0) -> pa.RecordBatch:
    """Return entries `first`, `first` + 1 ... of ledger 7."""
    rows = [("persistent://t/n/x", -1, 7, first + index, len(each), each) for index, each in enumerate(entries)]
    columns = list(zip(*rows, strict=True)) or [()] * 6
    return pa.RecordBatch.from_arrays(
        [pa.array(list(values), field.type) for values, field in zip(columns, ENTRY_SCHEMA, strict=True)],
        schema=ENTRY_SCHEMA,
    )


def decode(entries: Sequence[bytes], **options: Any) -> list[dict[str, Any]]:
    """Return all messages as Python values."""
    batches = list(MessageDecoder(**options).messages(as_batch(entries)))
    found: list[dict[str, Any]] = pa.Table.from_batches(batches, MESSAGE_SCHEMA).to_pylist()
    return found


def batch_of(singles: Sequence[tuple[SingleMessageMetadata, bytes]]) -> bytes:
    """Return the payload of a batch."""
    parts = []
    for single, payload in singles:
        single.payload_size = len(payload)
        head = single.SerializeToString()
        parts.append(struct.pack(">I", len(head)) + head + payload)
    return b"".join(parts)


def metadata(**fields: Any) -> MessageMetadata:
    """Return metadata with the required fields and the given ones."""
    made = MessageMetadata(producer_name="p", sequence_id=5, publish_time=1_790_000_000_123)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize("codec", ["none", "lz4", "zlib", "zstd", "snappy"])
def test_batches_of_the_stock_client_are_unpacked_in_every_compression(codec: str) -> None:
    found = decode(recorded(f"send-batched-{codec}"))
    assert [(each["entry"], each["batch_index"]) for each in found] == [*((0, index) for index in range(5)), (1, 0)]
    assert [each["sequence_id"] for each in found[:5]] == [0, 1, 2, 3, 4]
    assert not any(each["_error"] for each in found)


def test_keys_properties_and_event_times_are_the_same_in_and_out_of_batches() -> None:
    shown = ("key", "key_bytes", "ordering_key", "properties", "payload", "event_time", "size")
    found = decode(recorded("message-metadata"))
    single = [[each[name] for name in shown] for each in found if each["batch_index"] < 0]
    batched = [[each[name] for name in shown] for each in found if each["batch_index"] >= 0]
    assert single == batched
    assert single[0][0] == "key-1" and single[0][3] == [("x", "1"), ("y", "zwei")]
    assert single[0][5].timestamp() == 1_700_000_000.123
    assert single[2][0] is None


def test_chunks_of_the_stock_client_are_one_message_at_the_last_entry() -> None:
    whole, small = decode(recorded("chunked"))
    assert whole["payload"] == bytes((7 * i + 3) % 256 for i in range(60_000))
    assert (whole["entry"], whole["batch_index"], small["entry"]) == (2, -1, 3)


def test_each_split_into_ranges_gives_a_chunked_message_once() -> None:
    entries = recorded("chunked")
    for split in range(len(entries) + 1):
        first = MessageDecoder().messages(as_batch(entries[:split]))
        second = MessageDecoder(before=partial(reversed, entries[:split])).messages(as_batch(entries[split:], split))
        found = pa.Table.from_batches([*first, *second], MESSAGE_SCHEMA)
        assert found.column("entry").to_pylist() == [2, 3]
        assert found.column("_error").to_pylist() == [None, None]


def test_properties_that_are_not_utf8_are_escaped() -> None:
    metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
    metadata.properties.add(key="kk", value="vv")
    body = b"\0\0\0" + bytes([metadata.ByteSize()]) + metadata.SerializeToString().replace(b"vv", b"\xffv") + b"x"
    single = SingleMessageMetadata(payload_size=0)
    single.properties.add(key="kk", value="vv")
    head = single.SerializeToString().replace(b"kk", b"k\xfe")
    batched = MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, num_messages_in_batch=1)
    plain, inside = decode([body, seal(batched, struct.pack(">I", len(head)) + head)])
    assert plain["properties"] == [("kk", "\\xffv")] and plain["payload"] == b"x"
    assert inside["properties"] == [("k\\xfe", "vv")]


def test_a_message_without_its_first_chunk_is_one_error() -> None:
    found = decode(recorded("chunked")[1:])
    assert [each["_error"] for each in found] == ["the log does not contain chunk 0 of 3 of this message", None]


singles = st.lists(
    st.tuples(
        st.builds(
            SingleMessageMetadata,
            partition_key=st.none() | st.text(max_size=8),
            ordering_key=st.none() | st.binary(max_size=4),
            sequence_id=st.none() | st.integers(0, 2**63 - 1),
            event_time=st.none() | st.integers(0, 2_000_000_000_000),
            payload_size=st.just(0),
            compacted_out=st.booleans(),
        ),
        st.binary(max_size=60),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=60, deadline=None)
@given(singles, st.sampled_from(sorted(COMPRESS)), st.booleans(), st.binary(max_size=9))
def test_every_message_of_a_batch_is_unpacked(
    messages: list[tuple[SingleMessageMetadata, bytes]], codec: int, broker_metadata: bool, version: bytes
) -> None:
    body = batch_of(messages)
    head = metadata(num_messages_in_batch=len(messages), compression=codec, uncompressed_size=len(body))
    if version:
        head.schema_version = version
    entry = seal(head, COMPRESS[codec](body))
    if broker_metadata:
        extra = BrokerEntryMetadata(broker_timestamp=1, index=9).SerializeToString()
        entry = b"\x0e\x02" + struct.pack(">I", len(extra)) + extra + entry
    found = decode([entry])
    kept = [(index, *each) for index, each in enumerate(messages) if not each[0].compacted_out]
    assert [(each["batch_index"], each["payload"]) for each in found] == [
        (index, payload) for index, _, payload in kept
    ]
    for row, (index, single, _) in zip(found, kept, strict=True):
        assert row["key"] == (single.partition_key if single.HasField("partition_key") else None)
        assert row["ordering_key"] == (single.ordering_key if single.HasField("ordering_key") else None)
        assert row["sequence_id"] == (single.sequence_id if single.HasField("sequence_id") else 5 + index)
        assert row["schema_version"] == (version or None)
        assert row["_error"] is None


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_damaged_entries_become_rows_with_an_error(data: st.DataObject) -> None:
    good = data.draw(st.sampled_from([*recorded("send-batched-zstd"), *recorded("message-metadata")]))
    cut = data.draw(st.integers(0, len(good) - 1))
    flip = data.draw(st.integers(0, len(good) - 1))
    bad = bytearray(good)
    bad[flip] ^= data.draw(st.integers(1, 255))
    found = decode([good[:cut], bytes(bad), data.draw(st.binary(max_size=50)), good])
    assert [each for each in found if each["entry"] == 3 and each["_error"] is None]
    assert {each["entry"] for each in found} >= {0, 1, 3}


def test_a_changed_bit_after_the_checksum_is_an_error_with_the_stored_bytes() -> None:
    entry = bytearray(seal(metadata(), b"payload"))
    entry[-1] ^= 1
    (row,) = decode([bytes(entry)])
    assert "checksum" in row["_error"] and row["payload"] == bytes(entry)


def test_encrypted_payloads_remain_encrypted_with_an_error() -> None:
    head = metadata(num_messages_in_batch=3)
    head.encryption_keys.add(key="k", value=b"v")
    (row,) = decode([seal(head, b"cipher")])
    assert row["payload"] == b"cipher" and row["_error"].startswith("encrypted") and row["batch_index"] == -1


def test_markers_are_skipped_and_tombstones_have_no_payload() -> None:
    found = decode([seal(metadata(marker_type=21), b""), seal(metadata(null_value=True, partition_key="k"), b"")])
    assert [(each["entry"], each["key"], each["payload"]) for each in found] == [(1, "k", None)]


def test_keys_of_bytes_are_decoded_and_invalid_base64_is_an_error() -> None:
    good = metadata(partition_key=b64encode(b"\x00\xff").decode(), partition_key_b64_encoded=True)
    bad = metadata(partition_key="!", partition_key_b64_encoded=True)
    found = decode([seal(good, b"a"), seal(bad, b"b")])
    assert found[0]["key_bytes"] == b"\x00\xff"
    assert found[1]["key_bytes"] is None and "base64" in found[1]["_error"]


def test_only_requested_columns_are_made_and_memory_is_bounded() -> None:
    entries = [seal(metadata(sequence_id=index), bytes(1000)) for index in range(100)]
    batches = list(MessageDecoder(["entry", "payload"], batch_bytes_max=10_000).messages(as_batch(entries)))
    assert [each.num_rows for each in batches] == [10] * 10
    assert batches[0].schema.names == ["entry", "payload"]
    assert [row for each in batches for row in each.column("entry").to_pylist()] == list(range(100))


def test_times_beyond_the_supported_range_are_null() -> None:
    (row,) = decode([seal(metadata(publish_time=2**63, event_time=2**64 - 1), b"x")])
    assert (row["publish_time"], row["event_time"], row["payload"]) == (None, None, b"x")
