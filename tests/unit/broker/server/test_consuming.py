"""The states of a consumer of a session, and the work that the ids of one ACK may cost."""

import asyncio
from unittest import mock

import pytest

from quire_bookie.errors import PeerProtocolError
from quire_broker import limits
from quire_broker.dispatch.delivery import AckId
from quire_broker.errors import ServerError
from quire_broker.limits import BATCH_MESSAGES_MAX
from quire_broker.managed_ledger.position import Position
from quire_broker.server.broker import RunningBroker
from quire_broker.server.consuming import _part_of_batch
from quire_broker.topic.topic import Topic
from quire_broker.wire.frames import MessageFrame
from quire_broker.wire.kinds import Kind
from quire_broker.wire.proto import pulsar_pb2 as pb
from tests.support.broker_wire import TOPIC, Wire, kind_of_next, stored

PING = pb.BaseCommand(type=Kind.PING, ping=pb.CommandPing())


def subscribe(consumer_id: int = 1, request_id: int = 3, name: str = "s", **more: object) -> pb.BaseCommand:
    request = pb.CommandSubscribe(
        topic=TOPIC,
        subscription=name,
        subType=1,
        consumer_id=consumer_id,
        request_id=request_id,
        initialPosition=1,
        **more,  # type: ignore[arg-type]
    )
    return pb.BaseCommand(type=Kind.SUBSCRIBE, subscribe=request)


def close(consumer_id: int = 1, request_id: int = 9) -> pb.BaseCommand:
    request = pb.CommandCloseConsumer(consumer_id=consumer_id, request_id=request_id)
    return pb.BaseCommand(type=Kind.CLOSE_CONSUMER, close_consumer=request)


def flow(permits: int, consumer_id: int = 1) -> pb.BaseCommand:
    return pb.BaseCommand(type=Kind.FLOW, flow=pb.CommandFlow(consumer_id=consumer_id, messagePermits=permits))


def ack(*ids: pb.MessageIdData, request_id: int | None = None) -> pb.BaseCommand:
    request = pb.CommandAck(consumer_id=1, ack_type=0, message_id=ids, request_id=request_id)
    return pb.BaseCommand(type=Kind.ACK, ack=request)


@pytest.fixture
async def wire(broker: RunningBroker) -> Wire:
    """A connection; the topic has ten messages."""
    found = await Wire.open(broker)
    await found.lookup()
    await found.produce()
    await stored(found, range(10))
    return found


def topic_of(broker: RunningBroker) -> Topic:
    (topic,) = broker.topics.loaded
    return topic


async def messages(wire: Wire, count: int) -> list[MessageFrame]:
    found = [await wire.next() for _ in range(count)]
    return [each for each in found if isinstance(each, MessageFrame)]


async def test_open_the_same_id_again_succeeds_and_adds_no_consumer(broker: RunningBroker, wire: Wire) -> None:
    assert (await wire.answer(subscribe())).success.request_id == 3
    assert (await wire.answer(subscribe(request_id=4))).success.request_id == 4
    assert len(topic_of(broker).subscriptions["s"].consumers) == 1


async def test_being_created_a_second_request_is_refused_for_now(wire: Wire) -> None:
    wire.send(subscribe())
    refused = await wire.answer(subscribe(request_id=4))
    assert (refused.error.request_id, refused.error.error) == (4, ServerError.SERVICE_NOT_READY)
    assert await kind_of_next(wire) == Kind.SUCCESS


async def test_being_created_a_close_leaves_no_consumer(broker: RunningBroker, wire: Wire) -> None:
    wire.send(subscribe())
    assert (await wire.answer(close())).success.request_id == 9
    async with asyncio.timeout(20):
        while "s" not in topic_of(broker).subscriptions:  # noqa: ASYNC110  no event tells
            await asyncio.sleep(0)
    assert (await wire.answer(subscribe(request_id=5))).success.request_id == 5
    assert len(topic_of(broker).subscriptions["s"].consumers) == 1, "only the later one"


async def test_nothing_is_delivered_before_permits_and_no_more_than_they_allow(wire: Wire) -> None:
    await wire.answer(subscribe())
    assert (await wire.answer(PING)).type == Kind.PONG
    wire.send(flow(4))
    assert [bytes(each.entry)[-2:] for each in await messages(wire, 4)] == [b"m0", b"m1", b"m2", b"m3"]
    assert (await wire.answer(PING)).type == Kind.PONG


async def test_unknown_flow_ack_and_redelivery_change_nothing_and_requests_are_refused(wire: Wire) -> None:
    wire.send(flow(10))
    wire.send(ack(pb.MessageIdData(ledgerId=0, entryId=0)))
    redeliver = pb.CommandRedeliverUnacknowledgedMessages(consumer_id=1)
    wire.send(pb.BaseCommand(type=Kind.REDELIVER, redeliver=redeliver))
    assert (await wire.answer(PING)).type == Kind.PONG
    answered = await wire.answer(ack(pb.MessageIdData(ledgerId=0, entryId=0), request_id=5))
    assert answered.ack_response.error == ServerError.CONSUMER_NOT_FOUND
    unsubscribe = pb.CommandUnsubscribe(consumer_id=1, request_id=6)
    refused = await wire.answer(pb.BaseCommand(type=Kind.UNSUBSCRIBE, unsubscribe=unsubscribe))
    assert (refused.error.request_id, refused.error.error) == (6, ServerError.CONSUMER_NOT_FOUND)
    assert (await wire.answer(close())).type == Kind.SUCCESS


