"""Checks and admissions on real topics over simulated bookies: refused and closed producers, evicted messages."""

from typing import Any

import pytest

from quire_broker.errors import ProducerHoldError, ProducerQuotaError
from quire_broker.managed_ledger.position import EARLIEST, Position
from quire_broker.policies.backlog_quota import BacklogQuota, BacklogQuotas, QuotaPolicy
from quire_broker.topic.backlog_quota_check import BacklogQuotaCheck, BacklogQuotaSettings
from quire_broker.topic.producers import Receipt
from quire_broker.topic.topic import Topic
from quire_broker.wire.entry import seal
from quire_broker.wire.frames import Send
from quire_broker.wire.kinds import AccessMode
from quire_broker.wire.proto.pulsar_pb2 import MessageMetadata
from tests.unit.broker.managed_ledger.world import VirtualClock, World
from tests.unit.broker.topic.test_topics import NAMESPACE, TOPIC, Broker, Link, scenario, settle

PAYLOAD = bytes(1000)
MANY = 1 << 40


def message(sequence_id: int, time_ms: int) -> Send:
    metadata = MessageMetadata(producer_name="p", sequence_id=sequence_id, publish_time=time_ms)
    return Send(sequence_id, None, 1, False, False, memoryview(bytes(seal(metadata, PAYLOAD))))


async def filled(broker: Broker, count: int, *, age_s: int = 0) -> Topic:
    """Return a topic with the subscription `s` behind `count` messages of a kilobyte."""
    topic = await broker.topics.get(TOPIC)
    await topic.subscription("s", create=True, initial=EARLIEST)
    producer, link, _ = await broker.producer(topic, "filler")
    topic.publish(producer, [message(number, VirtualClock().now_ms() - age_s * 1000) for number in range(count)])
    await settle(link, count)
    topic.remove_producer(producer)
    return topic


def check(
    broker: Broker, size: BacklogQuota | None = None, age: BacklogQuota | None = None, *, enabled: bool = True
) -> BacklogQuotaCheck:
    settings = BacklogQuotaSettings(enabled=enabled, default=BacklogQuotas(size, age))
    return BacklogQuotaCheck(broker.topics, settings, VirtualClock())


@pytest.mark.parametrize(
    ("policy", "error"), [(QuotaPolicy.HOLD, ProducerHoldError), (QuotaPolicy.REFUSE, ProducerQuotaError)]
)
@pytest.mark.parametrize("kind", ["size", "age"])
def test_a_topic_over_its_quota_admits_no_producer_until_it_is_below(
    policy: QuotaPolicy, error: type[Exception], kind: str
) -> None:
    async def work(world: World, broker: Broker) -> None:
        topic = await filled(broker, 10, age_s=100)
        by_size = kind == "size"
        quotas = (BacklogQuota(5000, policy), None) if by_size else (None, BacklogQuota(60, policy))
        found = check(broker, *quotas)
        with pytest.raises(error, match="quota"):
            await found.admit(topic)
        await topic.subscriptions["s"].skip_all()
        await found.admit(topic)

    scenario(work)


def test_a_quota_is_not_in_force_below_it_nor_switched_off_nor_for_eviction_nor_without_subscriptions() -> None:
    async def work(world: World, broker: Broker) -> None:
        topic = await filled(broker, 10)
        await check(broker, size=BacklogQuota(MANY), age=BacklogQuota(60)).admit(topic)
        await check(broker, enabled=False, size=BacklogQuota(1)).admit(topic)
        await check(broker, size=BacklogQuota(1, QuotaPolicy.EVICT)).admit(topic)
        await topic.drop_subscription("s")
        await check(broker, size=BacklogQuota(1), age=BacklogQuota(1)).admit(topic)

    scenario(work)


def test_a_namespace_overrides_the_broker_and_its_quota_is_shown() -> None:
    async def work(world: World, broker: Broker) -> None:
        topic = await filled(broker, 10)
        said: dict[str, Any] = {"limitSize": 1, "limitTime": -1, "policy": "producer_exception"}
        quotas = {"backlog_quota_map": {"destination_storage": said}}
        await broker.policies.update_policies(NAMESPACE, lambda value: value.update(quotas))
        with pytest.raises(ProducerQuotaError):
            await check(broker, size=BacklogQuota(MANY)).admit(topic)
        assert topic.backlog.quotas == BacklogQuotas(BacklogQuota(1, QuotaPolicy.REFUSE))

    scenario(work)


