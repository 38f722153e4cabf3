"""Bundles that brokers hand to each other while clients use their topics, as these clients see it."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import aiohttp
import pytest

from quire_bookie.errors import MetadataUnavailableError
from quire_bookie.metadata.joint_write import Place
from quire_broker.limits import HANDOVER_CLOSES_MAX
from quire_broker.names import parse_topic
from quire_broker.ownership.offers import Offer
from quire_broker.ownership.owners import Bundle
from quire_broker.ownership.registration import BROKERS
from quire_broker.server.broker import RunningBroker
from quire_broker.server.handover import NO_BROKER
from quire_broker.topic.topic import Topic
from quire_broker.wire.kinds import Kind
from quire_broker.wire.proto import pulsar_pb2 as pb
from tests.support.broker_wire import TOPIC, Wire, kind_of_next, received, stored
from tests.support.broker_world import BrokerWorld, running_brokers


@pytest.fixture
async def trio(tmp_path: Path) -> AsyncIterator[BrokerWorld]:
    async with running_brokers(tmp_path, 3) as world:
        yield world


async def published(broker: RunningBroker) -> tuple[Wire, Bundle]:
    """A producer of TOPIC with ten stored messages, and the topic's bundle."""
    wire = await Wire.open(broker)
    await wire.lookup()
    assert (await wire.produce()).type == Kind.PRODUCER_SUCCESS
    await stored(wire, range(10))
    return wire, next(iter(broker.owners.held))


async def closed(wire: Wire) -> pb.CommandCloseProducer:
    """The CLOSE_PRODUCER that comes next."""
    frame = await wire.next()
    assert isinstance(frame, pb.BaseCommand) and frame.type == Kind.CLOSE_PRODUCER, frame
    return frame.close_producer


async def test_clients_are_sent_to_the_new_owner_which_has_the_topic_ready(trio: BrokerWorld) -> None:
    first, second, third = trio.brokers
    wire, bundle = await published(first)
    await first.unload_bundle(bundle, second.broker_id)
    notice = await closed(wire)
    assert notice.assignedBrokerServiceUrl == second.urls.native
    assert not notice.HasField("assignedBrokerServiceUrlTls")
    assert second.owners.certain(bundle) and not first.owners.holds(bundle)
    again = await Wire.open(second)
    assert (await again.produce()).type == Kind.PRODUCER_SUCCESS, "without a lookup"
    await stored(again, range(10, 20))
    assert await received(await Wire.open(second), 20) == list(range(20))
    assert (await (await Wire.open(third)).lookup()).brokerServiceUrl == second.urls.native


async def test_consumers_are_sent_there_too(trio: BrokerWorld) -> None:
    first, second, _ = trio.brokers
    _, bundle = await published(first)
    consumer = await Wire.open(first)
    assert await received(consumer, 10) == list(range(10))
    await first.unload_bundle(bundle, second.broker_id)
    frame = await consumer.next()
    assert isinstance(frame, pb.BaseCommand) and frame.type == Kind.CLOSE_CONSUMER
    assert frame.close_consumer.assignedBrokerServiceUrl == second.urls.native


async def test_a_bundle_that_an_outage_kept_from_being_released_is_free_after_it(trio: BrokerWorld) -> None:
    first, second, _ = trio.brokers
    _, bundle = await published(first)
    assert first.owners.leave(bundle)
    await first.owners.offer(bundle, Offer("nowhere:1"))
    trio.sessions[0].cut = True
    with pytest.raises(MetadataUnavailableError):
        await first.owners.release(bundle)
    trio.sessions[0].reach()
    while bundle.key in trio.server.nodes:  # noqa: ASYNC110  no event tells
        await asyncio.sleep(0.01)
    owner = await second.owners.owner_of(bundle)
    assert owner is not None and owner.ours


