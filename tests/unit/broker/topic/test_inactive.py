"""Inactive topics and expired subscriptions: what is deleted, when, and what never is."""

import asyncio
from typing import Any
from unittest import mock

import pytest

from quire_bookie.errors import MetadataUnavailableError
from quire_broker.dispatch.consumer import Consumer
from quire_broker.dispatch.delivery import AckId
from quire_broker.errors import ServiceNotReadyError, TopicNotFoundError
from quire_broker.managed_ledger.position import EARLIEST
from quire_broker.names import TopicName, parse_topic
from quire_broker.policies.inactivity import SUBSCRIPTIONS, TOPICS
from quire_broker.settings.topics import InactivitySettings, UnusedTopicSettings
from quire_broker.topic.inactive import RETURN_S, InactiveTopics
from quire_broker.topic.subscription import Subscription
from quire_broker.topic.topic import Topic
from quire_broker.topic.unused import UnusedTopics
from quire_broker.wire.kinds import AccessMode, AckKind
from tests.unit.broker.dispatch.doubles import Link, spec
from tests.unit.broker.managed_ledger.world import VirtualClock, World
from tests.unit.broker.topic.test_topics import NAMESPACE, TOPIC, Broker, scenario, send, settle

NO_SUBSCRIPTIONS = "delete_when_no_subscriptions"
CAUGHT_UP = "delete_when_subscriptions_caught_up"
AFTER_S = 120
CHECK_S = 60.0


def _deleting(broker: Broker) -> InactiveTopics:
    """Delete what is inactive from now on."""
    inactive = InactiveTopics(broker.topics, InactivitySettings(check_interval_s=CHECK_S), VirtualClock())
    broker.background.start(inactive.run(), "inactive topics")
    return inactive


async def _policy(broker: Broker, mode: str = NO_SUBSCRIPTIONS, after_s: int = AFTER_S, **more: Any) -> None:
    """Set the policy of the namespace, also for loaded topics."""
    value = {
        "inactiveTopicDeleteMode": mode,
        "maxInactiveDurationSeconds": after_s,
        "deleteWhileInactive": True,
    }
    await broker.policies.update_policies(NAMESPACE, lambda policies: policies.update({TOPICS: value} | more))
    for topic in broker.topics.loaded:
        await broker.topics.apply(topic, None)


async def _expiry(broker: Broker, minutes: int) -> None:
    await broker.policies.update_policies(NAMESPACE, lambda policies: policies.update({SUBSCRIPTIONS: minutes}))
    for topic in broker.topics.loaded:
        await broker.topics.apply(topic, None)


async def _publish(broker: Broker, topic: Topic, count: int = 1) -> None:
    """Publish with a producer that leaves afterwards."""
    producer, link, _ = await broker.producer(topic)
    topic.publish(producer, [send(number) for number in range(count)])
    await settle(link, count)
    topic.remove_producer(producer)


async def _join(topic: Topic, name: str = "s") -> tuple[Subscription, Consumer]:
    subscription = await topic.subscription(name, create=True, initial=EARLIEST)
    return subscription, await subscription.add_consumer(spec(1), Link())


async def _leave(topic: Topic, subscription: Subscription, consumer: Consumer) -> None:
    await subscription.remove_consumer(consumer)
    await topic.consumer_left(subscription)


def _acknowledge(topic: Topic, subscription: Subscription, consumer: Consumer) -> None:
    subscription.acknowledge(consumer, AckKind.INDIVIDUAL, [AckId(topic.ledger.last_confirmed)])


def test_a_topic_without_clients_and_subscriptions_is_deleted_after_its_time_with_its_messages() -> None:
    async def work(world: World, broker: Broker) -> None:
        inactive = _deleting(broker)
        topic = await broker.topics.get(TOPIC)
        await _policy(broker)
        await asyncio.sleep(AFTER_S / 2)
        await _publish(broker, topic, 3)
        await asyncio.sleep(AFTER_S - 1)
        assert broker.topics.loaded == [topic], "a producer was there"
        await asyncio.sleep(2 * CHECK_S)
        assert (broker.topics.loaded, inactive.deleted) == ([], 1)
        assert not await broker.topics.exists(TOPIC)
        assert await broker.topics.list(NAMESPACE) == []
        assert (await broker.topics.get(TOPIC)).ledger.entries == 0

    scenario(work)