def test_a_check_closes_producers_after_their_sends_are_answered_and_skips_no_messages() -> None:
    async def work(world: World, broker: Broker) -> None:
        topic = await filled(broker, 10)
        producer, link, _ = await broker.producer(topic)
        topic.publish(producer, [message(1, 1), message(2, 1)])
        await check(broker, size=BacklogQuota(5000)).round()
        assert (producer.leaving, producer.closed) == (True, False)
        await settle(link, 2)
        assert [type(one) if one != "closed" else one for one in link.heard] == [Receipt, Receipt, "closed"]
        assert producer.closed
        assert len(topic.producers) == 0
        assert topic.subscriptions["s"].cursor.backlog == 12

    scenario(work)


def test_a_check_closes_waiting_producers_and_promotes_none_of_them() -> None:
    async def work(world: World, broker: Broker) -> None:
        topic = await filled(broker, 10)
        links: list[Link] = []
        for name in ("a", "b"):
            _, link, _ = await broker.producer(topic, name, mode=AccessMode.WAIT_FOR_EXCLUSIVE)
            links.append(link)
        await check(broker, size=BacklogQuota(5000)).round()
        assert [link.heard for link in links] == [["closed"], ["closed"]]
        assert (len(topic.producers), topic.producers.waiting) == (0, 0)

    scenario(work)


def test_eviction_by_size_stops_below_the_limit_and_moves_only_subscriptions_behind_it() -> None:
    async def work(world: World, broker: Broker) -> None:
        topic = await filled(broker, 20)
        ahead = await topic.subscription("ahead", create=True, initial=EARLIEST)
        await ahead.skip(15)
        reader = await topic.reader_subscription("reader", EARLIEST)
        marks = (ahead.cursor.mark_delete, reader.cursor.mark_delete)
        entry_bytes = topic.ledger.size_bytes // 20
        await check(broker, size=BacklogQuota(10 * entry_bytes, QuotaPolicy.EVICT)).round()
        assert topic.subscriptions["s"].cursor.backlog == 9
        assert (ahead.cursor.mark_delete, reader.cursor.mark_delete) == marks
        assert (topic.backlog.stats.size_evictions, topic.backlog.stats.age_evictions) == (1, 0)
        await check(broker, size=BacklogQuota(10 * entry_bytes, QuotaPolicy.EVICT)).round()
        assert (topic.subscriptions["s"].cursor.backlog, topic.backlog.stats.size_evictions) == (9, 1)

    scenario(work)


def test_eviction_by_age_skips_only_older_messages() -> None:
    async def work(world: World, broker: Broker) -> None:
        topic = await filled(broker, 3, age_s=100)
        await filled(broker, 2, age_s=10)
        found = check(broker, age=BacklogQuota(60, QuotaPolicy.EVICT))
        await found.round()
        assert topic.subscriptions["s"].cursor.backlog == 2
        oldest = await topic.backlog.find_oldest()
        assert oldest is not None
        assert (oldest.subscription, oldest.position.entry_id) == ("s", 3)

    scenario(work)


def test_the_oldest_message_is_read_once_and_is_at_least_as_old_as_the_end_of_its_ledger() -> None:
    async def work(world: World, broker: Broker) -> None:
        topic = await filled(broker, 1, age_s=-1000)  # a producer whose clock is ahead
        assert (await topic.backlog.find_oldest()) is not None
        await topic.ledger.roll()
        ended_ms, reads = topic.ledger.ledgers[0].closed_ms, world.bookies.reads
        oldest = await topic.backlog.find_oldest()
        assert oldest is not None
        assert (oldest.time_ms, world.bookies.reads) == (ended_ms, reads)
        assert oldest.position == Position(topic.ledger.ledgers[0].ledger_id, 0)

    scenario(work)
