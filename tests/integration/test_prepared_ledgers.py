"""Ledgers that a broker prepares for a topic which another broker still serves: what happens if they are outdated."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quire_bookie.model import LedgerId
from quire_broker.errors import ServiceNotReadyError
from quire_broker.managed_ledger.deletion import Deletions
from quire_broker.managed_ledger.list_store import node_path
from quire_broker.managed_ledger.managed_ledger import ManagedLedgerState
from quire_broker.managed_ledger.nodes.node_codec import decode_list
from quire_broker.managed_ledger.position import EARLIEST
from quire_broker.names import parse_topic
from quire_broker.ownership.owners import Bundle
from quire_broker.server.broker import RunningBroker
from quire_broker.settings.managed_ledger import ManagedLedgerSettings
from quire_broker.standalone import with_quorums
from quire_broker.wire.kinds import Kind
from quire_broker.wire.proto import pulsar_pb2 as pb
from tests.support.broker_wire import TOPIC, Wire, received, stored
from tests.support.broker_world import BrokerWorld, running_brokers

LEDGER = parse_topic(TOPIC).ledger_name
RECORDS = f"/quire/unreferenced-ledgers/{LEDGER}/"


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[BrokerWorld]:
    async with running_brokers(tmp_path, 2) as world:
        yield world


def records(world: BrokerWorld) -> set[int]:
    """The ledgers that are recorded as unreferenced."""
    return {int(key.removeprefix(RECORDS)) for key in world.server.nodes if key.startswith(RECORDS)}


def listed(world: BrokerWorld) -> list[int]:
    """The ledgers of the topic."""
    return [record.ledger_id for record in decode_list(world.server.nodes[node_path(LEDGER)].value).ledgers]


async def until(condition: Callable[[], bool]) -> None:
    """Wait for background work that tells no event."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110  no event tells
            await asyncio.sleep(0.01)


async def published(broker: RunningBroker) -> tuple[Wire, Bundle]:
    """A producer of TOPIC with ten stored messages, and the topic's bundle."""
    wire = await Wire.open(broker)
    await wire.lookup()
    assert (await wire.produce()).type == Kind.PRODUCER_SUCCESS
    await stored(wire, range(10))
    return wire, next(iter(broker.owners.held))


async def closed(wire: Wire) -> str:
    """The broker that the CLOSE_PRODUCER which comes next names."""
    frame = await wire.next()
    assert isinstance(frame, pb.BaseCommand) and frame.type == Kind.CLOSE_PRODUCER, frame
    return str(frame.close_producer.assignedBrokerServiceUrl)


async def test_the_prepared_ledger_is_the_next_one_of_the_topic(pair: BrokerWorld) -> None:
    first, second = pair.brokers
    await published(first)
    await second.factory.prepare(LEDGER)
    (prepared,) = records(pair)
    assert prepared not in listed(pair)
    await first.topics.unload(parse_topic(TOPIC))
    assert await second.factory.look_ahead(LEDGER)
    ledger = await second.factory.open(LEDGER)
    assert ledger.was_read_ahead and listed(pair)[-1] == prepared and not records(pair)
    assert ledger.entries == 10


async def test_a_prepared_ledger_that_another_client_deleted_is_not_written_to(pair: BrokerWorld) -> None:
    first, second = pair.brokers
    await published(first)
    await second.factory.prepare(LEDGER)
    (prepared,) = records(pair)
    await first.topics.unload(parse_topic(TOPIC))
    await pair.clients[0].delete_ledger(LedgerId(prepared))
    assert await second.factory.look_ahead(LEDGER)
    assert (await second.factory.open(LEDGER)).entries == 10
    assert prepared not in listed(pair)


def deletions(broker: RunningBroker) -> Deletions:
    """Those of an owner that listed the records before the ledger was used, and deletes after that."""
    return broker.factory._context(LEDGER, ManagedLedgerSettings()).deletions


