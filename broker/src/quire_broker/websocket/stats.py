"""Counters of all WebSocket sessions of a broker since its start."""

from quire_bookie.dataclass import dataclass


@dataclass(slots=True)
class SessionStats:
    """`refused`: by the owner of a topic. `published_bytes` are those of entries, `delivered_bytes` of payloads."""

    opened: int = 0
    refused: int = 0
    published: int = 0
    published_bytes: int = 0
    publish_failures: int = 0
    delivered: int = 0
    delivered_bytes: int = 0
    acknowledged: int = 0
    dead_letters: int = 0
