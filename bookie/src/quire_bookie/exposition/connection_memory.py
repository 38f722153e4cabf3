"""Metrics of the memory that the connections of a process hold."""

from collections.abc import Mapping

from quire_bookie.env.connection_memory import ConnectionMemory
from quire_bookie.exposition.families import Families


def add_connection_memory(families: Families, memory: ConnectionMemory, labels: Mapping[str, str]) -> None:
    """Add the held bytes by class, their limit, the waits, and the closed connections by reason."""
    name, text = "quire_connection_memory_bytes", "bytes that connections hold, by class"
    for kind, held in (
        ("receiving", memory.receiving_bytes),
        ("requests", memory.request_bytes),
        ("reads", memory.read_bytes),
        ("unsent", memory.unsent_bytes),
    ):
        families.add(name, "gauge", text, held, {**labels, "class": kind})
    name, text = "quire_connection_memory_max_bytes", "limit of the bytes that connections hold"
    families.add(name, "gauge", text, memory.bytes_max, labels)
    name, text = "quire_connection_memory_waits", "sockets and reads that waited for memory"
    families.add(name, "counter", text, memory.waits, labels)
    name, text = "quire_connections_closed_for_memory", "connections closed because they held memory, by reason"
    for reason, count in memory.closed.items():
        families.add(name, "counter", text, count, {**labels, "reason": reason.value})
