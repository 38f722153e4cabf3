"""The offload context of a ledger's record: round trip of Pulsar's bytes, and preserved fields."""

from dataclasses import replace

import pytest

from quire_bookie.errors import MetadataFormatError
from quire_broker.managed_ledger.nodes.ledger_list import LedgerRecord
from quire_broker.managed_ledger.nodes.node_codec import LedgerListNode, decode_list, encode_list
from quire_broker.managed_ledger.nodes.offload_context import (
    BEGUN,
    OWNER,
    OffloadContext,
    decode_context,
    encode_context,
)
from quire_broker.managed_ledger.nodes.proto import managed_ledger_pb2 as pb
from quire_broker.offload.target import OffloadTarget
from tests.unit.broker.offload.ledgers import UUID

STOCK_NODE = bytes.fromhex(
    "0a9a0108041005182d20092a8f0108898ffdf2d487cb8d0a10f8acd19181deb7de8a011801200128fbd095ffbc31326d0a06"
    "6177732d733312240a1a6d616e616765644c65646765724f66666c6f616444726976657212064157535f533312110a066275"
    "636b657412076c656467657273120c0a06726567696f6e12026575121c0a0f73657276696365456e64706f696e7412096874"
    "74703a2f2f7333"
)
"""A list of one ledger, written by classes of Pulsar 4.0.7: offloaded, and deleted from the bookies."""


def test_a_record_is_written_as_pulsar_writes_it() -> None:
    target = OffloadTarget.from_url("s3://ledgers", region="eu", endpoint="http://s3")
    context = OffloadContext(UUID, target.driver, tuple(target.properties.items()), True, True, 1_700_000_000_123)
    node = LedgerListNode((LedgerRecord(4, 5, 45, 9, offload=context),))
    assert encode_list(node) == STOCK_NODE
    assert decode_list(STOCK_NODE) == node


def test_fields_that_are_not_read_are_preserved() -> None:
    message = pb.OffloadContext(complete=False, offloadSegment=[b"\x08\x01", b"\x10\x02"])
    value = message.SerializeToString() + b"\xa2\x06\x03new"  # field 100
    context = decode_context(value)
    assert context.uuid == "" and not context.complete
    again = pb.OffloadContext.FromString(encode_context(replace(context, uuid=UUID)))
    assert list(again.offloadSegment) == [b"\x08\x01", b"\x10\x02"] and b"new" in again.SerializeToString()


def test_completion_removes_the_properties_of_an_attempt() -> None:
    context = OffloadContext(UUID, "aws-s3", (("bucket", "b"), (OWNER, "job"), (BEGUN, "77")))
    assert (context.owner, context.begun_ms) == ("job", 77)
    done = context.completed(99)
    assert done == OffloadContext(UUID, "aws-s3", (("bucket", "b"),), complete=True, offloaded_ms=99)


@pytest.mark.parametrize("value", [b"\xff", b"\x32\x00"])
def test_bytes_that_are_not_a_context_are_refused(value: bytes) -> None:
    with pytest.raises(MetadataFormatError, match="not an offload context"):
        decode_context(value)