async def test_a_deletion_that_comes_after_the_use_of_a_prepared_ledger_does_nothing(pair: BrokerWorld) -> None:
    first, second = pair.brokers
    await published(first)
    await second.factory.prepare(LEDGER)
    (prepared,) = records(pair)
    await first.topics.unload(parse_topic(TOPIC))
    assert await second.factory.look_ahead(LEDGER)
    await second.factory.open(LEDGER)
    assert listed(pair)[-1] == prepared
    await deletions(first).delete_now(prepared)
    assert prepared in {ledger async for ledger in _ledgers(pair)}


async def test_a_prepared_ledger_whose_deletion_has_begun_is_not_used(pair: BrokerWorld) -> None:
    first, second = pair.brokers
    await published(first)
    await second.factory.prepare(LEDGER)
    (prepared,) = records(pair)
    await first.topics.unload(parse_topic(TOPIC))
    assert await deletions(first)._claim(prepared)
    assert await second.factory.look_ahead(LEDGER)
    assert (await second.factory.open(LEDGER)).entries == 10
    assert prepared not in listed(pair)


async def test_an_owner_in_between_deletes_the_prepared_ledger_which_is_not_used(pair: BrokerWorld) -> None:
    first, second = pair.brokers
    await published(first)
    await second.factory.prepare(LEDGER)
    (prepared,) = records(pair)
    await first.topics.unload(parse_topic(TOPIC))
    await (await first.factory.open(LEDGER)).close()
    await until(lambda: not records(pair))
    assert prepared not in {ledger async for ledger in _ledgers(pair)}
    assert await second.factory.look_ahead(LEDGER)
    assert (await second.factory.open(LEDGER)).entries == 10
    assert prepared not in listed(pair)


async def test_cursors_that_moved_after_they_were_read_ahead_are_read_again(pair: BrokerWorld) -> None:
    first, second = pair.brokers
    await published(first)
    topic = first.topics.find(parse_topic(TOPIC))
    assert topic is not None
    cursor = await topic.ledger.open_cursor("s", EARLIEST)
    await second.factory.prepare(LEDGER)
    assert await second.factory.look_ahead(LEDGER)
    cursor.acknowledge_cumulative(topic.ledger.last_confirmed)
    await first.topics.unload(parse_topic(TOPIC))
    assert (await second.factory.open(LEDGER)).cursors["s"].backlog == 0


async def test_a_list_that_changed_after_it_was_read_ahead_is_read_again(pair: BrokerWorld) -> None:
    first, second = pair.brokers
    await published(first)
    topic = first.topics.find(parse_topic(TOPIC))
    assert topic is not None
    await second.factory.prepare(LEDGER)
    assert await second.factory.look_ahead(LEDGER)
    await topic.ledger.set_property("changed", "true")
    ledger = await second.factory.open(LEDGER)
    assert (ledger.properties["changed"], ledger.entries) == ("true", 10)


async def test_a_ledger_that_is_older_than_the_last_of_the_list_is_not_used(pair: BrokerWorld) -> None:
    first, second = pair.brokers
    wire, _ = await published(first)
    await second.factory.prepare(LEDGER)
    (prepared,) = records(pair)
    topic = first.topics.find(parse_topic(TOPIC))
    assert topic is not None
    await topic.ledger.roll()
    await stored(wire, range(10, 12))
    await first.topics.unload(parse_topic(TOPIC))
    assert await second.factory.look_ahead(LEDGER)
    assert (await second.factory.open(LEDGER)).entries == 12
    assert prepared not in listed(pair)
    await until(lambda: not records(pair))


async def test_a_last_ledger_that_is_still_written_is_fenced(pair: BrokerWorld) -> None:
    first, second = pair.brokers
    wire, _ = await published(first)
    await second.factory.prepare(LEDGER)
    assert await second.factory.look_ahead(LEDGER)
    assert (await second.factory.open(LEDGER)).entries == 10
    wire.publish(10)
    frame = await wire.next()
    assert isinstance(frame, pb.BaseCommand) and frame.type == Kind.CLOSE_PRODUCER, "the message is not acknowledged"


