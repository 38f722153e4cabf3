"""Metrics of a broker, under the names that operators of Pulsar have in their dashboards.

Only existing values are exported. The monitoring system computes rates from the totals. Metrics without a Pulsar
counterpart are named `quire_broker_*`.
"""

from quire_bookie.metrics import Kind, Reading, of_stats
from quire_broker.managed_ledger.reading.entry_cache import EntryCacheStats
from quire_broker.policies.backlog_quota import NO_LIMIT
from quire_broker.server.broker import RunningBroker
from quire_broker.topic.topic import Topic

_Names = dict[str, tuple[str, Kind, str]]

SERVER: _Names = {
    "connections_opened": ("pulsar_connection_created_total_count", "counter", "connections opened"),
    "connections_closed": ("pulsar_connection_closed_total_count", "counter", "connections closed"),
    "messages_in": ("pulsar_broker_in_messages_total", "counter", "messages stored"),
    "bytes_in": ("pulsar_broker_in_bytes_total", "counter", "bytes of stored messages"),
    "messages_out": ("pulsar_broker_out_messages_total", "counter", "messages delivered"),
    "bytes_out": ("pulsar_broker_out_bytes_total", "counter", "bytes of delivered messages"),
    "requests": ("quire_broker_requests_total", "counter", "requests of clients that expect an answer"),
    "requests_failed": ("quire_broker_requests_failed_total", "counter", "requests answered with an error"),
    "lookups": ("pulsar_broker_lookup_answers", "counter", "lookups answered"),
    "authentications": ("quire_broker_authentications_total", "counter", "clients that authenticated"),
    "authentications_failed": ("quire_broker_authentication_failures_total", "counter", "failed authentications"),
}
CACHE: _Names = {
    "hits": ("quire_broker_cache_hits_total", "counter", "reads that the entry cache answered"),
    "misses": ("quire_broker_cache_misses_total", "counter", "reads that went to the bookies"),
    "inserted": ("pulsar_ml_cache_inserted_entries_total", "counter", "entries inserted into the cache"),
    "evicted": ("pulsar_ml_cache_evicted_entries_total", "counter", "entries evicted from the cache"),
}
OFFLOAD: _Names = {
    "offloaded_ledgers": ("quire_broker_offloaded_ledgers_total", "counter", "ledgers whose offload completed"),
    "offloaded_bytes": ("quire_broker_offloaded_bytes_total", "counter", "bytes of those ledgers"),
    "offload_failures": ("quire_broker_offload_failures_total", "counter", "offloads of this broker that failed"),
    "reads": ("quire_broker_offload_reads_total", "counter", "reads of offloaded ledgers from their bucket"),
    "read_failures": ("quire_broker_offload_read_failures_total", "counter", "failed reads from buckets"),
    "fallbacks": ("quire_broker_offload_fallbacks_total", "counter", "reads that the other copy of a ledger answered"),
    "bookie_copies_deleted": (
        "quire_broker_offload_bookie_copies_deleted_total",
        "counter",
        "copies of offloaded ledgers deleted from bookies",
    ),
    "segments_deleted": ("quire_broker_offload_segments_deleted_total", "counter", "ledgers deleted from buckets"),
}
WINDOWS: _Names = {
    "hits": ("quire_broker_offload_cache_hits_total", "counter", "ranges of objects read from the cache"),
    "fetched": ("quire_broker_offload_range_requests_total", "counter", "ranges fetched"),
    "fetched_bytes": ("quire_broker_offload_range_bytes_total", "counter", "bytes of those ranges"),
    "failed": ("quire_broker_offload_range_failures_total", "counter", "ranges that could not be fetched"),
}
TOPIC: _Names = {
    "messages_in": ("pulsar_in_messages_total", "counter", "messages stored"),
    "bytes_in": ("pulsar_in_bytes_total", "counter", "bytes of stored messages"),
    "duplicates": ("quire_topic_duplicates_total", "counter", "sends that deduplication dropped"),
    "checksum_errors": ("quire_topic_checksum_errors_total", "counter", "sends refused for a wrong checksum"),
}


def _tls_readings(broker: RunningBroker, cluster: dict[str, str]) -> list[Reading]:
    """Return the readings of the certificate in use; none without TLS."""
    tls = broker.access.tls
    if tls is None:
        return []
    end, failures = "quire_broker_tls_certificate_end_seconds", "quire_broker_tls_certificate_load_failures_total"
    return [
        Reading(
            end,
            "gauge",
            "expiry of the certificate in use, in s since the epoch",
            tls.stats.certificate_end_ms // 1000,
            cluster,
        ),
        Reading(failures, "counter", "changed certificates that could not be used", tls.stats.load_failures, cluster),
    ]


