"""Which topics the periodic checks visit: none that rests, and each one that may have something to do."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from quire_broker.managed_ledger.position import EARLIEST
from quire_broker.names import parse_topic
from quire_broker.policies.backlog_quota import BacklogQuota, BacklogQuotas, QuotaPolicy
from quire_broker.settings.compaction import CompactionSettings
from quire_broker.topic.backlog_quota_check import BacklogQuotaCheck, BacklogQuotaSettings
from quire_broker.topic.changes import ChangedTopics
from quire_broker.topic.compaction_check import CompactionCheck
from quire_broker.topic.expiry import Expiry
from quire_broker.topic.topic import Topic
from tests.unit.broker.managed_ledger.world import VirtualClock, World
from tests.unit.broker.topic.test_backlog_quota_check import filled, message
from tests.unit.broker.topic.test_topics import NAMESPACE, TOPIC, Broker, scenario, settle

OTHER = parse_topic("persistent://public/default/other")


async def visited(changed: ChangedTopics) -> list[Topic]:
    return [topic async for topic in changed.round()]


async def rested(broker: Broker) -> None:
    """Let the traffic end."""
    for _ in range(3):
        await asyncio.sleep(10)
        await broker.topics.tick()


async def published(broker: Broker, topic: Topic, count: int) -> None:
    """Publish messages of a kilobyte, and leave."""
    producer, link, _ = await broker.producer(topic, f"p{topic.stats.messages_in}")
    topic.publish(producer, [message(number, 1) for number in range(count)])
    await settle(link, count)
    topic.remove_producer(producer)


def on_topics(work: Callable[[Broker, ChangedTopics, Topic, Topic], Coroutine[Any, Any, None]]) -> None:
    """Run `work` with two topics that rest, and a check that has visited them."""

    async def play(world: World, broker: Broker) -> None:
        changed = broker.topics.changed()
        topic, other = await broker.topics.get(TOPIC), await broker.topics.get(OTHER)
        assert await visited(changed) == [topic, other], "both were loaded"
        await rested(broker)
        assert await visited(changed) == [topic, other], "their traffic ended"
        assert await visited(changed) == []
        await work(broker, changed, topic, other)

    scenario(play)


def test_a_topic_with_traffic_is_visited_in_each_round_and_once_after_its_end() -> None:
    async def work(broker: Broker, changed: ChangedTopics, topic: Topic, other: Topic) -> None:
        await published(broker, topic, 1)
        assert [await visited(changed) for _ in range(2)] == [[topic], [topic]]
        await rested(broker)
        assert [await visited(changed) for _ in range(2)] == [[topic], []]

    on_topics(work)


def test_a_message_that_is_stored_after_the_traffic_ended_is_a_change() -> None:
    async def work(broker: Broker, changed: ChangedTopics, topic: Topic, other: Topic) -> None:
        stored: list[object] = []
        topic.ledger.append(b"late", lambda position, error: stored.append(position))
        assert await visited(changed) == []
        await asyncio.sleep(1)
        assert stored and await visited(changed) == [topic]

    on_topics(work)


def test_a_new_or_moved_cursor_and_other_policies_are_changes() -> None:
    async def work(broker: Broker, changed: ChangedTopics, topic: Topic, other: Topic) -> None:
        subscription = await topic.subscription("s", create=True, initial=EARLIEST)
        assert await visited(changed) == [topic]
        await topic.reader_subscription("reader", EARLIEST)
        assert await visited(changed) == [topic]
        await subscription.seek_position(EARLIEST)
        assert await visited(changed) == [topic]
        await broker.topics.apply(other, None)
        assert [await visited(changed) for _ in range(2)] == [[other], []]

    on_topics(work)


def test_each_check_gets_every_change_and_only_a_round_that_reached_a_topic_is_done_with_it() -> None:
    async def work(broker: Broker, changed: ChangedTopics, topic: Topic, other: Topic) -> None:
        later = broker.topics.changed()
        await published(broker, topic, 1)
        await published(broker, other, 1)
        await rested(broker)
        async for found in changed.round():
            assert found is topic
            break
        assert await visited(changed) == [other]
        assert await visited(later) == [topic, other], "a new check begins with all topics"
        changed.keep(topic)
        assert [await visited(changed) for _ in range(2)] == [[topic], []]

    on_topics(work)


def test_a_closed_topic_is_forgotten_also_if_something_of_it_goes_on() -> None:
    async def work(broker: Broker, changed: ChangedTopics, topic: Topic, other: Topic) -> None:
        changed.keep(topic)
        await published(broker, topic, 1)
        await broker.topics.unload(TOPIC)
        topic._active()
        topic.ledger.on_change()
        assert topic not in changed.due
        assert await visited(changed) == []
        again = await broker.topics.get(TOPIC)
        assert await visited(changed) == [again]

    on_topics(work)


def counting_rules(broker: Broker) -> list[str]:
    """Record the topics whose policies are read from now on."""
    read, rules = [], broker.topics.rules

    async def counted(topic: Any) -> Any:
        read.append(topic.name.local)
        return await rules(topic)

    broker.topics.rules = counted  # type: ignore[method-assign]
    return read


def test_messages_expire_long_after_the_last_change_and_only_a_backlog_costs_a_look() -> None:
    async def work(world: World, broker: Broker) -> None:
        topic, clock = await filled(broker, 3), VirtualClock()
        await published(broker, await broker.topics.get(OTHER), 3)
        expiry = Expiry(broker.topics, clock)
        await rested(broker)
        ttl = {"message_ttl_in_seconds": 100}
        await broker.policies.update_policies(NAMESPACE, lambda value: value.update(ttl))
        read = counting_rules(broker)
        for _ in range(3):
            await expiry.round()
            assert topic.subscriptions["s"].backlog == 3
        assert read == ["t"] * 3
        await asyncio.sleep(200)
        await expiry.round()
        assert not topic.has_backlog
        del read[:]
        await expiry.round()
        assert read == []

    scenario(work)


def test_a_quota_by_age_is_exceeded_without_a_change_and_a_topic_without_backlog_costs_no_look() -> None:
    async def work(world: World, broker: Broker) -> None:
        topic = await filled(broker, 3)
        quota = BacklogQuotas(age=BacklogQuota(100, QuotaPolicy.EVICT))
        check = BacklogQuotaCheck(broker.topics, BacklogQuotaSettings(default=quota), VirtualClock())
        await rested(broker)
        read = counting_rules(broker)
        await check.round()
        await check.round()
        assert topic.backlog.oldest is not None and topic.has_backlog
        await asyncio.sleep(200)
        await check.round()
        assert not topic.has_backlog
        await rested(broker)
        await check.round()
        assert topic.backlog.oldest is None, "the last look after the change"
        del read[:]
        await check.round()
        assert read == []

    scenario(work)


def test_a_new_quota_is_shown_for_a_topic_that_rests() -> None:
    async def work(world: World, broker: Broker) -> None:
        topic = await broker.topics.get(TOPIC)
        check = BacklogQuotaCheck(broker.topics, BacklogQuotaSettings(), VirtualClock())
        await rested(broker)
        await check.round()
        quotas = {"backlog_quota_map": {"destination_storage": {"limitSize": 7, "policy": "producer_exception"}}}
        await broker.policies.update_policies(NAMESPACE, lambda value: value.update(quotas))
        await broker.topics.apply(topic, None)
        await check.round()
        assert topic.backlog.quotas.size == BacklogQuota(7, QuotaPolicy.REFUSE)

    scenario(work)


def test_a_compaction_that_failed_is_tried_again_although_nothing_was_added() -> None:
    async def work(world: World, broker: Broker) -> None:
        topic = await broker.topics.get(TOPIC)
        check = CompactionCheck(broker.topics, CompactionSettings(threshold_bytes=1000))
        await published(broker, topic, 3)
        await rested(broker)
        started: list[str] = []
        topic.compaction.start = lambda: started.append("started")  # type: ignore[method-assign]
        for _ in range(3):
            await check.round()
        assert started == ["started"] * 3
        del topic.compaction.start
        await check.round()
        await asyncio.sleep(10)
        assert (topic.compaction.stats.status, topic.compaction.pending_bytes) == ("SUCCESS", 0)
        await check.round()
        await rested(broker)
        await check.round()
        read = counting_rules(broker)
        await check.round()
        assert read == []

    scenario(work)
