"""Bulk decoding gives the same rows as decoding entries singly, for any content, and takes common entries in bulk."""

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from quire_bookie.bulk import IS_NATIVE, message_columns, plain_messages
from quire_bookie.crc import crc32c
from quire_broker.wire.entry import seal
from quire_broker.wire.proto.pulsar_pb2 import BrokerEntryMetadata, MessageMetadata, SingleMessageMetadata
from quire_jobs.decode import bulk_messages
from quire_jobs.decode.bulk_messages import BulkMessages
from quire_jobs.decode.columns import MESSAGE_SCHEMA
from quire_jobs.decode.messages import MessageDecoder
from tests.unit.jobs.decode.test_messages import COMPRESS, as_batch, batch_of, metadata

native = pytest.mark.skipif(not IS_NATIVE, reason="the plain Python version takes no entries")
TIMES = (0, 1, 1_790_000_000_123, 253_402_300_799_999, 253_402_300_800_000, 2**64 - 1)
LONGS = (0, 1, 7, -1, 2**63 - 1, -(2**63))
TEXTS = ("", "k", "schlüssel", "aGFsbG8=", "AA==", "not=base64")


def _set_fields(random: Random, made: Any) -> None:
    """Set fields that both an entry and a message in a batch have."""
    for name, values in (
        ("partition_key", TEXTS),
        ("partition_key_b64_encoded", (True, False)),
        ("ordering_key", (b"", b"o\xff")),
        ("event_time", TIMES),
        ("null_value", (True, False)),
        ("null_partition_key", (True, False)),
    ):
        if random.random() < 0.25:
            setattr(made, name, random.choice(values))
    while random.random() < 0.25:
        made.properties.add(key=random.choice(TEXTS), value=random.choice(TEXTS))


def single(random: Random) -> tuple[SingleMessageMetadata, bytes]:
    """Return a message of a batch."""
    made = SingleMessageMetadata(payload_size=0)
    _set_fields(random, made)
    if random.random() < 0.25:
        made.sequence_id = random.choice(LONGS)
    made.compacted_out = random.random() < 0.2
    return made, random.randbytes(random.randrange(20))


def well_formed(random: Random) -> bytes:
    """Return any entry that a producer may send."""
    made = MessageMetadata(
        producer_name=random.choice(TEXTS[random.random() < 0.9 :]),
        sequence_id=random.choice(LONGS),
        publish_time=random.choice(TIMES[: 4 if random.random() < 0.9 else 6]),
    )
    body = random.randbytes(random.randrange(40))
    if random.random() < 0.5:
        singles = [single(random) for _ in range(random.randrange(4))]
        made.num_messages_in_batch = len(singles) + random.choice([0, 0, 0, 0, 0, 0, 1, -9])
        body = batch_of(singles) + random.choice([b"", b"", b"rest"])
    else:
        _set_fields(random, made)
    if random.random() < 0.4:
        made.compression = random.randrange(6)
        made.uncompressed_size = len(body) + (random.random() < 0.1)
        body = COMPRESS.get(made.compression, bytes)(body)
    if random.random() < 0.4:
        made.schema_version = random.randbytes(random.randrange(4))
    odd = random.choice(["", "", "", "", "", "chunk", "marker", "encrypted", "transaction", "replicated"])
    if odd == "chunk":
        made.uuid, made.num_chunks_from_msg, made.chunk_id = "u", 2, random.choice([-1, 0, 0, 1, 1, 2])
        made.total_chunk_msg_size = 2 * len(body)
    elif odd == "marker":
        made.marker_type = 1
    elif odd == "encrypted":
        made.encryption_keys.add(key="k", value=b"v")
    elif odd == "transaction":
        made.txnid_least_bits, made.txnid_most_bits = 1, 2**64 - 1
    elif odd == "replicated":
        made.replicated_from, made.deliver_at_time, made.highest_sequence_id = "west", -1, 9
        made.replicate_to.append("east")
    return seal(made, body)


def resealed(random: Random) -> bytes:
    """Return an entry with changed, inserted or removed bytes and a correct checksum."""
    entry = bytearray(well_formed(random))
    for _ in range(random.randint(1, 3)):
        at = random.randint(6, len(entry))
        entry[at : at + random.randrange(3)] = random.randbytes(random.randrange(3))
    entry[2:6] = struct.pack(">I", crc32c(entry[6:]))
    return bytes(entry)


