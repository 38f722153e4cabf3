"""A producer of one topic keeps every message that it takes until a receipt or an error, whatever else happens."""

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from quire_bookie.errors import ConfigError
from quire_bookie.model import Buffer
from quire_broker.wire.proto import pulsar_pb2 as pb
from quire_client import Extra, MessageId, ProducerOptions
from quire_client.brokers import Brokers
from quire_client.connection import Connection
from quire_client.options import ClientOptions
from quire_client.topic_producer import TopicProducer

WAIT_S = 10.0


class _Connection(Connection):
    """Registers every producer at once, and keeps what is written."""

    def __init__(self, options: ClientOptions, after: Any = None) -> None:
        super().__init__(Brokers("pulsar://a:1")._access, options)
        self.connected.set_result(0)
        self.written: list[Buffer] = []
        self.asked: list[tuple[str, Any]] = []
        self.after = after

    def write_all(self, parts: Iterable[Buffer]) -> None:
        self.written += parts

    async def ask(self, kind: Any, field: str, body: Any) -> Any:
        self.asked.append((field, body))
        if self.after is not None:
            await self.after(self, body)
        return pb.CommandProducerSuccess(request_id=1, producer_name="p", last_sequence_id=-1)


class _Brokers(Brokers):
    """Gives one connection after the other."""

    def __init__(self, *after: Any) -> None:
        super().__init__("pulsar://a:1", options=ClientOptions(backoff_s=(0.001, 0.001)))
        self.connections = [_Connection(self.options, each) for each in (*after, None)]
        self.taken = 0

    async def owner(self, topic: str) -> Connection:
        found = self.connections[min(self.taken, len(self.connections) - 1)]
        self.taken += 1
        return found


async def opened(brokers: Brokers, options: ProducerOptions | None = None) -> TopicProducer:
    producer = TopicProducer(brokers, "t", options or ProducerOptions())
    await producer.open()
    return producer


def confirm(producer: TopicProducer, sequence_id: int) -> None:
    receipt = pb.CommandSendReceipt(producer_id=1, sequence_id=sequence_id)
    receipt.message_id.ledgerId, receipt.message_id.entryId = 1, sequence_id
    producer._on_receipt(receipt)


@pytest.mark.parametrize(
    "extra",
    [Extra(key="\udcff"), Extra(properties={"a": "\udcff"}), Extra(event_time_ms=-1), Extra(deliver_at_ms=1 << 70)],
)
@pytest.mark.parametrize("before", [0, 1])
async def test_a_message_that_cannot_be_encoded_harms_no_other_one(extra: Extra, before: int) -> None:
    brokers = _Brokers()
    producer = await opened(brokers)
    done: list[object] = []
    for _ in range(before):
        producer.add(b"before", on_done=done.append)
    with pytest.raises(ConfigError, match="cannot be encoded"):
        producer.add(b"bad", extra, done.append)
    producer.add(b"after", on_done=done.append)
    producer.send_batch()
    assert b"after" in b"".join(bytes(each) for each in brokers.connections[0].written)
    for sent in list(producer._pending):
        confirm(producer, sent.sequence_id)
    await asyncio.wait_for(producer.flush(), WAIT_S)
    assert len(done) == before + 1
    assert all(isinstance(each, MessageId) for each in done)
    assert producer._pending_messages == producer._pending_bytes == 0
