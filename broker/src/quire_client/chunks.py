"""Joins the chunks of large messages of one topic, within a bound. Does no I/O.

A missing chunk, as after a reconnect in the middle of a message, drops the collected ones: the broker delivers all
unacknowledged chunks again.
"""

from quire_bookie.dataclass import dataclass
from quire_bookie.errors import PeerProtocolError
from quire_broker.wire.payload import message_of_chunks
from quire_client.message import Arrival, Message

_CHUNK_BYTES = 200
"""What a chunk takes beside its payload."""


@dataclass(slots=True)
class _Incomplete:
    parts: list[bytes]
    places: list[tuple[int, int]]
    size_bytes: int = 0


class Chunks:
    """Owns the incomplete messages, by their id."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._incomplete: dict[str, _Incomplete] = {}
        self._bytes = 0

    def clear(self) -> None:
        """Drop everything."""
        self._incomplete.clear()
        self._bytes = 0

    def add(self, arrival: Arrival) -> Message | None:
        """Return the whole message if this is its last chunk. PeerProtocolError: more bytes than may be held."""
        summary = arrival.summary
        name, index = summary.uuid or "", summary.chunk_id
        if index == 0:
            self._forget(name)
            self._incomplete[name] = _Incomplete([], [])
        found = self._incomplete.get(name)
        if found is None or index > len(found.parts):
            self._forget(name)
            return None
        found.places.append(arrival.place)
        if index < len(found.parts):
            return None  # it was stored twice
        part = bytes(memoryview(arrival.entry)[summary.payload_offset :])
        found.parts.append(part)
        found.size_bytes += len(part) + _CHUNK_BYTES
        self._bytes += len(part) + _CHUNK_BYTES
        if self._bytes > self._bytes_max:
            raise PeerProtocolError(
                f"incomplete chunked messages of {self._bytes} bytes; chunked_bytes_max is {self._bytes_max}"
            )
        if not summary.is_last_chunk:
            return None
        self._forget(name)
        arrival.places = list(dict.fromkeys(found.places))
        return Message(message_of_chunks(summary, b"".join(found.parts)).payload, -1, None, arrival)

    def _forget(self, name: str) -> None:
        found = self._incomplete.pop(name, None)
        if found is not None:
            self._bytes -= found.size_bytes
