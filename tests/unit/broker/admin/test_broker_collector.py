"""The metrics of a running broker, over its HTTP port: names, both formats, topics that go during a scrape."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from prometheus_client.metrics_core import Metric

from quire_bookie.exposition.rendering import PAUSE
from quire_broker.admin.broker_collector import BrokerCollector
from quire_broker.admin.topic_families import namespace_families, topic_families
from quire_broker.names import parse_topic
from quire_broker.server.broker import RunningBroker
from quire_broker.settings.metrics import MetricsSettings
from quire_broker.topic.topic import Topic
from tests.support.broker_world import running_brokers
from tests.support.scrapes import ACCEPT_OPENMETRICS, CLASSIC, OPENMETRICS, check_formats
from tests.unit.broker.compaction.messages import entry
from tests.unit.broker.managed_ledger.world import append


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[RunningBroker]:
    async with running_brokers(tmp_path, 1) as world:
        yield world.brokers[0]


@pytest.fixture
async def detailed(tmp_path: Path) -> AsyncIterator[RunningBroker]:
    """A broker that shows each topic."""
    async with running_brokers(tmp_path / "detailed", 1, metrics=MetricsSettings(of_topics=True)) as world:
        yield world.brokers[0]


async def topic_of(broker: RunningBroker, local: str, *subscriptions: str) -> Topic:
    name = parse_topic(f"public/default/{local}")
    assert await broker.parts.lookups.find(name) is not None
    topic = await broker.topics.get(name, create=True)
    for subscription in subscriptions:
        await topic.subscription(subscription, create=True)
    return topic


async def until_done(topic: Topic) -> None:
    """Wait until a compaction has ended."""
    while topic.compaction.running:  # noqa: ASYNC110  it has no event
        await asyncio.sleep(0.01)


async def scraped(broker: RunningBroker) -> dict[str, Metric]:
    """Return the families of a scrape, after a check of both formats."""
    texts = []
    async with aiohttp.ClientSession() as session:
        for accept, content_type in (("*/*", CLASSIC), (ACCEPT_OPENMETRICS, OPENMETRICS)):
            url = f"http://127.0.0.1:{broker.http_port}/metrics"
            async with session.get(url, headers={"Accept": accept}) as answer:
                assert answer.headers["Content-Type"].startswith(content_type)
                texts.append(await answer.text())
    return check_formats(*texts)


async def test_a_namespace_has_the_sums_of_its_topics(broker: RunningBroker) -> None:
    orders, lonely = await topic_of(broker, "orders", "s", "t"), await topic_of(broker, "lonely")
    orders.stats.messages_in, lonely.stats.messages_in = 3, 4
    found = await scraped(broker)
    labels = {"cluster": "standalone", "namespace": "public/default"}
    for name, value in (
        ("pulsar_topics_count", 2),
        ("pulsar_subscriptions_count", 2),
        ("pulsar_in_messages", 7),
        ("quire_broker_largest_backlog", 0),
        ("pulsar_subscription_unacked_messages", 0),
    ):
        assert [(sample.labels, sample.value) for sample in found[name].samples] == [(labels, value)], name
    assert found["pulsar_msg_backlog"].samples[0].labels == {**labels, "remote_cluster": "local"}
    assert found["pulsar_broker_subscriptions_count"].samples[0].value == 2
    evictions = found["pulsar_storage_backlog_quota_exceeded_evictions"].samples
    assert {sample.labels["quota_type"] for sample in evictions} == {"size", "time"}
    used = {label for family in found.values() for sample in family.samples for label in sample.labels}
    assert not used & {"topic", "subscription"}
    assert found["quire_loop_stall_seconds"].type == "histogram"


async def test_sums_survive_topics_that_come_and_go_meanwhile(broker: RunningBroker) -> None:
    topics = [await topic_of(broker, f"t{number}", "s") for number in range(3)]
    families = namespace_families(topics, "c")
    assert next(families) is PAUSE
    await broker.topics.unload(topics[0].name)
    await topics[1].subscription("later", create=True)
    found = {family.name: family.samples[0].value for family in families if family is not PAUSE}
    assert found["pulsar_topics_count"] == 3
    assert found["quire_broker_largest_backlog"] == 0


async def test_on_request_each_topic_and_subscription_has_series(detailed: RunningBroker) -> None:
    await topic_of(detailed, "orders", "s", "t")
    await topic_of(detailed, "lonely")
    found = await scraped(detailed)
    labels = {"cluster": "standalone", "namespace": "public/default", "topic": "persistent://public/default/orders"}
    assert found["pulsar_broker_topics_count"].samples[0].value == 2
    assert found["pulsar_broker_subscriptions_count"].samples[0].value == 2
    assert found["pulsar_in_messages"].samples[0].labels == labels
    assert {s.labels["topic"].rpartition("/")[2] for s in found["pulsar_storage_size"].samples} == {"orders", "lonely"}
    backlogs = [sample.labels for sample in found["pulsar_subscription_back_log"].samples]
    assert backlogs == [{**labels, "subscription": name} for name in ("s", "t")]
    evictions = found["pulsar_storage_backlog_quota_exceeded_evictions"].samples
    assert {sample.labels["quota_type"] for sample in evictions} == {"size", "time"}
    assert {sample.value for sample in found["pulsar_storage_backlog_quota_limit"].samples} == {-1}
    assert found["quire_broker_largest_backlog"].samples[0].labels.keys() == {"cluster", "namespace"}
    assert found["quire_connection_memory_max_bytes"].samples[0].labels == {"cluster": "standalone"}


async def test_compactions_have_metrics_of_topics_that_were_compacted(
    broker: RunningBroker, detailed: RunningBroker
) -> None:
    prefix = "pulsar_compaction_"
    for one in (broker, detailed):
        topic = await topic_of(one, "orders")
        await topic_of(one, "lonely")
        await append(topic.ledger, *(entry(key, b"12345") for key in ("a", "b", "a")))
        topic.compaction.start()
        await until_done(topic)
        found = {name: family.samples for name, family in (await scraped(one)).items() if name.startswith(prefix)}
        values = {name.removeprefix(prefix): samples[0].value for name, samples in found.items()}
        assert all(len(samples) == 1 for samples in found.values()), "one namespace, or one topic"
        assert values["removed_event_count"] == 1
        assert (values["succeed_count"], values["failed_count"]) == (1, 0)
        assert values["compacted_entries_count"] == 2 and values["compacted_entries_size"] > 10
        if one is broker:
            assert "read_throughput" not in values
            continue
        assert values["read_throughput"] > values["write_throughput"] > 0
        assert values["duration_time_in_mills"] > 0
        await one.topics.unload(topic.name)
        again = await topic_of(one, "orders")
        assert again.compaction.was_used and again.compaction.size == (0, 0)
        assert again.compaction.reader is not None
        await again.compaction.reader.size()
        assert again.compaction.size == (2, values["compacted_entries_size"])


async def test_a_name_has_one_family(broker: RunningBroker, detailed: RunningBroker) -> None:
    for one in (broker, detailed):
        await topic_of(one, "orders", "s")
        names = [family.name for family in BrokerCollector(one).collect() if family is not PAUSE]
        assert len(names) == len(set(names)), "few topics: a piece each"


async def test_a_subscription_that_is_created_during_a_scrape_does_not_end_it(broker: RunningBroker) -> None:
    first, second = await topic_of(broker, "first", "a", "b"), await topic_of(broker, "second", "a")
    shown: dict[str, int] = {}
    for family in topic_families([first, second], "c"):
        shown[family.name] = len(family.samples)
        if family.name == "pulsar_subscription_back_log":
            await first.subscription("later", create=True)
    assert shown["pulsar_subscription_back_log"] == 3
    assert shown["pulsar_subscription_consumers_count"] == 4


async def test_a_topic_that_is_unloaded_during_a_scrape_does_not_end_it(broker: RunningBroker) -> None:
    topics = [await topic_of(broker, "first", "a"), await topic_of(broker, "second", "a")]
    found = topic_families(topics, "c")
    next(found)
    await broker.topics.unload(topics[1].name)
    assert [len(family.samples) for family in found if family.name == "pulsar_subscription_back_log"] == [1]
