"""The trace context of a client, in entries as its producers make them."""

import pytest

from quire_bookie.spans import TRACEPARENT, TraceContext
from quire_broker.compression import Codec, compress
from quire_broker.wire.entry import broker_metadata, seal
from quire_broker.wire.payload import batch_of
from quire_broker.wire.proto.pulsar_pb2 import EncryptionKeys, KeyValue, MessageMetadata
from quire_broker.wire.trace_context import context_in

CLIENT = TraceContext(0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7)
TRACED = {"a": "b", TRACEPARENT: CLIENT.traceparent}


def single(properties: dict[str, str], size: int = 10) -> bytes:
    metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
    metadata.properties.extend(KeyValue(key=key, value=value) for key, value in properties.items())
    return seal(metadata, bytes(size))


def batch(properties: dict[str, str], codec: int = Codec.NONE, size: int = 10, messages: int = 3) -> bytes:
    payload = batch_of([bytes(size)] * messages, key=None, properties=properties)
    metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, num_messages_in_batch=messages)
    if codec != Codec.NONE:
        metadata.compression, metadata.uncompressed_size = codec, len(payload)
        payload = compress(payload, codec)
    return seal(metadata, payload)


@pytest.mark.parametrize(
    "entry",
    [single(TRACED), batch(TRACED), batch(TRACED, Codec.ZSTD), single(TRACED, 3_000_000)],
    ids=["single", "batch", "compressed batch", "large message"],
)
def test_the_context_of_a_client_is_found(entry: bytes) -> None:
    assert context_in(entry) == context_in(memoryview(entry)) == CLIENT
    assert context_in((broker_metadata(5, 7), entry)) == CLIENT, "behind what a broker adds"


@pytest.mark.parametrize(
    "entry",
    [
        single({}),
        single({"a": TRACEPARENT}),
        single({TRACEPARENT: CLIENT._replace(sampled=False).traceparent}),
        single({TRACEPARENT: "00-zz"}),
        single({"filler": "x" * 300_000, TRACEPARENT: CLIENT.traceparent}),
        batch({}),
        batch({"a": TRACEPARENT}),
        batch({}, Codec.ZSTD),
        batch(TRACED, size=100_000),
        batch(TRACED, Codec.ZSTD, size=100_000),
        b"",
        b"no entry of Pulsar",
        single(TRACED)[:40],
        batch(TRACED)[:-3],
    ],
    ids=[
        *("plain", "another property", "not recorded", "malformed", "metadata too large", "plain batch"),
        *("batch with another property", "compressed batch", "large batch", "large when decompressed"),
        *("empty", "foreign", "cut metadata", "cut batch"),
    ],
)
def test_an_entry_without_a_recorded_readable_context_has_none(entry: bytes) -> None:
    found = context_in(entry)
    assert found is None or entry == batch(TRACED)[:-3]  # whose first message is whole


def test_an_encrypted_batch_is_not_read() -> None:
    metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, num_messages_in_batch=1)
    metadata.encryption_keys.append(EncryptionKeys(key="k", value=b"v"))
    assert context_in(seal(metadata, batch_of([b"x"], key=None, properties=TRACED))) is None
