"""Close commands name the new owner as the client sees it: at the default addresses, or at those of its listener."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from quire_broker.names import parse_topic
from quire_broker.ownership.listeners import Binding, Listener
from quire_broker.server.broker import BrokerSettings, RunningBroker
from quire_broker.server.handover import moved_to
from quire_broker.wire.kinds import Kind, LookupType
from quire_broker.wire.proto import pulsar_pb2 as pb
from tests.support.broker_wire import TOPIC, Wire, stored
from tests.support.broker_world import BrokerWorld, running_brokers

EXTERNAL = Binding("external", "127.0.0.1", 0, tls=False)


def address(number: int) -> str:
    return f"pulsar://broker-{number}.example:6650"


@asynccontextmanager
async def pair(folder: Path, *bindings: Binding) -> AsyncIterator[BrokerWorld]:
    """Two brokers with the listener `external`, which has ports as given."""

    def of_broker(number: int, common: BrokerSettings) -> BrokerSettings:
        return replace(common, listeners=(Listener("external", address(number)),), bindings=bindings)

    async with running_brokers(folder, 2, of_broker=of_broker) as world:
        yield world


async def producer(port: int) -> Wire:
    """A producer of TOPIC at a port of its owner, with stored messages."""
    wire = await Wire.reach(port)
    assert (await wire.connect()).type == Kind.CONNECTED
    assert (await wire.produce()).type == Kind.PRODUCER_SUCCESS
    await stored(wire, range(3))
    return wire


async def own(broker: RunningBroker) -> None:
    """Let a broker take the bundle of TOPIC."""
    await (await Wire.open(broker)).lookup()


async def named(wire: Wire) -> str | None:
    """The address in the CLOSE_PRODUCER or CLOSE_CONSUMER that comes next."""
    frame = await wire.next()
    assert isinstance(frame, pb.BaseCommand)
    assert frame.type in (Kind.CLOSE_PRODUCER, Kind.CLOSE_CONSUMER), frame
    body = frame.close_producer if frame.type == Kind.CLOSE_PRODUCER else frame.close_consumer
    return str(body.assignedBrokerServiceUrl) if body.HasField("assignedBrokerServiceUrl") else None


@pytest.mark.parametrize("is_external", [True, False])
async def test_clients_are_sent_to_the_address_of_the_listener_whose_port_they_use(
    tmp_path: Path, is_external: bool
) -> None:
    async with pair(tmp_path, EXTERNAL) as world:
        first, second = world.brokers
        await own(first)
        wire = await producer(first.ports.bound[0] if is_external else first.port)
        (bundle,) = first.owners.held
        await first.unload_bundle(bundle, second.broker_id)
        assert await named(wire) == (address(1) if is_external else second.urls.native)


async def test_a_reloaded_topic_is_at_the_same_address(tmp_path: Path) -> None:
    async with pair(tmp_path, EXTERNAL) as world:
        first = world.brokers[0]
        await own(first)
        wire = await producer(first.ports.bound[0])
        await first.topics.reload(parse_topic(TOPIC), moved_to(first.urls))
        assert await named(wire) == address(0)


async def test_without_ports_of_their_own_clients_look_their_topic_up(tmp_path: Path) -> None:
    async with pair(tmp_path) as world:
        first, second = world.brokers
        await own(first)
        wire = await producer(first.port)
        (bundle,) = first.owners.held
        await first.unload_bundle(bundle, second.broker_id)
        assert await named(wire) is None, "it may be a client of the listener"


async def test_lookups_at_the_port_of_a_listener_need_not_name_it(tmp_path: Path) -> None:
    async with pair(tmp_path, EXTERNAL) as world:
        first = world.brokers[0]
        await own(first)
        for port, name, expected in (
            (first.ports.bound[0], "", address(0)),
            (first.port, "", first.urls.native),
            (first.port, "external", address(0)),
        ):
            wire = await Wire.reach(port)
            await wire.connect()
            asked = pb.CommandLookupTopic(topic=TOPIC, request_id=1, advertised_listener_name=name)
            found = (await wire.answer(pb.BaseCommand(type=Kind.LOOKUP, lookup=asked))).lookup_response
            assert (found.response, found.brokerServiceUrl) == (LookupType.CONNECT, expected)