async def test_an_unused_ledger_is_deleted(pair: BrokerWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire_broker.managed_ledger.factory.PREPARED_LEDGER_S", 0.05)
    first, second = pair.brokers
    await published(first)
    before = {ledger async for ledger in _ledgers(pair)}
    await second.factory.prepare(LEDGER)
    await until(lambda: not records(pair))
    assert {ledger async for ledger in _ledgers(pair)} == before
    assert not await second.factory.look_ahead(LEDGER)


async def test_a_stopped_broker_leaves_no_prepared_ledger(pair: BrokerWorld) -> None:
    first, second = pair.brokers
    await published(first)
    await second.factory.prepare(LEDGER)
    assert records(pair)
    await second.stop()
    assert not records(pair)


async def test_a_prepared_ledger_with_other_settings_is_deleted(pair: BrokerWorld) -> None:
    first, second = pair.brokers
    await published(first)
    await second.factory.prepare(LEDGER)
    (prepared,) = records(pair)
    await first.topics.unload(parse_topic(TOPIC))
    await second.factory.open(LEDGER, settings=replace(with_quorums(ManagedLedgerSettings(), 1), retention_s=60.0))
    await until(lambda: not records(pair))
    assert prepared not in listed(pair)


async def _ledgers(world: BrokerWorld) -> AsyncIterator[int]:
    async for ledger in world.clients[0].list_ledgers():
        yield ledger


async def test_clients_are_sent_to_a_ready_owner_before_it_has_the_bundle_and_wait_there(
    pair: BrokerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = pair.brokers
    wire, bundle = await published(first)
    held = asyncio.Event()
    proper: Callable[..., Awaitable[bool]] = second.owners.take_offered

    async def late(*args: Any) -> bool:
        await held.wait()
        return await proper(*args)

    monkeypatch.setattr(second.owners, "take_offered", late)
    move = asyncio.create_task(first.unload_bundle(bundle, second.broker_id))
    assert await closed(wire) == second.urls.native
    assert not second.owners.holds(bundle)
    again = await Wire.open(second)
    producing = asyncio.create_task(again.produce())
    await asyncio.sleep(0.1)
    assert not producing.done()
    held.set()
    assert (await producing).type == Kind.PRODUCER_SUCCESS
    await move
    await stored(again, range(10, 20))
    assert await received(await Wire.open(second), 20) == list(range(20))
    await until(lambda: not any(key.startswith("/quire/handovers/") for key in pair.server.nodes))


async def test_a_ready_owner_that_does_not_take_the_bundle_leaves_one_owner(
    pair: BrokerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quire_broker.server.handover.HANDOVER_TAKE_S", 0.3)
    first, second = pair.brokers
    wire, bundle = await published(first)

    async def refused(*_: object) -> bool:
        raise ServiceNotReadyError("the test lets it fail")

    monkeypatch.setattr(second.owners, "take_offered", refused)
    move = asyncio.create_task(first.unload_bundle(bundle, second.broker_id))
    assert await closed(wire) == second.urls.native
    assert (await (await Wire.open(second)).produce()).type == Kind.ERROR
    await move
    monkeypatch.undo()
    again = await Wire.open(first)
    assert (await again.lookup()).brokerServiceUrl == first.urls.native
    assert (await again.produce()).type == Kind.PRODUCER_SUCCESS
    await stored(again, range(10, 12))
    assert [broker.owners.holds(bundle) for broker in pair.brokers] == [True, False]
    assert not second.topics.loaded
    assert all(ledger.state is ManagedLedgerState.CLOSED for ledger in second.factory.opened)


async def test_an_owner_that_prepares_nothing_gets_the_bundle_after_a_short_wait(
    pair: BrokerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quire_broker.server.handover.HANDOVER_PREPARE_S", 0.05)
    first, second = pair.brokers
    wire, bundle = await published(first)

    async def silent(*_: object) -> None:
        """Announce nothing, as a broker of an earlier version."""

    monkeypatch.setattr(second.owners.readiness, "announce", silent)
    await first.unload_bundle(bundle, second.broker_id)
    assert second.owners.certain(bundle)
    assert await closed(wire) == second.urls.native