def test_without_a_policy_or_with_one_that_deletes_nothing_every_topic_stays() -> None:
    async def work(world: World, broker: Broker) -> None:
        _deleting(broker)
        topic = await broker.topics.get(TOPIC)
        await asyncio.sleep(100 * AFTER_S)
        await _policy(broker)
        value = {"deleteWhileInactive": False}
        await broker.policies.update_policies(NAMESPACE, lambda policies: policies.update({TOPICS: value}))
        await broker.topics.apply(topic, None)
        await asyncio.sleep(100 * AFTER_S)
        assert broker.topics.loaded == [topic]

    scenario(work)


def test_the_setting_of_the_broker_deletes_topics_but_not_system_topics() -> None:
    async def work(world: World, broker: Broker) -> None:
        _deleting(broker)
        system = parse_topic("persistent://public/default/__change_events")
        for name in (TOPIC, system):
            await broker.topics.get(name)
        await asyncio.sleep(10 * AFTER_S)
        assert [topic.name for topic in broker.topics.loaded] == [system]

    scenario(work, inactivity=InactivitySettings(delete_topics=True, topic_after_s=AFTER_S))


@pytest.mark.parametrize("mode", [NO_SUBSCRIPTIONS, CAUGHT_UP])
def test_a_topic_with_a_client_or_a_backlog_is_never_deleted(mode: str) -> None:
    async def work(world: World, broker: Broker) -> None:
        inactive = _deleting(broker)
        topic = await broker.topics.get(TOPIC)
        await _policy(broker, mode)
        producer, link, _ = await broker.producer(topic)
        await asyncio.sleep(10 * AFTER_S)
        topic.publish(producer, [send(1)])
        await settle(link, 1)
        subscription, consumer = await _join(topic)
        topic.remove_producer(producer)
        await asyncio.sleep(10 * AFTER_S)
        await _leave(topic, subscription, consumer)
        await asyncio.sleep(10 * AFTER_S)
        assert broker.topics.loaded == [topic], "it has a backlog"
        subscription, consumer = await _join(topic)
        _acknowledge(topic, subscription, consumer)
        await asyncio.sleep(10 * AFTER_S)
        assert broker.topics.loaded == [topic], "it has a consumer"
        await _leave(topic, subscription, consumer)
        await asyncio.sleep(AFTER_S - 1)
        assert broker.topics.loaded == [topic]
        await asyncio.sleep(2 * CHECK_S)
        assert inactive.deleted == (mode == CAUGHT_UP)
        if mode == NO_SUBSCRIPTIONS:
            await topic.drop_subscription("s")
            await asyncio.sleep(AFTER_S + 2 * CHECK_S)
            assert inactive.deleted == 1

    scenario(work)


def test_a_producer_that_is_being_admitted_counts() -> None:
    async def work(world: World, broker: Broker) -> None:
        inactive = _deleting(broker)
        topic = await broker.topics.get(TOPIC)
        await _policy(broker)
        admitted = asyncio.Event()

        async def slowly(epoch: int) -> None:
            await admitted.wait()

        topic.producers._write_epoch = slowly
        adding = asyncio.ensure_future(broker.producer(topic, mode=AccessMode.EXCLUSIVE))
        await asyncio.sleep(10 * AFTER_S)
        assert inactive.deleted == 0
        admitted.set()
        await adding
        assert broker.topics.loaded == [topic]

    scenario(work)


@pytest.mark.parametrize(("minutes", "megabytes", "kept"), [(60, 1, True), (-1, -1, True), (60, 0, False)])
def test_retention_keeps_a_topic(minutes: int, megabytes: int, kept: bool) -> None:
    async def work(world: World, broker: Broker) -> None:
        inactive = _deleting(broker)
        await _publish(broker, await broker.topics.get(TOPIC))
        retention = {"retentionTimeInMinutes": minutes, "retentionSizeInMB": megabytes}
        await _policy(broker, retention_policies=retention)
        await asyncio.sleep(50 * 60)
        assert inactive.deleted == (not kept)
        await asyncio.sleep(20 * 60)
        assert inactive.deleted == (minutes != -1)

    scenario(work)


