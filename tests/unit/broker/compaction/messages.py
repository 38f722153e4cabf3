"""Entries with keys for tests of compaction, and what a consumer with readCompacted gets of a topic."""

import asyncio
from collections.abc import Sequence
from typing import Any

from quire_broker.compression import Codec, compress
from quire_broker.dispatch.delivery import ConsumerSpec
from quire_broker.managed_ledger.cursors.ack_set import full_mask, unacked_mask
from quire_broker.managed_ledger.position import EARLIEST, Position
from quire_broker.topic.topic import Topic
from quire_broker.wire.entry import peek, seal
from quire_broker.wire.kinds import SubscriptionType
from quire_broker.wire.payload import messages_of
from quire_broker.wire.proto.pulsar_pb2 import MessageMetadata, SingleMessageMetadata
from tests.unit.broker.dispatch.doubles import Link

Keyed = tuple[str | None, bytes]


def entry(key: str | None, value: bytes, **metadata: Any) -> bytes:
    """Return an entry with one message."""
    fields = MessageMetadata(
        producer_name="p", sequence_id=1, publish_time=1, **{"uncompressed_size": len(value), **metadata}
    )
    if key is not None:
        fields.partition_key = key
    return seal(fields, value)


def batch(messages: Sequence[Keyed], *, codec: Codec = Codec.NONE, **metadata: Any) -> bytes:
    """Return an entry with a batch."""
    payload = b""
    for key, value in messages:
        single = SingleMessageMetadata(payload_size=len(value))
        if key is not None:
            single.partition_key = key
        encoded = single.SerializeToString()
        payload += len(encoded).to_bytes(4, "big") + encoded + value
    fields = MessageMetadata(
        producer_name="p",
        sequence_id=1,
        publish_time=1,
        num_messages_in_batch=len(messages),
        uncompressed_size=len(payload),
        compression=int(codec),
        **metadata,
    )
    return seal(fields, compress(payload, codec))


def unpacked(data: bytes) -> list[Keyed]:
    """Return keys and values of an entry as a client sees them."""
    return [(message.key, message.payload) for message in messages_of(data)]


async def received(topic: Topic, start: Position = EARLIEST, *, compacted: bool = True) -> list[Keyed]:
    """Return what a reader gets from `start` to the end. Checks that each delivery tells which messages it has."""
    link = Link()
    subscription = await topic.reader_subscription("reader-of-the-test", start)
    spec = ConsumerSpec(1, "c", SubscriptionType.EXCLUSIVE, durable=False, start=start, read_compacted=compacted)
    consumer = await subscription.add_consumer(spec, link)
    subscription.flow(consumer, 100_000)
    told = -1
    while told != len(link.deliveries):
        told = len(link.deliveries)
        await asyncio.sleep(1)
    await subscription.remove_consumer(consumer)
    await topic.consumer_left(subscription)
    found: list[Keyed] = []
    for _, delivery in link.deliveries:
        messages = unpacked(bytes(delivery.data))
        if delivery.ack_set is not None:
            left = unacked_mask(delivery.ack_set)
            assert left.bit_count() == len(messages) and left != full_mask(peek(delivery.data).num_messages)
        found += messages
    positions = [delivery.position for _, delivery in link.deliveries]
    assert positions == sorted(set(positions)), "in order, each entry once"
    return found


def values(messages: Sequence[Keyed]) -> dict[str | None, bytes]:
    """Return the latest value of each key; an empty value deletes its key."""
    found: dict[str | None, bytes] = {}
    for key, value in messages:
        found[key] = value
        if not value:
            del found[key]
    return found
