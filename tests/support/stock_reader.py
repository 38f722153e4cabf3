"""Reads whole topics with a reader of the stock Python client."""

from typing import Any

RECEIVE_MS = 60_000


def read_keyed(client: Any, topic: str, *, compacted: bool = True) -> list[tuple[str, bytes]]:
    """Return key and payload of all messages that a reader gets from the beginning."""
    import pulsar  # some environments have no stock client

    reader = client.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=compacted)
    found = []
    while reader.has_message_available():
        message = reader.read_next(RECEIVE_MS)
        found.append((message.partition_key(), message.data()))
    reader.close()
    return found
