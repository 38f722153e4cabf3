"""Collects the metrics of a proxy, under the names of Pulsar's proxy; those without counterpart are `quire_proxy_*`."""

from quire_bookie.exposition.connection_memory import add_connection_memory
from quire_bookie.exposition.families import Families, Names
from quire_broker.proxy.proxy import RunningProxy

STATS: Names = {
    "connections_opened": ("pulsar_proxy_new_connections", "counter", "connections of clients opened"),
    "reads": ("pulsar_proxy_binary_ops", "counter", "reads of connected sockets, in both directions"),
    "bytes": ("pulsar_proxy_binary_bytes", "counter", "bytes moved, in both directions"),
    "lookups": ("pulsar_proxy_lookup_requests", "counter", "lookups of topics"),
    "lookups_rejected": ("pulsar_proxy_rejected_lookup_requests", "counter", "lookups above the limit"),
    "partitions": ("pulsar_proxy_partitions_metadata_requests", "counter", "requests for numbers of partitions"),
    "partitions_rejected": (
        "pulsar_proxy_rejected_partitions_metadata_requests",
        "counter",
        "requests for numbers of partitions above the limit",
    ),
    "topics": ("pulsar_proxy_get_topics_requests", "counter", "requests for the topics of a namespace"),
    "topics_rejected": (
        "pulsar_proxy_rejected_get_topics_requests",
        "counter",
        "requests for the topics of a namespace above the limit",
    ),
    "schemas": ("pulsar_proxy_get_schema_requests", "counter", "requests for schemas"),
    "schemas_rejected": (
        "pulsar_proxy_rejected_get_schema_requests",
        "counter",
        "such requests above the limit",
    ),
    "lookups_running": ("quire_proxy_lookups_running", "gauge", "lookups that wait for a broker"),
    "piped": ("quire_proxy_piped_total", "counter", "connections joined with a broker"),
    "pauses": ("quire_proxy_pauses_total", "counter", "times that reading stopped because the other side is slow"),
    "connections_refused": ("quire_proxy_connects_refused_total", "counter", "CONNECT commands that were refused"),
    "authentications_failed": ("quire_proxy_authentication_failures_total", "counter", "failed authentications"),
    "http_requests": ("quire_proxy_http_requests_total", "counter", "HTTP requests for brokers"),
    "websockets": ("quire_proxy_websockets_total", "counter", "WebSockets joined with a broker"),
    "http_failures": ("quire_proxy_http_failures_total", "counter", "HTTP requests that no broker answered"),
}


class ProxyCollector:
    """Collects the metrics of one proxy."""

    def __init__(self, proxy: RunningProxy) -> None:
        self._proxy = proxy

    def collect(self) -> Families:
        """Return all families."""
        proxy, families = self._proxy, Families()
        families.add_stats(proxy.parts.stats, STATS, {})
        for name, kind, text, value in (
            ("pulsar_proxy_active_connections", "gauge", "open connections of clients", len(proxy.seats)),
            ("pulsar_proxy_rejected_connections", "counter", "connections above a limit", proxy.seats.dropped),
            ("quire_proxy_brokers", "gauge", "brokers that the proxy knows", len(proxy.parts.book.brokers())),
        ):
            families.add(name, "gauge" if kind == "gauge" else "counter", text, value, {})
        add_connection_memory(families, proxy.parts.memory, {})
        return families
