"""The states of a producer of a session: unknown, being created, open, waiting for exclusive access, closed."""

import asyncio
from unittest import mock

import pytest

from quire_broker import limits
from quire_broker.errors import ServerError
from quire_broker.policies.rates import PublishRate
from quire_broker.server.broker import RunningBroker
from quire_broker.topic.message_rules import MessageRules
from quire_broker.topic.topic import Topic
from quire_broker.wire.frames import MessageFrame
from quire_broker.wire.kinds import AccessMode, Kind
from quire_broker.wire.proto import pulsar_pb2 as pb
from tests.support.broker_wire import TOPIC, Wire, kind_of_next, stored


def producer(producer_id: int = 1, request_id: int = 2, name: str = "p", **more: object) -> pb.BaseCommand:
    request = pb.CommandProducer(
        topic=TOPIC,
        producer_id=producer_id,
        request_id=request_id,
        producer_name=name,
        **more,  # type: ignore[arg-type]
    )
    return pb.BaseCommand(type=Kind.PRODUCER, producer=request)


def close(producer_id: int = 1, request_id: int = 9) -> pb.BaseCommand:
    request = pb.CommandCloseProducer(producer_id=producer_id, request_id=request_id)
    return pb.BaseCommand(type=Kind.CLOSE_PRODUCER, close_producer=request)


@pytest.fixture
async def wire(broker: RunningBroker) -> Wire:
    found = await Wire.open(broker)
    await found.lookup()
    return found


def topic_of(broker: RunningBroker) -> Topic:
    (topic,) = broker.topics.loaded
    return topic


async def nothing_more(wire: Wire) -> None:
    """The next frame is the answer to a PING: nothing was sent before it."""
    assert (await wire.answer(pb.BaseCommand(type=Kind.PING, ping=pb.CommandPing()))).type == Kind.PONG


async def test_open_the_same_id_again_gets_the_same_producer(broker: RunningBroker, wire: Wire) -> None:
    first = await wire.answer(producer(name=""))
    again = await wire.answer(producer(name="", request_id=3))
    assert again.producer_success.producer_name == first.producer_success.producer_name
    assert again.producer_success.request_id == 3
    assert len(topic_of(broker).producers.everyone) == 1


async def test_being_created_a_second_request_is_refused_for_now(broker: RunningBroker, wire: Wire) -> None:
    wire.send(producer())
    refused = await wire.answer(producer(request_id=3))
    assert (refused.error.request_id, refused.error.error) == (3, ServerError.SERVICE_NOT_READY)
    assert await kind_of_next(wire) == Kind.PRODUCER_SUCCESS


async def test_being_created_a_close_leaves_no_producer(broker: RunningBroker, wire: Wire) -> None:
    wire.send(producer())
    assert (await wire.answer(close())).success.request_id == 9
    await nothing_more(wire)
    async with asyncio.timeout(20):
        while not broker.topics.loaded or topic_of(broker).producers.everyone:  # noqa: ASYNC110  no event tells
            await asyncio.sleep(0)
    assert (await wire.answer(producer(request_id=4))).type == Kind.PRODUCER_SUCCESS


async def test_unknown_a_close_succeeds_and_a_send_ends_the_connection(wire: Wire) -> None:
    assert (await wire.answer(close(producer_id=5))).type == Kind.SUCCESS
    wire.publish(1)
    refused = await wire.next()
    assert isinstance(refused, pb.BaseCommand)
    assert "SEND of unknown producer 1" in refused.error.message
    with pytest.raises((EOFError, ConnectionResetError)):
        await wire.next()


async def test_closed_a_late_send_is_ignored(broker: RunningBroker, wire: Wire) -> None:
    await wire.answer(producer())
    await wire.answer(close())
    wire.publish(1)
    await nothing_more(wire)
    assert topic_of(broker).ledger.entries == 0


async def test_closed_by_the_broker_receipts_come_first_and_a_late_send_is_ignored(
    broker: RunningBroker, wire: Wire
) -> None:
    await wire.answer(producer())
    await stored(wire, range(3))
    wire.publish(3)
    await broker.topics.unload(topic_of(broker).name)
    kinds: list[int] = []
    while not kinds or kinds[-1] != Kind.CLOSE_PRODUCER:
        kinds.append(await kind_of_next(wire))
    assert kinds[:-1] in ([], [Kind.SEND_RECEIPT])
    wire.publish(4)
    await nothing_more(wire)


async def test_waiting_for_exclusive_access_a_producer_is_ready_when_the_holder_leaves(
    broker: RunningBroker, wire: Wire
) -> None:
    await wire.answer(producer(producer_access_mode=AccessMode.EXCLUSIVE))
    waits = await Wire.open(broker)
    first = await waits.answer(producer(name="w", producer_access_mode=AccessMode.WAIT_FOR_EXCLUSIVE))
    assert (first.type, first.producer_success.producer_ready) == (Kind.PRODUCER_SUCCESS, False)
    waits.publish(1)
    await nothing_more(waits)
    assert topic_of(broker).ledger.entries == 0, "a producer that waits publishes nothing"
    wire.send(close())
    ready = await waits.next()
    assert isinstance(ready, pb.BaseCommand)
    assert ready.producer_success.producer_ready and ready.producer_success.topic_epoch > 0
    await stored(waits, range(1, 3))