def test_a_closed_topic_is_loaded_and_deleted_when_its_time_has_come() -> None:
    async def work(world: World, broker: Broker) -> None:
        unused = UnusedTopics(broker.topics, UnusedTopicSettings(600.0), VirtualClock())
        broker.background.start(unused.run(), "unused topics")
        inactive = _deleting(broker)
        await _policy(broker, after_s=3600)
        await _publish(broker, await broker.topics.get(TOPIC))
        await asyncio.sleep(700)
        assert (broker.topics.loaded, unused.closed) == ([], 1)
        await asyncio.sleep(3600 - 700 - 10)
        assert await broker.topics.exists(TOPIC)
        await asyncio.sleep(2 * CHECK_S + 20)
        assert (await broker.topics.exists(TOPIC), inactive.deleted, unused._idle_since_s) == (False, 1, {})

    scenario(work)


def test_a_client_that_comes_during_the_deletion_gets_a_new_topic() -> None:
    async def work(world: World, broker: Broker) -> None:
        topic = await broker.topics.get(TOPIC)
        await _policy(broker)
        await _publish(broker, topic)
        deleting = asyncio.ensure_future(broker.topics.delete_inactive(topic, lambda one: False))
        while not topic.closing:  # noqa: ASYNC110  no event tells
            await asyncio.sleep(0.0001)
        again = await broker.topics.get(TOPIC)
        assert await deleting
        assert again is not topic
        assert again.ledger.entries == 0
        with pytest.raises(ServiceNotReadyError):
            await broker.producer(topic)

    scenario(work)


def test_a_broker_that_lost_the_topic_deletes_nothing() -> None:
    async def work(world: World, broker: Broker) -> None:
        inactive = _deleting(broker)
        await broker.topics.get(TOPIC)
        await _policy(broker)
        broker.owned = False
        await asyncio.sleep(10 * AFTER_S)
        assert inactive.deleted == 0
        assert await broker.topics.exists(TOPIC)

    scenario(work)


def test_a_broker_whose_topic_another_one_opened_deletes_nothing() -> None:
    async def work(world: World, broker: Broker) -> None:
        inactive = _deleting(broker)
        topic = await broker.topics.get(TOPIC)
        await _policy(broker)
        with mock.patch.object(type(topic.ledger._lists), "still_owned", mock.AsyncMock(return_value=False)):
            await asyncio.sleep(10 * AFTER_S)
        assert topic.closing
        assert inactive.deleted == 0
        assert await broker.topics.exists(TOPIC)

    scenario(work)


def test_a_deletion_that_failed_is_repeated() -> None:
    async def work(world: World, broker: Broker) -> None:
        inactive = _deleting(broker)
        await broker.topics.get(TOPIC)
        await _policy(broker)
        delete = broker.process.factory.delete
        failures = [MetadataUnavailableError("no"), None]

        async def failing(name: str) -> None:
            failure = failures.pop(0)
            if failure is not None:
                raise failure
            await delete(name)

        with mock.patch.object(broker.process.factory, "delete", failing):
            await asyncio.sleep(10 * AFTER_S)
        assert (failures, inactive.deleted) == ([], 1)
        with pytest.raises(TopicNotFoundError):
            await broker.topics.get(TOPIC, create=False)

    scenario(work)


def test_a_round_visits_only_topics_with_rules() -> None:
    async def work(world: World, broker: Broker) -> None:
        for number in range(5):
            await broker.topics.get(parse_topic(f"persistent://public/default/t{number}"))

        async def visited() -> list[TopicName]:
            return [topic.name async for topic in broker.topics.with_rules()]

        assert await visited() == []
        ruled = broker.topics.loaded[2]
        ruled_name = ruled.name
        await ruled.ledger.set_property(
            "quire.policies",
            '{"inactive_topic_policies": {"inactiveTopicDeleteMode": "delete_when_no_subscriptions", '
            '"maxInactiveDurationSeconds": 60, "deleteWhileInactive": true}}',
        )
        await broker.topics.apply(ruled, None)
        assert await visited() == [ruled_name]
        await broker.topics.unload(ruled_name)
        assert await visited() == []
        await broker.topics.get(ruled_name)
        assert await visited() == [ruled_name]

    scenario(work)


