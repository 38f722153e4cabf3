"""The stored forms, compared with nodes that Pulsar's broker wrote."""

import struct
import zlib

import cramjam
import pytest

from quire_bookie.errors import MetadataFormatError
from quire_broker.managed_ledger.cursors.cursor_state import StateBounds, decode_node, encode_node
from quire_broker.managed_ledger.nodes.ledger_list import LedgerRecord
from quire_broker.managed_ledger.nodes.node_codec import LedgerListNode, decode_list, encode_list
from quire_broker.managed_ledger.nodes.proto import managed_ledger_pb2 as pb
from quire_broker.managed_ledger.position import Position
from tests.support.golden_etcd import dump

_BOUNDS = StateBounds(10_000, 10_000, 1_000_000, bitmap=False)
_TOPIC_PARTS = 6


def _pulsar_nodes(depth: int) -> dict[str, bytes]:
    return {
        stored.key: stored.value
        for name in ("pulsar-topics.txt", "pulsar-broker.txt")
        for stored in dump(name)
        if stored.key.startswith("/managed-ledgers/") and stored.value is not None and stored.key.count("/") == depth
    }


@pytest.mark.parametrize("value", _pulsar_nodes(5).values(), ids=_pulsar_nodes(5).keys())
def test_a_list_of_pulsar_reads_and_writes_back_the_same_bytes(value: bytes) -> None:
    assert encode_list(decode_list(value)) == value


@pytest.mark.parametrize("value", _pulsar_nodes(6).values(), ids=_pulsar_nodes(6).keys())
def test_a_cursor_of_pulsar_reads_and_writes_back_the_same_bytes(value: bytes) -> None:
    assert encode_node(decode_node(value), _BOUNDS) == value


def test_the_nodes_of_pulsar_have_the_final_state_of_the_scenarios() -> None:
    topics = _pulsar_nodes(5)
    terminated = decode_list(topics["/managed-ledgers/public/default/persistent/g-term"])
    assert terminated.terminated == Position(113, 0)
    assert terminated.ledgers == (LedgerRecord(113),)
    two = decode_list(topics["/managed-ledgers/public/default/persistent/g-bidx"])
    assert two.ledgers == (LedgerRecord(68, 2, 160, two.ledgers[0].closed_ms), LedgerRecord(208))
    assert two.properties == {"index": "-1"}
    cursor = decode_node(_pulsar_nodes(6)["/managed-ledgers/public/default/persistent/g-bidx/sub2"])
    assert cursor.state.batches == {Position(68, 1): 0x18}
    assert cursor.state.mark_delete == Position(68, 0)


def test_an_empty_value_is_an_empty_list() -> None:
    assert decode_list(b"") == LedgerListNode()
    assert encode_list(LedgerListNode()) == b""


def test_offload_contexts_and_unknown_fields_are_preserved() -> None:
    info = pb.ManagedLedgerInfo()
    info.ledgerInfo.add(ledgerId=4, entries=2, size=20, timestamp=9, offloadContext=b"\x08\x01\x10\x02\x18\x01")
    value = info.SerializeToString() + b"\xa2\x06\x03new"  # field 100
    node = decode_list(value)
    assert node.ledgers[0].offloaded
    assert encode_list(node) == value


def _compressed(kind: int, plain: bytes, body: bytes) -> bytes:
    head = pb.CompressedValueMetadata(
        compressionType=pb.CompressionType.Name(kind), uncompressedSize=len(plain)
    ).SerializeToString()
    return struct.pack(">2si", b"\x47\x78", len(head)) + head + body


def _bodies(plain: bytes) -> list[tuple[int, bytes]]:
    return [
        (pb.NONE, plain),
        (pb.LZ4, bytes(cramjam.lz4.compress_block(plain, store_size=False))),
        (pb.ZLIB, zlib.compress(plain)),
        (pb.ZSTD, bytes(cramjam.zstd.compress(plain))),
        (pb.SNAPPY, bytes(cramjam.snappy.compress_raw(plain))),
    ]


def test_every_compression_is_read() -> None:
    node = LedgerListNode(tuple(LedgerRecord(at, 5, 50, 1) for at in range(1000)), {"a": "b"})
    plain = encode_list(node)
    for kind, body in _bodies(plain):
        assert decode_list(_compressed(kind, plain, body)) == node
    state = _pulsar_nodes(6)["/managed-ledgers/public/default/persistent/g-bidx/sub2"]
    for kind, body in _bodies(state):
        assert decode_node(_compressed(kind, state, body)) == decode_node(state)


@pytest.mark.parametrize("cut", [1, 2, 5, 7, 12, 30])
def test_a_damaged_compressed_value_is_refused(cut: int) -> None:
    plain = encode_list(LedgerListNode(tuple(LedgerRecord(at, 5, 50, 1) for at in range(100))))
    for kind, body in _bodies(plain)[1:]:
        with pytest.raises(MetadataFormatError):
            decode_list(_compressed(kind, plain, body)[:-cut])


def test_a_claimed_size_is_bounded() -> None:
    head = pb.CompressedValueMetadata(compressionType=pb.ZSTD, uncompressedSize=2**31 - 1).SerializeToString()
    with pytest.raises(MetadataFormatError, match="2147483647"):
        decode_list(struct.pack(">2si", b"\x47\x78", len(head)) + head + b"x")


def test_bytes_that_are_not_a_node_are_refused() -> None:
    with pytest.raises(MetadataFormatError):
        decode_list(b"\xff\xff\xff")
    with pytest.raises(MetadataFormatError):
        decode_node(b"\x10\x01")  # the cursor's ledger is required