async def test_an_acknowledged_message_is_not_delivered_to_the_next_consumer(wire: Wire) -> None:
    await wire.answer(subscribe())
    wire.send(flow(10))
    delivered = await messages(wire, 10)
    position = delivered[4].command.message.message_id
    answered = await wire.answer(
        ack(pb.MessageIdData(ledgerId=position.ledgerId, entryId=position.entryId), request_id=5)
    )
    assert not answered.ack_response.HasField("error")
    await wire.answer(close())
    await wire.answer(subscribe(request_id=6))
    wire.send(flow(20))
    again = await messages(wire, 9)
    assert [bytes(each.entry)[-1:] for each in again] == [b"0", b"1", b"2", b"3", b"5", b"6", b"7", b"8", b"9"]


async def test_an_acknowledgement_in_a_transaction_is_refused(wire: Wire) -> None:
    await wire.answer(subscribe())
    request = ack(pb.MessageIdData(ledgerId=0, entryId=0), request_id=5)
    request.ack.txnid_most_bits = 1
    assert (await wire.answer(request)).ack_response.error == ServerError.NOT_ALLOWED


async def test_seek_closes_the_consumer_and_the_next_one_begins_there(wire: Wire) -> None:
    await wire.answer(subscribe())
    wire.send(flow(10))
    target = (await messages(wire, 10))[7].command.message.message_id
    seek = pb.CommandSeek(
        consumer_id=1, request_id=5, message_id=pb.MessageIdData(ledgerId=target.ledgerId, entryId=target.entryId)
    )
    wire.send(pb.BaseCommand(type=Kind.SEEK, seek=seek))
    assert {await kind_of_next(wire), await kind_of_next(wire)} == {Kind.CLOSE_CONSUMER, Kind.SUCCESS}
    await wire.answer(subscribe(request_id=6))
    wire.send(flow(10))
    assert [bytes(each.entry)[-1:] for each in await messages(wire, 3)] == [b"7", b"8", b"9"]


async def test_a_seek_without_a_target_is_refused(wire: Wire) -> None:
    await wire.answer(subscribe())
    refused = await wire.answer(pb.BaseCommand(type=Kind.SEEK, seek=pb.CommandSeek(consumer_id=1, request_id=5)))
    assert refused.error.error == ServerError.NOT_ALLOWED


async def test_unsubscribe_deletes_the_subscription(broker: RunningBroker, wire: Wire) -> None:
    await wire.answer(subscribe())
    unsubscribe = pb.CommandUnsubscribe(consumer_id=1, request_id=6)
    assert (await wire.answer(pb.BaseCommand(type=Kind.UNSUBSCRIBE, unsubscribe=unsubscribe))).type == Kind.SUCCESS
    assert not topic_of(broker).subscriptions


async def test_more_consumers_of_a_connection_than_the_limit_are_refused(wire: Wire) -> None:
    with mock.patch.object(limits, "CONSUMERS_PER_CONNECTION_MAX", 2):
        for number in (1, 2):
            assert (await wire.answer(subscribe(number))).type == Kind.SUCCESS
        refused = await wire.answer(subscribe(3))
    assert (refused.type, "2 consumers on one connection" in refused.error.message) == (Kind.ERROR, True)
    await wire.answer(close(1))
    assert (await wire.answer(subscribe(3))).type == Kind.SUCCESS


async def test_a_subscription_type_that_the_protocol_lacks_ends_the_connection(wire: Wire) -> None:
    command = subscribe()
    command.subscribe.subType = 9
    refused = await wire.answer(command)
    assert "malformed SUBSCRIBE" in refused.error.message
    with pytest.raises((EOFError, ConnectionResetError)):
        await wire.next()


def test_a_part_of_a_batch_keeps_its_words() -> None:
    item = pb.MessageIdData(ledgerId=1, entryId=2, ack_set=[-1, 3], batch_size=70)
    assert _part_of_batch(item) == AckId(Position(1, 2), (-1, 3), 70)
    largest = pb.MessageIdData(ledgerId=1, entryId=2, ack_set=[0] * (BATCH_MESSAGES_MAX // 64))
    assert len(_part_of_batch(largest).ack_set) == 16_384


@pytest.mark.parametrize(
    ("words", "batch_size", "messages"),
    [(1, 2**31 - 1, 2**31 - 1), (1, BATCH_MESSAGES_MAX + 1, BATCH_MESSAGES_MAX + 1), (16_385, 3, 16_385 * 64)],
)
def test_a_batch_that_no_entry_can_hold_is_refused(words: int, batch_size: int, messages: int) -> None:
    item = pb.MessageIdData(ledgerId=1, entryId=2, ack_set=[7] * words, batch_size=batch_size)
    with pytest.raises(PeerProtocolError, match=f"ACK of a batch of {messages} messages; an entry has at most 1048576"):
        _part_of_batch(item)
