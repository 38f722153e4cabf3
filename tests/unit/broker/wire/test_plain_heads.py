"""Tests that the native step over entries recognises only what the parser reads the same."""

import os
import random
from typing import Any

import pytest

from quire_bookie.errors import PeerProtocolError
from quire_broker.wire.entry import broker_metadata, peek, seal
from quire_broker.wire.proto import pulsar_pb2 as pb
from tests.support.bulk_steps import native

SEEDS = 10
INPUTS = int(os.environ.get("QUIRE_HEAD_INPUTS", "1000"))
"""Of each seed; 100,000 for a run of a million."""

pytestmark = pytest.mark.skipif(native("plain_heads") is None, reason="not built: `make native`")


def head(entry: bytes | memoryview) -> tuple[int, bytes | None]:
    """Return the number of messages and the key of one entry; 0 if it is left to the parser."""
    built = native("plain_heads")
    assert built is not None
    (count,), (key,) = built.plain_heads([entry], True)
    (alone,), none = built.plain_heads([entry], False)
    assert none == []
    assert alone == count or (count == 0 and key is None)
    return count, key


def metadata(**fields: Any) -> pb.MessageMetadata:
    wanted: dict[str, Any] = {"producer_name": "p", "sequence_id": 5, "publish_time": 9} | fields
    return pb.MessageMetadata(**wanted)


@pytest.mark.parametrize(
    ("fields", "count", "key"),
    [
        ({}, 1, b"p-5"),
        ({"sequence_id": -1}, 1, b"p--1"),
        ({"partition_key": "k\u00e9y"}, 1, "k\u00e9y".encode()),
        ({"partition_key": "key", "ordering_key": b"\xff"}, 1, b"\xff"),
        ({"num_messages_in_batch": 16_383, "event_time": 4, "compression": 2}, 16_383, b"p-5"),
        ({"properties": [pb.KeyValue(key="a", value="b")], "schema_version": b"\1"}, 1, b"p-5"),
    ],
)
def test_entries_of_common_clients_are_plain(fields: dict[str, Any], count: int, key: bytes) -> None:
    entry = seal(metadata(**fields), b"payload")
    assert head(entry) == head(memoryview(entry)) == head(broker_metadata(7, 8) + entry) == (count, key)


@pytest.mark.parametrize(
    "fields",
    [
        {"marker_type": 10},
        {"deliver_at_time": 1},
        {"uuid": "u", "num_chunks_from_msg": 3},
        {"chunk_id": 0},
        {"num_messages_in_batch": 16_384},
        {"num_messages_in_batch": 0},
        {"num_messages_in_batch": -1},
        {"encryption_algo": "a"},
        {"partition_key": "a2V5", "partition_key_b64_encoded": True},
        {"producer_name": ""},
    ],
)
def test_every_other_entry_is_left_to_the_parser(fields: dict[str, Any]) -> None:
    assert head(seal(metadata(**fields), b"payload")) == (0, None)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_plain_entry_is_what_the_parser_reads(seed: int) -> None:
    chance, plain = random.Random(seed), 0
    for _ in range(INPUTS):
        entry = damaged(chance)
        count, key = head(entry)
        if count:
            plain += 1
            try:
                summary = peek(entry)
            except PeerProtocolError as error:
                pytest.fail(f"{error}: {entry!r}")
            assert (summary.num_messages, summary.sticky_key()) == (count, key), entry
            assert summary.marker is None, entry
            assert summary.deliver_at_ms is None, entry
            assert summary.uuid is None and summary.num_chunks <= 1, entry
    assert plain > INPUTS // 20


def damaged(chance: random.Random) -> bytes:
    """An entry with any fields, in any order, of whose head some bytes may be changed, removed or added."""
    fields: dict[str, Any] = {}
    for name, value in (
        ("partition_key", lambda: "k\u00e9y"[: chance.randrange(4)]),
        ("ordering_key", lambda: chance.randbytes(2)),
        ("num_messages_in_batch", lambda: chance.choice((-1, 0, 1, 2, 127, 128, 20_000, 2**31 - 1))),
        ("sequence_id", lambda: chance.getrandbits(64) - 2**63),
        ("publish_time", lambda: chance.getrandbits(chance.choice((8, 40, 64)))),
        ("event_time", lambda: chance.getrandbits(41)),
        ("properties", lambda: [pb.KeyValue(key="a", value="b" * chance.randrange(3))]),
        ("compression", lambda: chance.randrange(5)),
        ("highest_sequence_id", lambda: chance.getrandbits(20)),
        ("txnid_least_bits", lambda: chance.getrandbits(64)),
        ("replicate_to", lambda: ["a", "b"]),
        ("deliver_at_time", lambda: chance.getrandbits(41)),
        ("marker_type", lambda: chance.randrange(40)),
        ("uuid", lambda: "u"),
        ("num_chunks_from_msg", lambda: chance.randrange(4)),
        ("partition_key_b64_encoded", lambda: chance.random() < 0.5),
        ("null_value", lambda: True),
    ):
        rare = name in ("deliver_at_time", "marker_type", "uuid", "num_chunks_from_msg", "partition_key_b64_encoded")
        if chance.random() < (0.05 if rare else 0.25):
            fields[name] = value()
    encoded = [metadata(**fields).SerializeToString()]
    if chance.random() < 0.2:  # a field that comes again: the last one counts
        encoded.append(pb.MessageMetadata(partition_key="again").SerializePartialToString())
    if chance.random() < 0.1:
        encoded.reverse()
    raw = bytearray(b"".join(encoded))
    for _ in range(chance.choice((0, 0, 1, 1, 2))):
        at = chance.randrange(len(raw))
        action = chance.randrange(4)
        if action == 0:
            raw[at] = chance.choice((0, 8, 16, 0x32, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        elif action == 1:
            del raw[at : at + chance.randint(1, 3)]
        elif action == 2:
            raw[at:at] = chance.choice((b"\x80", b"\xff", b"\x88\x80\x80\x80\x80\x00\x01", chance.randbytes(2)))
        else:
            raw[at] ^= 1 << chance.randrange(8)
        if not raw:
            raw += b"\0"
    entry = b"\x0e\x01" + chance.randbytes(4) + len(raw).to_bytes(4, "big") + bytes(raw) + b"payload"
    return (broker_metadata(chance.getrandbits(40), 3) if chance.random() < 0.2 else b"") + entry