async def test_waiting_for_exclusive_access_a_fencing_producer_refuses_the_waiters(
    broker: RunningBroker, wire: Wire
) -> None:
    await wire.answer(producer(producer_access_mode=AccessMode.EXCLUSIVE))
    waits = await Wire.open(broker)
    await waits.answer(producer(name="w", producer_access_mode=AccessMode.WAIT_FOR_EXCLUSIVE))
    fences = await Wire.open(broker)
    taken = await fences.answer(producer(name="f", producer_access_mode=AccessMode.EXCLUSIVE_WITH_FENCING))
    assert taken.type == Kind.PRODUCER_SUCCESS
    refused = await waits.next()
    assert isinstance(refused, pb.BaseCommand)
    assert refused.error.error == ServerError.PRODUCER_FENCED
    assert await kind_of_next(wire) == Kind.CLOSE_PRODUCER


async def test_receipts_of_one_batch_come_in_order(wire: Wire) -> None:
    await wire.answer(producer())
    for number in range(200):
        wire.publish(number)
    receipts = [await wire.next() for _ in range(200)]
    assert not any(isinstance(each, MessageFrame) for each in receipts)
    assert [each.send_receipt.sequence_id for each in receipts] == list(range(200))  # type: ignore[union-attr]


async def test_more_producers_of_a_connection_than_the_limit_are_refused(wire: Wire) -> None:
    with mock.patch.object(limits, "PRODUCERS_PER_CONNECTION_MAX", 2):
        for number in (1, 2):
            assert (await wire.answer(producer(number, name=f"p{number}"))).type == Kind.PRODUCER_SUCCESS
        refused = await wire.answer(producer(3, name="p3"))
    assert (refused.type, "2 producers on one connection" in refused.error.message) == (Kind.ERROR, True)
    assert (await wire.answer(close(1))).type == Kind.SUCCESS
    assert (await wire.answer(producer(3, name="p3"))).type == Kind.PRODUCER_SUCCESS


async def test_a_closed_producer_is_forgotten_after_as_many_others_as_are_remembered(wire: Wire) -> None:
    with mock.patch.object(limits, "RECENTLY_CLOSED_PRODUCERS_MAX", 1):
        for number in (1, 2):
            await wire.answer(producer(number, name=f"p{number}"))
            await wire.answer(close(number))
    wire.publish(1)
    refused = await wire.next()
    assert isinstance(refused, pb.BaseCommand)
    assert "SEND of unknown producer 1" in refused.error.message


async def test_a_rate_lets_one_message_after_the_other_pass_and_none_is_lost(broker: RunningBroker, wire: Wire) -> None:
    await wire.answer(producer())
    limit = topic_of(broker).publish_limit
    limit.use(PublishRate(messages=100))
    for number in range(150):  # 50 more than the burst
        wire.publish(number)
    found = [await wire.next() for _ in range(150)]
    assert [frame.send_receipt.sequence_id for frame in found if isinstance(frame, pb.BaseCommand)] == list(range(150))
    assert limit.times > 1, "each pause lets some messages pass"
    assert topic_of(broker).stats.messages_in == 150


async def test_the_broker_has_a_rate_for_all_topics(broker: RunningBroker, wire: Wire) -> None:
    await wire.answer(producer())
    broker.parts.publish_limit.use(PublishRate(size_bytes=1))
    wire.publish(0)
    wire.publish(1)
    assert await kind_of_next(wire) == Kind.SEND_RECEIPT
    wire.publish(2)
    broker.parts.publish_limit.use(PublishRate())
    assert [await kind_of_next(wire) for _ in range(2)] == [Kind.SEND_RECEIPT] * 2


async def test_messages_that_wait_for_a_rate_are_dropped_with_their_producer(broker: RunningBroker, wire: Wire) -> None:
    await wire.answer(producer())
    topic = topic_of(broker)
    topic.publish_limit.use(PublishRate(size_bytes=1))
    wire.publish(0)
    wire.publish(1)
    assert await kind_of_next(wire) == Kind.SEND_RECEIPT
    topic.release_producer(topic.producers.connected[0])
    assert await kind_of_next(wire) == Kind.CLOSE_PRODUCER
    topic.publish_limit.use(PublishRate())
    await nothing_more(wire)
    assert topic.stats.messages_in == 1


async def test_refused_messages_are_no_traffic(broker: RunningBroker, wire: Wire) -> None:
    await wire.answer(producer())
    wire.publish(0)
    assert await kind_of_next(wire) == Kind.SEND_RECEIPT
    topic = topic_of(broker)
    topic.message_rules = MessageRules(bytes_max=1)
    wire.publish(1)
    assert await kind_of_next(wire) == Kind.SEND_ERROR
    stats = broker.parts.stats
    assert (stats.messages_in, stats.bytes_in) == (1, topic.stats.bytes_in)
