"""How many requests to a real etcd the opening of a topic takes, and how many of them wait for each other."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from quire_bookie.metadata.etcd.connection import EtcdConnection, Method
from quire_broker.names import parse_topic
from quire_broker.server.broker import RunningBroker
from quire_broker.wire.kinds import Kind
from quire_broker.wire.proto import pulsar_pb2 as pb
from tests.support.broker_wire import TOPIC, Wire, received, stored
from tests.support.etcd_broker import broker_on_etcd
from tests.support.etcd_server import EtcdServer

CHANGES = ("request_put", "request_delete_range")


class Request(NamedTuple):
    """One request to etcd."""

    begun_s: float
    ended_s: float
    changes: bool


class Requests:
    """The requests of one connection to etcd, without those that only refresh policies of namespaces."""

    def __init__(self) -> None:
        self.found: list[Request] = []

    def watch(self, monkeypatch: pytest.MonkeyPatch, connection: EtcdConnection) -> None:
        """Note each request of the connection from now on."""
        call = connection.call

        async def noted(method: Method, request: Any, **options: Any) -> Any:
            begun_s = time.perf_counter()
            try:
                return await call(method, request, **options)
            finally:
                if b"policies/" not in getattr(request, "key", b""):
                    steps = getattr(request, "success", ())
                    changes = any(step.WhichOneof("request") in CHANGES for step in steps)
                    self.found.append(Request(begun_s, time.perf_counter(), changes or (method.write and not steps)))

        monkeypatch.setattr(connection, "call", noted)

    def in_a_row(self) -> int:
        """The most requests of which each one began after the one before had ended."""
        chain: list[int] = []
        ordered = sorted(self.found)
        for number, request in enumerate(ordered):
            before = [chain[at] for at in range(number) if ordered[at].ended_s <= request.begun_s]
            chain.append(1 + max(before, default=0))
        return max(chain, default=0)


class Cost(NamedTuple):
    """What one request of a client cost."""

    requests: int
    changes: int
    in_a_row: int


class World(NamedTuple):
    """A broker on etcd, and what it asks etcd for."""

    broker: RunningBroker
    requests: Requests

    async def cost(self, work: Awaitable[Any]) -> Cost:
        """Do the work, and what it leaves to the background."""
        self.requests.found.clear()
        await work
        await asyncio.sleep(0.3)  # no event ends it
        found = self.requests.found
        return Cost(len(found), sum(one.changes for one in found), self.requests.in_a_row())


@pytest.fixture
async def world(etcd_server: EtcdServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    async with broker_on_etcd(tmp_path, etcd_server.url) as running:
        requests = Requests()
        requests.watch(monkeypatch, running.session._connection)  # type: ignore[attr-defined]
        yield World(running.broker, requests)


async def partitions(wire: Wire) -> None:
    """Ask for the partitions of TOPIC, as each client does first."""
    request = pb.CommandPartitionedTopicMetadata(topic=TOPIC, request_id=1)
    answer = await wire.answer(pb.BaseCommand(type=Kind.PARTITIONED_METADATA, partition_metadata=request))
    assert answer.partition_metadata_response.partitions == 0


async def opened(wire: Wire) -> None:
    """Do what a client does before it publishes."""
    await partitions(wire)
    await wire.lookup()
    assert (await wire.produce()).type == Kind.PRODUCER_SUCCESS


async def warm(world: World) -> Wire:
    """A connection. The broker owns all bundles of the namespace, and has allocated a ledger."""
    wire = await Wire.open(world.broker)
    ring = await world.broker.policies.bundles(parse_topic(TOPIC).namespace)
    assert ring is not None
    other = next(
        name
        for name in (f"{TOPIC}-{number}" for number in range(10_000))
        if ring.bundle_of(name) == ring.bundle_of(TOPIC)
    )
    assert (await world.broker.parts.lookups.find(parse_topic(other))) is not None
    await world.broker.topics.get(parse_topic(other))
    return wire


async def test_a_new_topic_takes_five_requests_of_which_three_change_something(world: World) -> None:
    wire = await warm(world)
    assert await world.cost(partitions(wire)) == (1, 0, 1)
    assert await world.cost(wire.lookup()) == (0, 0, 0)
    assert await world.cost(wire.produce()) == (4, 3, 4), "list and owner; an id; its ledger; the list"


async def test_a_closed_topic_takes_six_requests_of_which_four_wait_for_each_other(world: World) -> None:
    wire = await warm(world)
    await opened(wire)
    await stored(wire, range(10))
    consumer = await Wire.open(world.broker)
    assert await received(consumer, 10) == list(range(10))
    await world.broker.topics.unload(parse_topic(TOPIC))
    again = await Wire.open(world.broker)
    assert await world.cost(partitions(again)) == (1, 0, 1)
    assert await world.cost(again.produce()) == (5, 3, 4), "as above, and the end of the last ledger"
    assert await world.cost(partitions(again)) == (0, 0, 0)
    assert await received(again, 10) == list(range(10)), "the cursor was loaded"
