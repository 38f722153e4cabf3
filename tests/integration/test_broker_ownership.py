"""Two brokers on one metadata store and one bookie: redirects, takeover after a lost session, no acknowledged loss."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from quire_bookie.env.chance import SystemChance
from quire_bookie.env.clock import SystemClock
from quire_bookie.errors import StartupError
from quire_broker.broker_process import start_broker
from quire_broker.server.broker import BrokerSettings
from quire_broker.server.handover import NO_BROKER
from quire_broker.wire.kinds import Kind
from quire_broker.wire.proto import pulsar_pb2 as pb
from tests.support.broker_wire import TOPIC, Wire, kind_of_next, received, stored
from tests.support.broker_world import BrokerWorld, running_brokers


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[BrokerWorld]:
    async with running_brokers(tmp_path, 2) as world:
        yield world


async def test_a_lookup_at_the_other_broker_redirects_to_the_owner(pair: BrokerWorld) -> None:
    first, second = pair.brokers
    owner, other = await Wire.open(first), await Wire.open(second)
    mine = await owner.lookup()
    assert (mine.response, mine.brokerServiceUrl) == (1, first.urls.native)
    theirs = await other.lookup()
    assert (theirs.response, theirs.brokerServiceUrl) == (0, first.urls.native)
    assert (await owner.produce()).type == Kind.PRODUCER_SUCCESS
    refused = await other.produce()
    assert (refused.type, refused.error.error) == (Kind.ERROR, 6)


async def test_rest_redirects_to_the_owner(pair: BrokerWorld) -> None:
    first, second = pair.brokers
    await (await Wire.open(first)).lookup()
    path = TOPIC.replace("persistent://", "/admin/v2/persistent/")
    async with aiohttp.ClientSession() as session:
        async with session.put(second.urls.http + path, allow_redirects=False) as answer:
            assert answer.status == 307
            assert answer.headers["Location"] == first.urls.http + path + "?authoritative=true"
        async with session.put(second.urls.http + path) as answer:
            assert answer.status == 204
        async with session.get(second.urls.http + path + "/stats") as answer:
            assert (await answer.json())["ownerBroker"] == first.broker_id


async def test_generated_producer_names_differ_between_brokers(pair: BrokerWorld) -> None:
    names = set()
    for number, broker in enumerate(pair.brokers):
        wire = await Wire.open(broker)
        topic = f"persistent://public/default/names-{number}"
        await wire.answer(pb.BaseCommand(type=23, lookup=pb.CommandLookupTopic(topic=topic, request_id=1)))
        request = pb.CommandProducer(topic=topic, producer_id=1, request_id=2)
        made = await wire.answer(pb.BaseCommand(type=5, producer=request))
        if made.type == Kind.PRODUCER_SUCCESS:
            names.add(made.producer_success.producer_name)
        else:
            names.add(f"redirected-{number}")
    assert len(names) == 2


async def test_without_a_session_the_owner_serves_its_topics_until_the_next_owner_fences_them(
    pair: BrokerWorld,
) -> None:
    first, second = pair.brokers
    wire = await Wire.open(first)
    await wire.lookup()
    assert (await wire.produce()).type == Kind.PRODUCER_SUCCESS
    await stored(wire, range(10))
    pair.sessions[0].lose_session()
    await stored(wire, range(10, 20))
    back = await Wire.open(first)
    assert (await back.lookup()).brokerServiceUrl == first.urls.native, "clients that come back are served"

    other = await Wire.open(second)
    owner = await other.lookup()
    assert (owner.response, owner.brokerServiceUrl) == (1, second.urls.native)
    assert await received(other, 20) == list(range(20))
    wire.publish(20)
    assert await kind_of_next(wire) == Kind.CLOSE_PRODUCER, "it is fenced, and answers no receipt"
    pair.sessions[0].renew_session()
    while first.owners.held:  # noqa: ASYNC110  no event tells
        await asyncio.sleep(0.01)
    theirs = await (await Wire.open(first)).lookup()
    assert (theirs.response, theirs.brokerServiceUrl) == (0, second.urls.native)


async def test_an_idle_topic_of_a_bundle_that_another_broker_took_is_closed_when_the_session_is_back(
    pair: BrokerWorld,
) -> None:
    first, second = pair.brokers
    wire = await Wire.open(first)
    await wire.lookup()
    assert (await wire.produce()).type == Kind.PRODUCER_SUCCESS
    pair.sessions[0].lose_session()
    await (await Wire.open(second)).lookup()
    pair.sessions[0].renew_session()
    assert await kind_of_next(wire) == Kind.CLOSE_PRODUCER


async def test_with_a_new_session_and_no_other_owner_nothing_is_closed(pair: BrokerWorld) -> None:
    first, _ = pair.brokers
    wire = await Wire.open(first)
    await wire.lookup()
    assert (await wire.produce()).type == Kind.PRODUCER_SUCCESS
    (topic,) = first.topics.loaded
    pair.sessions[0].lose_session()
    await stored(wire, range(10))
    pair.sessions[0].renew_session()
    while not all(first.owners.certain(bundle) for bundle in first.owners.held):  # noqa: ASYNC110  no event tells
        await asyncio.sleep(0.01)
    await stored(wire, range(10, 20))
    assert first.topics.loaded == [topic]


async def test_an_owner_that_came_and_went_meanwhile_is_noticed(pair: BrokerWorld) -> None:
    first, second = pair.brokers
    wire = await Wire.open(first)
    await wire.lookup()
    assert (await wire.produce()).type == Kind.PRODUCER_SUCCESS
    pair.sessions[0].lose_session()
    other = await Wire.open(second)
    await other.lookup()
    assert await received(other, 0) == []
    for bundle in second.owners.held:
        await second.unload_bundle(bundle, NO_BROKER)
    pair.sessions[0].renew_session()
    assert await kind_of_next(wire) == Kind.CLOSE_PRODUCER, "the list of ledgers is another one"
    await (again := await Wire.open(first)).lookup()
    while (await again.produce()).type != Kind.PRODUCER_SUCCESS:  # noqa: ASYNC110  no event tells
        await asyncio.sleep(0.01)
    await stored(again, range(10))


async def test_unloading_a_namespace_frees_its_bundles(pair: BrokerWorld) -> None:
    first, second = pair.brokers
    await (await Wire.open(first)).lookup()
    url = first.urls.http + "/admin/v2/namespaces/public/default/unload?destinationBroker="
    async with aiohttp.ClientSession() as session, session.put(url) as answer:
        assert answer.status == 204
    assert not first.owners.held
    answer_of_second = await (await Wire.open(second)).lookup()
    assert answer_of_second.brokerServiceUrl == second.urls.native


async def test_a_port_in_use_is_one_clear_error(pair: BrokerWorld) -> None:
    settings = BrokerSettings(listen="127.0.0.1", port=pair.brokers[0].port, http_port=0)
    with pytest.raises(StartupError, match=f"port {pair.brokers[0].port} on 127.0.0.1"):
        await start_broker(
            settings,
            metadata=pair.sessions[0],
            ledger_client=pair.clients[0],
            clock=SystemClock(),
            chance=SystemChance(),
        )