async def test_a_lookup_during_the_move_waits_for_the_new_owner(trio: BrokerWorld) -> None:
    first, second, third = trio.brokers
    _, bundle = await published(first)
    assert first.owners.leave(bundle)
    version = await first.owners.offer(bundle, Offer(second.broker_id))
    lookups = [asyncio.create_task((await Wire.open(broker)).lookup()) for broker in (first, second, third)]
    quiesced: list[Topic] = []
    await first.handover._close_used(await first.handover.topics_of(bundle), quiesced, None)
    (topic,) = quiesced
    assert not any(lookup.done() for lookup in lookups)
    await first.owners.offer(bundle, Offer(second.broker_id, closed=True), version)
    assert await first.owners.successor(bundle, 5.0) is not None
    first.topics.let_go(topic)
    await first.owners.release(bundle)
    assert {(await lookup).brokerServiceUrl for lookup in lookups} == {second.urls.native}


async def test_an_offer_to_a_broker_that_is_gone_ends_in_a_release(
    trio: BrokerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quire_broker.server.handover.HANDOVER_TAKE_S", 0.2)
    first = trio.brokers[0]
    wire, bundle = await published(first)
    await first.unload_bundle(bundle, "nowhere:1")
    assert not (await closed(wire)).HasField("assignedBrokerServiceUrl")
    owner = await (await Wire.open(trio.brokers[2])).lookup()
    assert owner.brokerServiceUrl == trio.brokers[2].urls.native


async def test_a_released_bundle_names_no_broker(trio: BrokerWorld) -> None:
    first = trio.brokers[0]
    wire, bundle = await published(first)
    await first.unload_bundle(bundle, NO_BROKER)
    assert not (await closed(wire)).HasField("assignedBrokerServiceUrl")
    assert not any(broker.owners.held for broker in trio.brokers)


async def test_a_stopping_broker_hands_its_bundles_over(trio: BrokerWorld) -> None:
    first, *others = trio.brokers
    wire, bundle = await published(first)
    await first.stop()
    url = (await closed(wire)).assignedBrokerServiceUrl
    new = next(broker for broker in others if broker.owners.holds(bundle))
    assert url == new.urls.native
    assert await received(await Wire.open(new), 10) == list(range(10))


async def test_a_drained_broker_answers_but_takes_no_bundle(trio: BrokerWorld) -> None:
    first, *others = trio.brokers
    wire, bundle = await published(first)
    async with aiohttp.ClientSession() as session, session.put(first.urls.http + "/admin/quire/drain") as answer:
        assert await answer.json() == {"moved": 1, "bundles": 0}
    assert (await closed(wire)).assignedBrokerServiceUrl
    for broker in others:
        await broker.unload_bundle(bundle, NO_BROKER)
    owner = await (await Wire.open(first)).lookup()
    assert owner.brokerServiceUrl in {broker.urls.native for broker in others}
    assert not first.owners.held


async def test_the_last_broker_that_takes_bundles_is_not_drained(trio: BrokerWorld) -> None:
    first, *others = trio.brokers
    wire, bundle = await published(first)
    async with aiohttp.ClientSession() as session:
        for broker in others:
            async with session.put(broker.urls.http + "/admin/quire/drain") as answer:
                assert answer.status == 200
        async with session.put(first.urls.http + "/admin/quire/drain") as answer:
            assert answer.status == 409
            assert "no other broker takes bundles" in (await answer.json())["reason"]
    assert bundle in first.owners.held and not first.isolation.draining
    await stored(wire, range(10, 12))


async def test_a_drain_in_the_background_tells_how_far_it_is(trio: BrokerWorld) -> None:
    first, *others = trio.brokers
    wire, _ = await published(first)
    url = first.urls.http + "/admin/quire/drain"
    async with aiohttp.ClientSession() as session:
        async with session.get(url) as answer:
            assert await answer.json() == {"draining": False, "moved": 0, "bundles": 1, "others": True}
        async with session.put(url + "?wait=false") as answer:
            assert answer.status == 200
        assert (await closed(wire)).assignedBrokerServiceUrl in {broker.urls.native for broker in others}
        async with session.put(url + "?wait=false") as answer:
            assert answer.status == 200, "a repeated request changes nothing"
        while first.owners.left:  # noqa: ASYNC110  clients are sent on before the next owner has the bundle
            await asyncio.sleep(0.01)
        async with session.get(url) as answer:
            assert await answer.json() == {"draining": True, "moved": 1, "bundles": 0, "others": True}


async def test_a_broker_shows_the_topics_that_it_has_loaded(trio: BrokerWorld) -> None:
    first, other, _ = trio.brokers
    await published(first)
    path = "/admin/quire/namespaces/public/default?loaded=true"
    async with aiohttp.ClientSession() as session:
        async with session.get(first.urls.http + path) as answer:
            topics = (await answer.json())["topics"]
        assert [(one["loaded"], one["entries"]) for one in topics.values()] == [(True, 10)]
        async with session.get(other.urls.http + path) as answer:
            assert await answer.json() == {"topics": {}}


async def test_an_unloaded_topic_returns_to_its_broker(trio: BrokerWorld) -> None:
    first = trio.brokers[0]
    wire, _ = await published(first)
    path = TOPIC.replace("persistent://", "/admin/v2/persistent/") + "/unload"
    async with aiohttp.ClientSession() as session, session.put(first.urls.http + path) as answer:
        assert answer.status == 204
    assert (await closed(wire)).assignedBrokerServiceUrl == first.urls.native
    assert (await wire.produce()).type == Kind.PRODUCER_SUCCESS
    await stored(wire, range(10, 12))


async def test_what_is_sent_during_the_move_is_not_answered_and_not_stored(trio: BrokerWorld) -> None:
    first, second, _ = trio.brokers
    wire, bundle = await published(first)
    topics = await first.handover.topics_of(bundle)
    assert first.owners.leave(bundle)
    await first.handover._close_used(topics, [], None)
    wire.publish(10)
    ping = await wire.answer(pb.BaseCommand(type=Kind.PING, ping=pb.CommandPing()))
    assert ping.type == Kind.PONG, "the client is still connected"
    first.topics.let_go(topics[0])
    await first.owners.release(bundle)
    assert await kind_of_next(wire) == Kind.CLOSE_PRODUCER
    other = await Wire.open(second)
    await other.lookup()
    assert await received(other, 10) == list(range(10))


async def test_topics_without_clients_are_closed_a_few_at_a_time_before_the_offer(
    trio: BrokerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, _ = trio.brokers
    wire, bundle = await published(first)
    ring = await first.policies.bundles(bundle.namespace)
    assert ring is not None
    names = (f"{TOPIC}-{number}" for number in range(5000))
    for name in islice((name for name in names if ring.bundle_of(name) == bundle.range), 30):
        await first.topics.create(parse_topic(name))
    running: set[Topic] = set()
    most, order = 0, []
    proper = first.topics.quiesce

    async def watched(topic: Topic, place: Place | None = None) -> bool:
        nonlocal most
        running.add(topic)
        most = max(most, len(running))
        order.append((str(topic.name) == TOPIC, place is not None))
        try:
            return await proper(topic, place)
        finally:
            running.discard(topic)

    monkeypatch.setattr(first.topics, "quiesce", watched)
    await first.unload_bundle(bundle, second.broker_id)
    await closed(wire)
    assert most == HANDOVER_CLOSES_MAX
    assert order == [(False, False)] * 30 + [(True, True)]
    assert second.owners.certain(bundle) and not first.topics.loaded


async def test_a_move_that_is_cancelled_or_fails_leaves_no_topic_and_no_bundle_behind(
    trio: BrokerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quire_broker.server.handover.HANDOVER_TAKE_S", 3600.0)
    first, second, third = trio.brokers
    wire, bundle = await published(first)
    move = asyncio.create_task(first.handover.move(bundle, "nowhere:1"))
    while b'"closed":true' not in trio.server.nodes[bundle.key].value:  # noqa: ASYNC110  no event tells
        await asyncio.sleep(0)
    move.cancel()
    assert await kind_of_next(wire) == Kind.CLOSE_PRODUCER
    again = await Wire.open(second)
    assert (await again.lookup()).brokerServiceUrl == second.urls.native
    assert (await again.produce()).type == Kind.PRODUCER_SUCCESS
    ring = await second.policies.bundles(bundle.namespace)
    assert ring is not None
    names = (f"{TOPIC}-{number}" for number in range(1000))
    await second.topics.create(parse_topic(next(name for name in names if ring.bundle_of(name) == bundle.range)))

    async def broken(_: Place | None) -> None:
        raise OSError("the disk of a test")

    found = second.topics.find(parse_topic(TOPIC))
    assert found is not None
    monkeypatch.setattr(found.ledger, "save", broken)
    with pytest.raises(OSError, match="of a test"):
        await second.unload_bundle(bundle, NO_BROKER)
    assert second.topics.loaded == []
    assert (await (await Wire.open(third)).lookup()).brokerServiceUrl == third.urls.native


async def test_a_bundle_moves_although_its_topic_does_not_close(
    trio: BrokerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, _ = trio.brokers
    wire, bundle = await published(first)
    found = first.topics.find(parse_topic(TOPIC))
    assert found is not None

    async def hangs(_: Place | None) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(found.ledger, "save", hangs)
    monkeypatch.setattr(first.handover, "_close_s", 0.1)
    await first.unload_bundle(bundle, second.broker_id)
    await closed(wire)
    assert second.owners.certain(bundle) and not first.owners.holds(bundle)
    assert first.topics.find(parse_topic(TOPIC)) is None
    again = await Wire.open(second)
    assert (await again.produce()).type == Kind.PRODUCER_SUCCESS
    await stored(again, range(10, 20))
    assert await received(await Wire.open(second), 20) == list(range(20))


async def test_a_move_goes_on_when_its_caller_is_cancelled(trio: BrokerWorld) -> None:
    first, second, third = trio.brokers
    _, bundle = await published(first)
    unload = asyncio.create_task(first.unload_bundle(bundle, second.broker_id))
    await asyncio.sleep(0)
    unload.cancel()
    await asyncio.wait([unload])
    assert unload.cancelled()
    assert (await (await Wire.open(third)).lookup()).brokerServiceUrl == second.urls.native


async def test_a_broker_whose_bundles_no_broker_takes_still_ends_in_order(
    trio: BrokerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quire_broker.server.handover.HANDOVER_TAKE_S", 3600.0)
    first, *others = trio.brokers
    monkeypatch.setattr(first, "settings", replace(first.settings, stop_s=6.0))
    for broker in others:
        broker.owners.on_modified = lambda _: None  # a broker of another program
    _, bundle = await published(first)
    await first.stop()
    assert first.broker_id not in await trio.sessions[1].children(BROKERS)
    assert bundle.key not in trio.server.nodes


async def test_no_bundle_is_sent_to_a_broker_that_the_isolation_policy_forbids(trio: BrokerWorld) -> None:
    first, second, _ = trio.brokers
    _, bundle = await published(first)
    path = f"{first.urls.http}/admin/v2/namespaces/public/default/{bundle.range}/unload"
    query = {"destinationBroker": second.broker_id}
    async with aiohttp.ClientSession() as session:
        await first.policies.set_isolation("far", {"namespaces": ["public/.*"], "primary": ["far"]})
        async with session.put(path, params=query) as answer:
            assert answer.status == 412
            assert "isolation policy" in json.loads(await answer.text())["reason"]
        assert first.owners.certain(bundle)
        await first.policies.set_isolation("far", {"namespaces": ["public/.*"], "primary": ["far", "127.0.0.1"]})
        async with session.put(path, params=query) as answer:
            assert answer.status == 204
    assert second.owners.certain(bundle)
