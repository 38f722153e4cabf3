"""The state table of a session: what each command does before and after CONNECT, and how requests are answered."""

import asyncio

import pytest

from quire_broker.errors import ServerError
from quire_broker.limits import CLIENT_VERSION_CHARACTERS_MAX
from quire_broker.server.broker import RunningBroker
from quire_broker.wire.frames import encode
from quire_broker.wire.kinds import PROTOCOL_VERSION, Kind
from quire_broker.wire.proto import pulsar_pb2 as pb
from tests.support.broker_wire import TOPIC, Wire

CONNECT = pb.BaseCommand(type=Kind.CONNECT, connect=pb.CommandConnect(client_version="t", protocol_version=20))
PING = pb.BaseCommand(type=Kind.PING, ping=pb.CommandPing())


async def ends(wire: Wire) -> bool:
    """Return whether the broker ends the connection without another frame."""
    try:
        await wire.next()
    except (EOFError, ConnectionResetError):
        return True
    return False


@pytest.mark.parametrize(
    "command",
    [
        PING,
        pb.BaseCommand(type=Kind.LOOKUP, lookup=pb.CommandLookupTopic(topic=TOPIC, request_id=1)),
        pb.BaseCommand(type=Kind.SEND, send=pb.CommandSend(producer_id=1, sequence_id=1)),
    ],
    ids=["PING", "LOOKUP", "SEND"],
)
async def test_before_connect_any_other_command_closes_without_an_answer(
    broker: RunningBroker, command: pb.BaseCommand
) -> None:
    wire = await Wire.reach(broker.port)
    wire.send(command)
    assert await ends(wire)


async def test_connect_answers_the_lower_protocol_version_and_the_largest_message(broker: RunningBroker) -> None:
    wire = await Wire.reach(broker.port)
    connected = (await wire.connect()).connected
    assert connected.protocol_version == min(20, PROTOCOL_VERSION)
    assert connected.max_message_size > 0
    future = await Wire.reach(broker.port)
    request = pb.CommandConnect(client_version="t", protocol_version=1000)
    answer = await future.answer(pb.BaseCommand(type=Kind.CONNECT, connect=request))
    assert answer.connected.protocol_version == PROTOCOL_VERSION


@pytest.mark.parametrize("longer", [0, 1])
async def test_the_version_of_a_client_is_kept_up_to_the_limit(broker: RunningBroker, longer: int) -> None:
    kept = "v" * CLIENT_VERSION_CHARACTERS_MAX
    wire = await Wire.reach(broker.port)
    request = pb.CommandConnect(client_version=kept + "w" * longer, protocol_version=20)
    await wire.answer(pb.BaseCommand(type=Kind.CONNECT, connect=request))
    await wire.lookup()
    assert (await wire.produce()).type == Kind.PRODUCER_SUCCESS
    (topic,) = broker.topics.loaded
    (producer,) = topic.producers.everyone
    assert producer.link.client_version == kept


async def test_a_second_connect_gets_the_reason_and_ends_the_connection(broker: RunningBroker) -> None:
    wire = await Wire.open(broker)
    refused = await wire.answer(CONNECT)
    assert refused.type == Kind.ERROR
    assert "second CONNECT" in refused.error.message
    assert await ends(wire)


async def test_a_command_of_brokers_gets_the_reason_and_ends_the_connection(broker: RunningBroker) -> None:
    wire = await Wire.open(broker)
    refused = await wire.answer(pb.BaseCommand(type=Kind.SUCCESS, success=pb.CommandSuccess(request_id=1)))
    assert refused.type == Kind.ERROR
    assert "unknown command type" in refused.error.message
    assert await ends(wire)


async def test_ping_is_answered_and_pong_is_not(broker: RunningBroker) -> None:
    wire = await Wire.open(broker)
    wire.send(pb.BaseCommand(type=Kind.PONG, pong=pb.CommandPong()))
    assert (await wire.answer(PING)).type == Kind.PONG


async def test_a_refused_request_is_answered_and_the_connection_stays(broker: RunningBroker) -> None:
    wire = await Wire.open(broker)
    request = pb.CommandProducer(topic="not a topic://", producer_id=1, request_id=7)
    refused = await wire.answer(pb.BaseCommand(type=Kind.PRODUCER, producer=request))
    assert (refused.type, refused.error.request_id) == (Kind.ERROR, 7)
    assert (await wire.answer(PING)).type == Kind.PONG


async def test_a_request_with_a_value_that_the_protocol_lacks_is_answered_and_ends_the_connection(
    broker: RunningBroker,
) -> None:
    wire = await Wire.open(broker)
    await wire.lookup()
    request = pb.CommandProducer(topic=TOPIC, producer_id=1, request_id=7, producer_access_mode=99)
    refused = await wire.answer(pb.BaseCommand(type=Kind.PRODUCER, producer=request))
    assert (refused.type, refused.error.request_id) == (Kind.ERROR, 7)
    assert "unknown producer access mode 99" in refused.error.message
    assert await ends(wire)


async def test_more_requests_at_once_than_the_limit_are_refused_and_the_others_answered(
    broker: RunningBroker,
) -> None:
    wire = await Wire.open(broker)
    limit = broker.parts.settings.requests_max
    lookups = [
        pb.BaseCommand(type=Kind.LOOKUP, lookup=pb.CommandLookupTopic(topic=TOPIC, request_id=number))
        for number in range(limit + 5)
    ]
    wire.writer.write(b"".join(map(encode, lookups)))
    answers = [await wire.next() for _ in lookups]
    refused = [
        each.lookup_response
        for each in answers
        if isinstance(each, pb.BaseCommand) and each.lookup_response.HasField("error")
    ]
    assert [each.error for each in refused] == [ServerError.TOO_MANY_REQUESTS] * 5
    assert len({each.request_id for each in refused}) == 5


async def test_a_lost_connection_removes_its_producers_and_consumers(broker: RunningBroker) -> None:
    wire = await Wire.open(broker)
    await wire.lookup()
    await wire.produce()
    subscribe = pb.CommandSubscribe(topic=TOPIC, subscription="s", subType=0, consumer_id=1, request_id=3)
    assert (await wire.answer(pb.BaseCommand(type=Kind.SUBSCRIBE, subscribe=subscribe))).type == Kind.SUCCESS
    (topic,) = broker.topics.loaded
    assert topic.producers.everyone and topic.subscriptions["s"].consumers
    wire.writer.transport.abort()
    async with asyncio.timeout(20):
        while topic.producers.everyone or topic.subscriptions["s"].consumers:  # noqa: ASYNC110  no event tells
            await asyncio.sleep(0)
