"""Collects the metrics of WebSocket sessions. A stock broker has none of them, so their names are Quire's."""

from quire_bookie.exposition.families import Families, Names
from quire_broker.websocket.service import WebSocketService

STATS: Names = {
    "opened": ("quire_broker_websocket_opened_total", "counter", "WebSocket sessions opened"),
    "refused": (
        "quire_broker_websocket_refused_total",
        "counter",
        "WebSocket sessions that the owner of a topic refused",
    ),
    "published": (
        "quire_broker_websocket_published_total",
        "counter",
        "messages of WebSocket producers that were stored",
    ),
    "published_bytes": ("quire_broker_websocket_published_bytes_total", "counter", "bytes of their entries"),
    "publish_failures": (
        "quire_broker_websocket_publish_failures_total",
        "counter",
        "messages of WebSocket producers that were answered with an error",
    ),
    "delivered": (
        "quire_broker_websocket_delivered_total",
        "counter",
        "messages sent to WebSocket consumers and readers",
    ),
    "delivered_bytes": ("quire_broker_websocket_delivered_bytes_total", "counter", "bytes of their payloads"),
    "acknowledged": (
        "quire_broker_websocket_acknowledged_total",
        "counter",
        "messages that WebSocket consumers acknowledged",
    ),
    "dead_letters": (
        "quire_broker_websocket_dead_letters_total",
        "counter",
        "messages that WebSocket sessions published to dead letter topics",
    ),
}


class WebSocketCollector:
    """Collects the metrics of one service."""

    def __init__(self, service: WebSocketService) -> None:
        self._service = service

    def collect(self) -> Families:
        """Return all families."""
        families = Families()
        families.add_stats(self._service.stats, STATS, {})
        families.add("quire_broker_websocket_sessions", "gauge", "open WebSocket sessions", self._service.sessions, {})
        return families