def broker_readings(broker: RunningBroker) -> list[Reading]:
    """Return all readings of a broker: its own, then each loaded topic's."""
    cluster = {"cluster": broker.settings.cluster}
    topics = broker.topics.loaded
    cache = broker.factory.cache
    cache_stats: EntryCacheStats = cache.stats
    gauges = (
        ("pulsar_active_connections", "open connections", len(broker.sessions)),
        ("pulsar_broker_topics_count", "loaded topics", len(topics)),
        ("pulsar_broker_producers_count", "connected producers", sum(len(topic.producers) for topic in topics)),
        ("pulsar_broker_subscriptions_count", "subscriptions", sum(len(topic.subscriptions) for topic in topics)),
        ("pulsar_broker_consumers_count", "connected consumers", sum(_consumers(topic) for topic in topics)),
        ("pulsar_broker_storage_size", "bytes kept", sum(topic.ledger.size_bytes for topic in topics)),
        ("pulsar_ml_cache_used_size", "bytes in the entry cache", cache.size_bytes),
        ("quire_broker_publish_pending_bytes", "bytes received and not yet stored", broker.budget.used_bytes),
        ("quire_broker_bundles_owned", "bundles that this broker owns", len(broker.owners.held)),
    )
    readings = [Reading(name, "gauge", text, value, cluster) for name, text, value in gauges]
    readings += broker.memory.readings(cluster)
    readings += _tls_readings(broker, cluster)
    readings += of_stats(broker.parts.stats, SERVER, cluster)
    readings += of_stats(cache_stats, CACHE, cluster)
    readings += of_stats(broker.factory.tier.stats, OFFLOAD, cluster)
    readings += of_stats(broker.factory.tier.windows.stats, WINDOWS, cluster)
    counts = (
        ("quire_broker_publish_pauses_total", "times reading paused", broker.budget.pauses),
        ("quire_broker_background_failures_total", "background tasks that failed", broker.background.failures),
        (
            "quire_broker_speculative_reads_total",
            "reads sent to a further bookie because one was slow",
            broker.ledger_client.replica_health.speculative_reads,
        ),
        (
            "quire_broker_foreign_ledger_answers_total",
            "unused answers of bookies that hold another ledger under the id",
            broker.ledger_client.replica_health.foreign_answers,
        ),
    )
    readings += [Reading(name, "counter", text, value, cluster) for name, text, value in counts]
    for topic in topics:
        readings += _topic_readings(topic, cluster)
    return readings


def _offloaded(topic: Topic) -> int:
    return sum(record.size_bytes for record in topic.ledger.ledgers if record.offloaded)


def _consumers(topic: Topic) -> int:
    return sum(len(subscription.consumers) for subscription in topic.subscriptions.values())


def _backlog_readings(topic: Topic, labels: dict[str, str]) -> list[Reading]:
    """Return the limits found by the last check; -1: none."""
    backlog = topic.backlog
    size, age = backlog.quotas.size, backlog.quotas.age
    evictions = "pulsar_storage_backlog_quota_exceeded_evictions_total"
    evicted = (("size", backlog.stats.size_evictions), ("time", backlog.stats.age_evictions))
    gauges = (
        ("pulsar_storage_backlog_size", "bytes behind the slowest subscription", backlog.size_bytes),
        ("pulsar_storage_backlog_quota_limit", "limit of these bytes", NO_LIMIT if size is None else size.limit),
        ("pulsar_storage_backlog_quota_limit_time", "limit of the age in s", NO_LIMIT if age is None else age.limit),
    )
    return [
        *(Reading(name, "gauge", text, value, labels) for name, text, value in gauges),
        *(
            Reading(evictions, "counter", "evictions of messages", count, {**labels, "quota_type": kind})
            for kind, count in evicted
        ),
    ]


def _topic_readings(topic: Topic, cluster: dict[str, str]) -> list[Reading]:
    labels = {**cluster, "namespace": str(topic.name.namespace), "topic": str(topic.name)}
    readings = of_stats(topic.stats, TOPIC, labels)
    readings += [
        Reading("pulsar_storage_size", "gauge", "bytes kept", topic.ledger.size_bytes, labels),
        Reading("pulsar_storage_offloaded_size", "gauge", "bytes kept in a bucket", _offloaded(topic), labels),
        *_backlog_readings(topic, labels),
        Reading("pulsar_producers_count", "gauge", "connected producers", len(topic.producers), labels),
        Reading("pulsar_subscriptions_count", "gauge", "subscriptions", len(topic.subscriptions), labels),
        Reading("pulsar_consumers_count", "gauge", "connected consumers", _consumers(topic), labels),
    ]
    for name, subscription in topic.subscriptions.items():
        owned = {**labels, "subscription": name}
        unacked = sum(consumer.unacked for consumer in subscription.consumers)
        readings += [
            Reading("pulsar_subscription_back_log", "gauge", "entries to deliver", subscription.cursor.backlog, owned),
            Reading("pulsar_subscription_unacked_messages", "gauge", "delivered, not acknowledged", unacked, owned),
            Reading(
                "pulsar_subscription_consumers_count", "gauge", "connected", len(list(subscription.consumers)), owned
            ),
        ]
    return readings
