"""Metrics of topics and their subscriptions: sums of each namespace, or the values of each topic.

Both are collected in pieces, since there may be hundreds of thousands of values.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from functools import cache
from itertools import islice
from typing import NamedTuple

from prometheus_client.metrics_core import Metric

from quire_bookie import limits
from quire_bookie.dataclass import dataclass
from quire_bookie.exposition.families import Kind, pieces
from quire_bookie.exposition.rendering import PAUSE
from quire_broker.policies.backlog_quota import NO_LIMIT
from quire_broker.topic.subscription import Subscription
from quire_broker.topic.topic import Topic


def _consumers(topic: Topic) -> int:
    return sum(len(subscription.consumers) for subscription in topic.subscriptions.values())


def _offloaded(topic: Topic) -> int:
    return sum(record.size_bytes for record in topic.ledger.ledgers if record.offloaded)


def _size_limit(topic: Topic) -> float:
    quota = topic.backlog.quotas.size
    return NO_LIMIT if quota is None else quota.limit


def _age_limit(topic: Topic) -> float:
    quota = topic.backlog.quotas.age
    return NO_LIMIT if quota is None else quota.limit


def _unacked(subscription: Subscription) -> int:
    return sum(consumer.unacked for consumer in subscription.consumers)


class TopicMetric(NamedTuple):
    """A metric of each topic. `total`: name of its sum over the broker; empty: not published.

    `summed`: whether its sum is a metric of a namespace.
    """

    name: str
    kind: Kind
    text: str
    value: Callable[[Topic], float]
    total: str = ""
    summed: bool = True


TOPIC = (
    TopicMetric("pulsar_in_messages_total", "counter", "messages stored", lambda topic: topic.stats.messages_in),
    TopicMetric("pulsar_in_bytes_total", "counter", "bytes of stored messages", lambda topic: topic.stats.bytes_in),
    TopicMetric(
        "quire_topic_duplicates_total",
        "counter",
        "sends that deduplication dropped",
        lambda topic: topic.stats.duplicates,
    ),
    TopicMetric(
        "quire_topic_checksum_errors_total",
        "counter",
        "sends refused for a wrong checksum",
        lambda topic: topic.stats.checksum_errors,
    ),
    TopicMetric(
        "pulsar_storage_size",
        "gauge",
        "bytes kept",
        lambda topic: topic.ledger.size_bytes,
        total="pulsar_broker_storage_size",
    ),
    TopicMetric("pulsar_storage_offloaded_size", "gauge", "bytes kept in a bucket", _offloaded),
    TopicMetric(
        "pulsar_storage_backlog_size",
        "gauge",
        "bytes behind the slowest subscription",
        lambda topic: topic.backlog.size_bytes,
    ),
    TopicMetric("pulsar_storage_backlog_quota_limit", "gauge", "limit of these bytes", _size_limit, summed=False),
    TopicMetric("pulsar_storage_backlog_quota_limit_time", "gauge", "limit of the age in s", _age_limit, summed=False),
    TopicMetric(
        "pulsar_producers_count",
        "gauge",
        "connected producers",
        lambda topic: len(topic.producers),
        total="pulsar_broker_producers_count",
    ),
    TopicMetric(
        "pulsar_subscriptions_count",
        "gauge",
        "subscriptions",
        lambda topic: len(topic.subscriptions),
        total="pulsar_broker_subscriptions_count",
    ),
    TopicMetric(
        "pulsar_consumers_count",
        "gauge",
        "connected consumers",
        _consumers,
        total="pulsar_broker_consumers_count",
    ),
)
"""Backlogs and their limits are those of the last check; limit -1: none."""
COMPACTION = (
    TopicMetric(
        "pulsar_compaction_removed_event_count",
        "gauge",
        "messages that compactions dropped since the topic was loaded",
        lambda topic: topic.compaction.stats.removed_in_all,
    ),
    TopicMetric(
        "pulsar_compaction_succeed_count",
        "gauge",
        "compactions that succeeded since the topic was loaded",
        lambda topic: topic.compaction.stats.successes,
    ),
    TopicMetric(
        "pulsar_compaction_failed_count",
        "gauge",
        "compactions that failed since the topic was loaded",
        lambda topic: topic.compaction.stats.failures,
    ),
    TopicMetric(
        "pulsar_compaction_duration_time_in_mills",
        "gauge",
        "ms that the last successful compaction took",
        lambda topic: topic.compaction.stats.duration_ms,
        summed=False,
    ),
    TopicMetric(
        "pulsar_compaction_read_throughput",
        "gauge",
        "bytes per second that the last successful compaction read",
        lambda topic: topic.compaction.stats.per_s(topic.compaction.stats.read_bytes),
        summed=False,
    ),
    TopicMetric(
        "pulsar_compaction_write_throughput",
        "gauge",
        "bytes per second that the last successful compaction wrote",
        lambda topic: topic.compaction.stats.per_s(topic.compaction.stats.kept_bytes),
        summed=False,
    ),
    TopicMetric(
        "pulsar_compaction_compacted_entries_count",
        "gauge",
        "entries of compacted ledgers; of one that another broker wrote: from its first read on",
        lambda topic: topic.compaction.size[0],
    ),
    TopicMetric(
        "pulsar_compaction_compacted_entries_size",
        "gauge",
        "bytes of compacted ledgers; of one that another broker wrote: from its first read on",
        lambda topic: topic.compaction.size[1],
    ),
)
"""Of topics that were compacted."""
EVICTIONS = "pulsar_storage_backlog_quota_exceeded_evictions_total"
SUBSCRIPTION: tuple[tuple[str, Kind, str, Callable[[Subscription], float]], ...] = (
    ("pulsar_subscription_back_log", "gauge", "entries to deliver", lambda subscription: subscription.cursor.backlog),
    ("pulsar_subscription_unacked_messages", "gauge", "delivered, not acknowledged", _unacked),
    ("pulsar_subscription_consumers_count", "gauge", "connected", lambda subscription: len(subscription.consumers)),
)
"""Name, kind, help text and value of each subscription."""
SUMMED = tuple(metric for metric in (*TOPIC, *COMPACTION) if metric.summed)


@dataclass(slots=True)
class _Namespace:
    """The sums of one namespace."""

    topics: int = 0
    sums: list[float] = field(default_factory=lambda: [0.0] * len(SUMMED))
    size_evictions: int = 0
    age_evictions: int = 0
    backlog: int = 0
    unacked: int = 0

    def add(self, topic: Topic) -> None:
        """Add the values of a topic."""
        self.topics += 1
        for place, metric in enumerate(SUMMED):
            self.sums[place] += metric.value(topic)
        self.size_evictions += topic.backlog.stats.size_evictions
        self.age_evictions += topic.backlog.stats.age_evictions
        for subscription in topic.subscriptions.values():
            self.backlog += subscription.cursor.backlog
            self.unacked += _unacked(subscription)


_NAMESPACE: tuple[tuple[str, str, Callable[[_Namespace], float]], ...] = (
    ("pulsar_topics_count", "loaded topics", lambda sums: sums.topics),
    ("pulsar_subscription_unacked_messages", "delivered, not acknowledged", lambda sums: sums.unacked),
)
"""Name, help text and value of the gauges of each namespace beside `SUMMED`."""


def namespace_families(topics: Sequence[Topic], cluster: str) -> Iterator[Metric]:
    """Yield the families of the namespaces of these topics, with pauses. Topics may change or be closed in between."""
    found: dict[str, _Namespace] = {}
    left = iter(topics)
    while some := tuple(islice(left, limits.SCRAPE_PIECE_SAMPLES)):
        for topic in some:
            found.setdefault(str(topic.name.namespace), _Namespace()).add(topic)
        yield PAUSE
    names = ("cluster", "namespace")
    for place, (name, kind, text, _, total, _) in enumerate(SUMMED):
        yield from pieces(name, kind, text, names, (((cluster, of), sums.sums[place]) for of, sums in found.items()))
        if total:
            everything = sum(sums.sums[place] for sums in found.values())
            yield from pieces(total, kind, text, ("cluster",), [((cluster,), everything)])
    for name, text, value_of in _NAMESPACE:
        yield from pieces(name, "gauge", text, names, (((cluster, of), value_of(sums)) for of, sums in found.items()))
    backlogs = (((cluster, of, "local"), float(sums.backlog)) for of, sums in found.items())
    yield from pieces("pulsar_msg_backlog", "gauge", "entries to deliver", (*names, "remote_cluster"), backlogs)
    evictions = (
        ((cluster, of, quota), float(count))
        for of, sums in found.items()
        for quota, count in (("size", sums.size_evictions), ("time", sums.age_evictions))
    )
    yield from pieces(EVICTIONS, "counter", "evictions of messages", (*names, "quota_type"), evictions)
    yield from _largest_backlogs(topics, cluster)


def _largest_backlogs(topics: Sequence[Topic], cluster: str) -> Iterator[Metric]:
    """Yield the largest backlog of each namespace, with pauses: what an alert needs without series of topics."""
    found: dict[str, float] = {}
    left = iter(topics)
    while some := tuple(islice(left, limits.SCRAPE_PIECE_SAMPLES)):
        for topic in some:
            of = str(topic.name.namespace)
            backlogs = (subscription.cursor.backlog for subscription in topic.subscriptions.values())
            found[of] = max(found.get(of, 0.0), *backlogs, 0.0)
        yield PAUSE
    name, text = "quire_broker_largest_backlog", "entries to deliver of the subscription that has most of them"
    rows = (((cluster, of), backlog) for of, backlog in found.items())
    yield from pieces(name, "gauge", text, ("cluster", "namespace"), rows)


def topic_families(topics: Sequence[Topic], cluster: str) -> Iterator[Metric]:
    """Yield the families of these topics. Topics and subscriptions may change or be closed in between."""

    @cache
    def labels(topic: Topic) -> tuple[str, str, str]:
        return cluster, str(topic.name.namespace), str(topic.name)

    names = ("cluster", "namespace", "topic")
    for name, kind, text, value, total, _ in TOPIC:
        rows = ((labels(topic), value(topic)) for topic in topics)
        if not total:
            yield from pieces(name, kind, text, names, rows)
            continue
        found = 0.0
        for family in pieces(name, kind, text, names, rows):
            found += sum(sample.value for sample in family.samples)
            yield family
        yield from pieces(total, kind, text, ("cluster",), [((cluster,), found)])
    evictions = (
        ((*labels(topic), quota), count)
        for topic in topics
        for quota, count in (("size", topic.backlog.stats.size_evictions), ("time", topic.backlog.stats.age_evictions))
    )
    yield from pieces(EVICTIONS, "counter", "evictions of messages", (*names, "quota_type"), evictions)
    yield from _compactions(topics, labels)
    for name, kind, text, value_of in SUBSCRIPTION:
        owned = (
            ((*labels(topic), subscription), value_of(found))
            for topic in topics
            for subscription, found in tuple(topic.subscriptions.items())
        )
        yield from pieces(name, kind, text, (*names, "subscription"), owned)
    yield from _largest_backlogs(topics, cluster)


def _compactions(topics: Sequence[Topic], labels: Callable[[Topic], tuple[str, str, str]]) -> Iterator[Metric]:
    """Yield the families of topics that were compacted, with pauses."""
    found: list[Topic] = []
    left = iter(topics)
    while some := tuple(islice(left, limits.SCRAPE_PIECE_SAMPLES)):
        found += [topic for topic in some if topic.compaction.was_used]
        yield PAUSE
    for name, kind, text, value, _, _ in COMPACTION:
        rows = ((labels(topic), value(topic)) for topic in found)
        yield from pieces(name, kind, text, ("cluster", "namespace", "topic"), rows)
