"""Clients of a broker whose etcd answers slowly, or not at all: each request is answered within its limit."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest

from quire_broker.errors import ServerError
from quire_broker.names import parse_topic
from quire_broker.server.broker import RunningBroker
from quire_broker.settings.clients import SessionSettings
from quire_broker.wire.kinds import Kind, LookupType
from quire_broker.wire.proto import pulsar_pb2 as pb
from tests.support.broker_wire import TOPIC, Wire, stored
from tests.support.etcd_broker import broker_on_etcd
from tests.support.etcd_server import EtcdServer
from tests.support.relay import Relay

LIMIT_S = 1.0


class World(NamedTuple):
    """A broker, and its way to etcd."""

    broker: RunningBroker
    relay: Relay


@pytest.fixture
async def world(etcd_server: EtcdServer, tmp_path: Path) -> AsyncIterator[World]:
    relay = Relay(etcd_server.port)
    await relay.open()
    url = f"etcd:http://127.0.0.1:{relay.port}"
    session = SessionSettings(request_s=LIMIT_S)
    async with broker_on_etcd(tmp_path, etcd_server.url, url, session=session) as running:
        yield World(running.broker, relay)
        await relay.heal()
    await relay.close()


async def warm(world: World) -> Wire:
    """A connection. The broker owns the bundle of TOPIC."""
    wire = await Wire.open(world.broker)
    assert (await wire.lookup()).response == LookupType.CONNECT
    return wire


def subscribe(topic: str) -> pb.BaseCommand:
    """A SUBSCRIBE, with the request id 3."""
    request = pb.CommandSubscribe(topic=topic, subscription="s", subType=1, consumer_id=1, request_id=3)
    return pb.BaseCommand(type=Kind.SUBSCRIBE, subscribe=request)


async def until_produced(wire: Wire) -> None:
    """Ask for a producer until there is one, as clients do."""
    async with asyncio.timeout(60):
        while (answer := await wire.produce()).type != Kind.PRODUCER_SUCCESS:
            assert answer.error.error == ServerError.SERVICE_NOT_READY, answer
            await asyncio.sleep(0.1)


async def test_a_producer_gets_an_error_in_time_and_then_the_topic(world: World) -> None:
    wire = await warm(world)
    world.relay.hold()
    refused = await asyncio.wait_for(wire.produce(), 10 * LIMIT_S)
    assert refused.type == Kind.ERROR and refused.error.request_id == 2
    assert refused.error.error == ServerError.SERVICE_NOT_READY
    assert "PRODUCER took longer than 1 s (brokerClientRequestTimeoutSeconds)" in refused.error.message
    await world.relay.heal()
    await until_produced(wire)
    await stored(wire, range(3))
    topic = world.broker.topics.find(parse_topic(TOPIC))
    assert topic is not None and len(topic.producers.everyone) == 1, "the one that was not answered is gone"


async def test_consumers_and_lookups_get_errors_in_time(world: World) -> None:
    wire = await warm(world)
    world.relay.hold()
    wire.send(subscribe(TOPIC))
    other = pb.CommandLookupTopic(topic="persistent://public/other/t", request_id=4)
    wire.send(pb.BaseCommand(type=Kind.LOOKUP, lookup=other))
    asked = pb.CommandPartitionedTopicMetadata(topic="persistent://public/default/p", request_id=5)
    wire.send(pb.BaseCommand(type=Kind.PARTITIONED_METADATA, partition_metadata=asked))
    answers = [await asyncio.wait_for(wire.next(), 10 * LIMIT_S) for _ in range(3)]
    by_kind = {answer.type: answer for answer in answers if isinstance(answer, pb.BaseCommand)}
    assert by_kind[Kind.ERROR].error.request_id == 3
    assert by_kind[Kind.LOOKUP_RESPONSE].lookup_response.response == LookupType.FAILED
    assert (
        by_kind[Kind.PARTITIONED_METADATA_RESPONSE].partition_metadata_response.error == ServerError.SERVICE_NOT_READY
    )
    await world.relay.heal()
    async with asyncio.timeout(60):
        while (answer := await wire.answer(subscribe(TOPIC))).type != Kind.SUCCESS:
            assert isinstance(answer, pb.BaseCommand) and answer.error.error == ServerError.SERVICE_NOT_READY, answer
            await asyncio.sleep(0.1)
    topic = world.broker.topics.find(parse_topic(TOPIC))
    assert topic is not None and len(topic.subscriptions["s"].consumers) == 1


async def test_many_producers_at_once_are_all_answered_while_etcd_is_slow(world: World) -> None:
    await warm(world)
    world.relay.delay(0.2)
    wires = [await Wire.open(world.broker) for _ in range(40)]

    async def produce(number: int) -> pb.BaseCommand:
        request = pb.CommandProducer(topic=f"{TOPIC}-{number}", producer_id=1, request_id=2)
        command = pb.BaseCommand(type=Kind.PRODUCER, producer=request)
        return await asyncio.wait_for(wires[number].answer(command), 10 * LIMIT_S)

    answers = await asyncio.gather(*(produce(number) for number in range(40)))
    assert {answer.type for answer in answers} <= {Kind.PRODUCER_SUCCESS, Kind.ERROR}
    await world.relay.heal()