# subscriptions


def test_a_subscription_expires_after_its_last_consumer_with_its_backlog() -> None:
    async def work(world: World, broker: Broker) -> None:
        inactive = _deleting(broker)
        topic = await broker.topics.get(TOPIC)
        await _expiry(broker, 30)
        await _publish(broker, topic)
        subscription, consumer = await _join(topic)
        await topic.subscription("never", create=True)
        await asyncio.sleep(29 * 60)
        assert set(topic.subscriptions) == {"s", "never"}
        await asyncio.sleep(3 * 60)
        assert set(topic.subscriptions) == {"s"}
        await asyncio.sleep(60 * 60)
        await _leave(topic, subscription, consumer)
        await asyncio.sleep(29 * 60)
        assert set(topic.subscriptions) == {"s"}
        await asyncio.sleep(3 * 60)
        assert (topic.subscriptions, inactive.expired) == ({}, 2)
        assert await topic.subscription("s", create=True) is not subscription
        assert broker.topics.loaded == [topic]

    scenario(work)


def test_a_replicated_subscription_does_not_expire_and_without_a_policy_none_does() -> None:
    async def work(world: World, broker: Broker) -> None:
        inactive = _deleting(broker)
        topic = await broker.topics.get(TOPIC)
        await topic.subscription("s", create=True)
        await asyncio.sleep(10 * 24 * 3600 / 100)
        await (await topic.subscription("r", create=True)).set_replicated(True)
        await asyncio.sleep(24 * 36)
        assert inactive.expired == 0
        await _expiry(broker, 1)
        await asyncio.sleep(10 * 60)
        assert set(topic.subscriptions) == {"r"}

    scenario(work)


def test_the_time_since_the_last_consumer_goes_on_while_the_topic_is_closed() -> None:
    async def work(world: World, broker: Broker) -> None:
        unused = UnusedTopics(broker.topics, UnusedTopicSettings(600.0), VirtualClock())
        broker.background.start(unused.run(), "unused topics")
        inactive = _deleting(broker)
        await _expiry(broker, 60)
        topic = await broker.topics.get(TOPIC)
        await _leave(topic, *await _join(topic))
        await asyncio.sleep(700)
        assert (broker.topics.loaded, unused.closed) == ([], 1)
        topic = await broker.topics.get(TOPIC)
        await broker.topics.unload(TOPIC)
        await asyncio.sleep(3600 - 700 - 10)
        assert inactive.expired == 0
        topic = await broker.topics.get(TOPIC)
        await asyncio.sleep(RETURN_S - 10)
        assert set(topic.subscriptions) == {"s"}, "its consumer may come back"
        await asyncio.sleep(2 * CHECK_S)
        assert (topic.subscriptions, inactive.expired) == ({}, 1)

    scenario(work)


def test_a_consumer_that_joins_keeps_its_subscription() -> None:
    async def work(world: World, broker: Broker) -> None:
        inactive = InactiveTopics(broker.topics, InactivitySettings(), VirtualClock())
        topic = await broker.topics.get(TOPIC)
        await _expiry(broker, 1)
        subscription = await topic.subscription("s", create=True)
        await asyncio.sleep(RETURN_S + 60)
        async with subscription._lock:
            await inactive.round()
        assert set(topic.subscriptions) == {"s"}
        await inactive.round()
        assert topic.subscriptions == {}

    scenario(work)


def test_a_topic_that_is_no_longer_loaded_is_not_deleted() -> None:
    async def work(world: World, broker: Broker) -> None:
        topic = await broker.topics.get(TOPIC)
        await broker.topics.unload(TOPIC)
        assert not await broker.topics.delete_inactive(topic, lambda one: False)
        assert await broker.topics.exists(TOPIC)

    scenario(work)