def any_entry(random: Random) -> bytes:
    """Return an entry, well-formed or not, unchanged or damaged in transit."""
    kind = random.randrange(5)
    entry = random.randbytes(25) if kind == 0 else resealed(random) if kind == 1 else well_formed(random)
    how = random.choice(["", "", "", "", "broker", "short", "flipped", "bare"])
    if how == "broker":
        head = BrokerEntryMetadata(broker_timestamp=1, index=2).SerializeToString()
        return b"\x0e\x02" + struct.pack(">I", len(head)) + head + entry
    if how == "short":
        return entry[: random.randint(0, len(entry))]
    if how == "flipped":
        at = random.randrange(len(entry))
        return entry[:at] + bytes([entry[at] ^ 1]) + entry[at + 1 :]
    return entry[6:] if how == "bare" else entry


@contextmanager
def one_by_one() -> Iterator[None]:
    """Disable the native step."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bulk_messages, "message_columns", plain_messages.message_columns)
        yield


def rows(entries: Sequence[bytes], columns: Sequence[str] | None, bytes_max: int) -> list[dict[str, Any]]:
    decoder = MessageDecoder(columns, batch_bytes_max=bytes_max)
    schema = pa.schema([MESSAGE_SCHEMA.field(name) for name in columns or MESSAGE_SCHEMA.names])
    half = len(entries) // 2
    batches = [*decoder.messages(as_batch(entries[:half])), *decoder.messages(as_batch(entries[half:], half))]
    for batch in batches:
        batch.validate(full=True)
    found: list[dict[str, Any]] = pa.Table.from_batches(batches, schema).to_pylist()
    return found


@native
@pytest.mark.parametrize("seed", range(4))
def test_bulk_and_single_decoding_give_the_same_rows(seed: int) -> None:
    random = Random(seed)
    for _ in range(50):
        entries = [any_entry(random) for _ in range(random.randrange(40))]
        names = random.sample(MESSAGE_SCHEMA.names, random.randint(1, len(MESSAGE_SCHEMA.names)))
        columns = None if random.random() < 0.5 else names
        bytes_max = random.choice([1, 100, 1 << 24])
        found = rows(entries, columns, bytes_max)
        with one_by_one():
            assert found == rows(entries, columns, bytes_max)


@native
@pytest.mark.parametrize("codec", COMPRESS)
@pytest.mark.parametrize("broker_metadata", [False, True])
def test_batches_with_all_fields_of_a_message_are_taken(codec: int, broker_metadata: bool) -> None:
    full = SingleMessageMetadata(payload_size=0, partition_key="k", ordering_key=b"o", event_time=5, sequence_id=9)
    full.properties.add(key="a", value="b")
    plain = SingleMessageMetadata(payload_size=0)
    body = batch_of([(full, b"first"), (plain, b"second")])
    head = metadata(
        num_messages_in_batch=2,
        compression=codec,
        uncompressed_size=len(body),
        schema_version=b"\0\1",
        txnid_least_bits=1,
    )
    entry = seal(head, COMPRESS[codec](body))
    if broker_metadata:
        entry = b"\x0e\x02\0\0\0\2\x08\1" + entry
    batch = as_batch([entry] * 3)
    _, offsets, data = batch.column("payload").buffers()
    taken = BulkMessages().take(batch, data, offsets, 1, 1 << 20)
    assert taken.stop == 3 and taken.rows is not None
    assert taken.rows.column("entry").to_pylist() == [1, 1, 2, 2]
    assert taken.rows.column("key").to_pylist() == ["k", None] * 2
    assert taken.rows.column("payload").to_pylist() == [b"first", b"second"] * 2


@native
def test_unusual_entries_are_left_and_the_byte_limit_is_kept() -> None:
    entries = [seal(metadata(), b"x" * 1000) for _ in range(10)]
    entries[6] = entries[6][:-1]
    batch = as_batch(entries)
    _, offsets, data = batch.column("payload").buffers()
    bulk = BulkMessages()
    assert bulk.take(batch, data, offsets, 0, 2500).stop == 3
    assert bulk.take(batch, data, offsets, 3, 1 << 20).stop == 6
    assert bulk.take(batch, data, offsets, 6, 1 << 20) == (6, None, 0)


@native
def test_offsets_outside_the_bytes_are_refused() -> None:
    for edges in ([0, 5], [4, 0], [-1, 3]):
        offsets = struct.pack("2i", *edges)
        with pytest.raises(IndexError):
            message_columns(b"1234", offsets, 0, 1 << 20, True, lambda *_: None)


def test_a_key_marked_as_base64_that_is_not_ascii_is_an_error_of_its_row() -> None:
    head = metadata(partition_key="schlüssel", partition_key_b64_encoded=True)
    (row,) = rows([seal(head, b"x")], None, 1 << 20)
    assert row["key"] == "schlüssel" and row["key_bytes"] is None and "base64" in row["_error"]
