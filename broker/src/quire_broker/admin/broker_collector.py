"""Collects the metrics of a broker, under the names that operators of Pulsar have in their dashboards.

Only existing values are exported. The monitoring system computes rates from the totals. Metrics without a Pulsar
counterpart are named `quire_broker_*`.
"""

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from quire_bookie.exposition.connection_memory import add_connection_memory
from quire_bookie.exposition.families import Families, Names
from quire_bookie.exposition.slow_operations import Named, add_slow_operations
from quire_broker.admin.topic_families import namespace_families, topic_families
from quire_broker.balancing.events import EventKind
from quire_broker.server.broker import RunningBroker

SERVER: Names = {
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
CACHE: Names = {
    "hits": ("quire_broker_cache_hits_total", "counter", "entries that readers got from the entry cache"),
    "misses": ("quire_broker_cache_misses_total", "counter", "entries that readers got from bookies or a bucket"),
    "joined": ("quire_broker_cache_joined_total", "counter", "entries that readers got from a fetch of another reader"),
    "inserted": ("pulsar_ml_cache_inserted_entries_total", "counter", "entries inserted into the cache"),
    "evicted": ("pulsar_ml_cache_evicted_entries_total", "counter", "entries evicted from the cache"),
}
CATCH_UP: Names = {
    "reads": ("quire_broker_catch_up_reads_total", "counter", "reads far behind the tail"),
    "waits": ("quire_broker_catch_up_waits_total", "counter", "reads far behind the tail that waited for their turn"),
}
OFFLOAD: Names = {
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
WINDOWS: Names = {
    "hits": ("quire_broker_offload_cache_hits_total", "counter", "ranges of objects read from the cache"),
    "fetched": ("quire_broker_offload_range_requests_total", "counter", "ranges fetched"),
    "fetched_bytes": ("quire_broker_offload_range_bytes_total", "counter", "bytes of those ranges"),
    "failed": ("quire_broker_offload_range_failures_total", "counter", "ranges that could not be fetched"),
}

_SLOW: tuple[Named, Named] = (
    ("quire_broker_slow_operations_total", "counter", "operations that took slowOperationMs or longer, by kind"),
    ("quire_broker_slow_operations_suppressed_total", "counter", "slow operations without a line in the log"),
)


class BrokerCollector:
    """Collects the metrics of a broker: its own, then those of each namespace with loaded topics, or of each topic."""

    def __init__(self, broker: RunningBroker) -> None:
        self._broker = broker

    def collect(self) -> Iterator[Metric]:
        """Yield all families. The loop may run between two of them, so that topics come, change and go."""
        yield from _families(self._broker)
        settings = self._broker.settings
        families = topic_families if settings.metrics.of_topics else namespace_families
        yield from families(self._broker.topics.loaded, settings.cluster)


def _families(broker: RunningBroker) -> Families:
    families, labels = Families(), {"cluster": broker.settings.cluster}
    cache = broker.factory.cache
    health = broker.ledger_client.replica_health
    for name, text, value in (
        ("pulsar_active_connections", "open connections", len(broker.sessions)),
        ("pulsar_broker_topics_count", "loaded topics", len(broker.topics.loaded)),
        ("quire_broker_non_persistent_topics", "non-persistent topics", len(broker.topics.non_persistent.loaded)),
        ("pulsar_ml_cache_used_size", "bytes in the entry cache", cache.size_bytes),
        ("quire_broker_publish_pending_bytes", "bytes received and not yet stored", broker.budget.used_bytes),
        ("quire_broker_bundles_owned", "bundles that this broker owns", len(broker.owners.held)),
    ):
        families.add(name, "gauge", text, value, labels)
    add_connection_memory(families, broker.memory, labels)
    add_slow_operations(families, broker.parts.slow, *_SLOW, labels)
    _add_balancing(families, broker, labels)
    _add_tls(families, broker, labels)
    families.add_stats(broker.parts.stats, SERVER, labels)
    families.add_stats(cache.stats, CACHE, labels)
    families.add_stats(broker.factory.turns.stats, CATCH_UP, labels)
    families.add_stats(broker.factory.tier.stats, OFFLOAD, labels)
    families.add_stats(broker.factory.tier.windows.stats, WINDOWS, labels)
    for name, text, value in (
        (
            "quire_broker_marked_ledgers_ended_total",
            "open ledgers without traffic that were ended because a replica is marked as missing",
            broker.marked.ended,
        ),
        ("quire_broker_topics_closed_total", "topics closed because nothing used them", broker.unused.closed),
        ("quire_broker_inactive_topics_deleted_total", "topics deleted by policies", broker.inactive.deleted),
        ("quire_broker_subscriptions_expired_total", "subscriptions deleted by policies", broker.inactive.expired),
        (
            "quire_broker_non_persistent_dropped_total",
            "messages that subscriptions of non-persistent topics lost, because no consumer could take them",
            broker.topics.non_persistent.dropped,
        ),
        ("quire_broker_publish_pauses_total", "times reading paused", broker.budget.pauses),
        ("quire_broker_background_failures_total", "background tasks that failed", broker.background_failures),
        (
            "quire_broker_speculative_reads_total",
            "reads sent to a further bookie because one was slow",
            health.speculative_reads,
        ),
        (
            "quire_broker_foreign_ledger_answers_total",
            "unused answers of bookies that hold another ledger under the id",
            health.foreign_answers,
        ),
    ):
        families.add(name, "counter", text, value, labels)
    return families


def _add_balancing(families: Families, broker: RunningBroker, labels: dict[str, str]) -> None:
    """Add usage and decisions, under Pulsar's names where it has them. Moves and assignments are those of a leader."""
    report, counts = broker.balancing.registration.data, broker.balancing.events.counts
    for name, text, field in (
        ("pulsar_lb_cpu_usage", "CPU, in percent of its limit", "cpu"),
        ("pulsar_lb_memory_usage", "memory, in percent of its limit", "memory"),
        ("pulsar_lb_directMemory_usage", "direct memory, in percent of its limit", "directMemory"),
        ("pulsar_lb_bandwidth_in_usage", "bandwidth in, in percent of its limit", "bandwidthIn"),
        ("pulsar_lb_bandwidth_out_usage", "bandwidth out, in percent of its limit", "bandwidthOut"),
    ):
        used, limit = report[field]["usage"], report[field]["limit"]
        percent = 100 * used / limit if limit > 0 else 0.0
        families.add(name, "gauge", text, percent, labels)
    leads = broker.balancing.leader.leads
    families.add("quire_broker_leader", "gauge", "1: this broker leads the brokers", int(leads), labels)
    for name, text, kind in (
        ("pulsar_lb_unload_bundle_total", "bundles moved away from overloaded brokers", EventKind.MOVED),
        ("pulsar_lb_bundles_split_total", "bundles split", EventKind.SPLIT),
        ("quire_broker_bundles_assigned_total", "bundles assigned to a broker", EventKind.ASSIGNED),
        (
            "quire_broker_assignment_fallbacks_total",
            "bundles that no leader assigned when this broker asked",
            EventKind.FALLBACK,
        ),
    ):
        families.add(name, "counter", text, counts[kind], labels)
    if broker.balancing.reporter is not None:
        name, text = "quire_broker_load_reports_total", "load reports that this broker has published"
        families.add(name, "counter", text, broker.balancing.reporter.published, labels)


def _add_tls(families: Families, broker: RunningBroker, labels: dict[str, str]) -> None:
    """Add the metrics of the certificate in use; none without TLS."""
    tls = broker.access.tls
    if tls is None:
        return
    name, text = "quire_broker_tls_certificate_end_seconds", "expiry of the certificate in use, in s since the epoch"
    families.add(name, "gauge", text, tls.stats.certificate_end_ms // 1000, labels)
    name, text = (
        "quire_broker_tls_certificate_load_failures_total",
        "changed certificates that could not be used",
    )
    families.add(name, "counter", text, tls.stats.load_failures, labels)
