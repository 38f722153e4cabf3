"""A producer of one topic keeps every message that it takes until a receipt or an error, whatever else happens."""

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from quire_bookie.errors import ConfigError
from quire_bookie.model import Buffer
from quire_broker.errors import ServerError
from quire_broker.wire.kinds import Kind
from quire_broker.wire.proto import pulsar_pb2 as pb
from quire_client import BrokerRefusedError, ConnectionLostError, Extra, MessageId, ProducerOptions, UnconfirmedError
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


async def test_a_producer_that_the_broker_closes_with_its_answer_registers_again() -> None:
    async def close_at_once(connection: _Connection, body: Any) -> None:
        connection._call_back(Kind.CLOSE_PRODUCER, body.producer_id, pb.CommandCloseProducer())

    await check_that_it_registers_again(close_at_once)


async def test_a_producer_whose_connection_ends_with_the_answer_registers_again() -> None:
    async def end_at_once(connection: _Connection, body: Any) -> None:
        connection.fail(ConnectionLostError("gone"))

    await check_that_it_registers_again(end_at_once)


async def check_that_it_registers_again(trouble: Any) -> None:
    brokers = _Brokers(None, trouble)
    producer = await opened(brokers)
    producer.add(b"m")
    producer.send_batch()
    brokers.connections[0].fail(ConnectionLostError("gone"))
    assert producer._task is not None
    await asyncio.wait_for(producer._task, WAIT_S)
    assert brokers.taken == 3
    assert b"m" in b"".join(bytes(each) for each in brokers.connections[2].written)


async def test_an_opening_that_is_cancelled_closes_on_the_broker_and_never_comes_back() -> None:
    asked = asyncio.Event()

    async def wait(connection: _Connection, body: Any) -> None:
        asked.set()
        await asyncio.Event().wait()

    brokers = _Brokers(wait)
    connection = brokers.connections[0]
    begun: list[str] = []

    def begin(kind: Kind, field: str, body: Any) -> "asyncio.Future[Any]":
        begun.append(field)
        return asyncio.Future()

    connection.begin = begin  # type: ignore[method-assign]
    producer = TopicProducer(brokers, "t", ProducerOptions())
    opening = asyncio.ensure_future(producer.open())
    await asked.wait()
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert begun == ["close_producer"]
    connection.fail(ConnectionLostError("gone"))
    assert producer._task is None


async def test_who_waits_for_a_socket_goes_on_when_another_replaces_it() -> None:
    brokers = _Brokers(None)
    producer = await opened(brokers)
    brokers.connections[0].pause_writing()
    waiting = asyncio.ensure_future(producer.until_ready())
    await asyncio.sleep(0)
    assert not waiting.done()
    brokers.connections[0].fail(ConnectionLostError("gone"))
    await asyncio.wait_for(waiting, WAIT_S)


async def test_an_unexpected_error_of_a_reconnect_ends_the_producer_with_its_messages() -> None:
    async def break_down(connection: _Connection, body: Any) -> None:
        raise UnicodeError("label too long")

    brokers = _Brokers(None, break_down)
    producer = await opened(brokers)
    done: list[object] = []
    producer.add(b"m", on_done=done.append)
    producer.send_batch()
    brokers.connections[0].fail(ConnectionLostError("gone"))
    assert producer._task is not None
    with pytest.raises(UnicodeError):
        await asyncio.wait_for(producer._task, WAIT_S)
    assert "label too long" in str(done[0])
    with pytest.raises(BrokerRefusedError, match="label too long"):
        await producer.until_ready()


async def test_a_topic_that_refuses_again_and_again_is_asked_after_growing_pauses() -> None:
    brokers = _Brokers(*[None] * 5)
    brokers.options = ClientOptions(backoff_s=(0.001, 0.1))
    producer = await opened(brokers)
    producer.add(b"m")
    producer.send_batch()
    waits: list[float] = []
    grow = producer._backoff.grow

    def grown() -> float:
        waits.append(grow())
        return waits[-1]

    producer._backoff.grow = grown  # type: ignore[method-assign]
    for _ in range(4):
        producer._on_send_error(pb.CommandSendError(producer_id=1, sequence_id=0, error=ServerError.PERSISTENCE))
        assert producer._task is not None
        await asyncio.wait_for(producer._task, WAIT_S)
    assert brokers.taken == 5
    assert len(waits) == 4
    assert waits[3] > waits[0]


async def test_every_flush_that_waits_learns_that_a_message_is_not_stored() -> None:
    producer = await opened(_Brokers())
    producer.add(b"m")
    flushes = [asyncio.ensure_future(producer.flush()) for _ in range(2)]
    await asyncio.sleep(0)
    producer._fail_pending(UnconfirmedError("no receipt"))
    found = await asyncio.wait_for(asyncio.gather(*flushes, return_exceptions=True), WAIT_S)
    assert [type(each) for each in found] == [UnconfirmedError, UnconfirmedError]
    await producer.flush()  # it was reported
