"""Joins the chunks of large messages for one session.

    first chunk        begins a message, also again
    next chunk         is added
    last chunk         the message is complete: the client gets it
    another one        of a chunk that was already there: acknowledged with the message. After a gap: the message cannot
                       be joined now, and its chunks stay unacknowledged

Bounds: a message of more than `WEBSOCKET_CHUNKED_BYTES_MAX` bytes or `WEBSOCKET_CHUNKS_MAX` chunks, and more bytes of
incomplete messages than that, end the session. The bytes count for the budget of all sessions.
"""

from quire_bookie.dataclass import dataclass
from quire_bookie.errors import PeerProtocolError
from quire_broker.limits import WEBSOCKET_CHUNKED_BYTES_MAX, WEBSOCKET_CHUNKS_MAX
from quire_broker.server.budget import PublishBudget
from quire_broker.websocket.inbox import Arrived, Chunk, Incoming, Receiver
from quire_broker.websocket.message_ids import MessageId
from quire_broker.wire.payload import message_of_chunks

Entry = tuple[int, int]
_CHUNK_BYTES = 200
"""What a chunk takes beside its payload."""


@dataclass(slots=True)
class _Incomplete:
    """A message without its last chunk. `entries`: of its chunks, with those that were stored twice."""

    parts: list[bytes]
    entries: list[Entry]
    size_bytes: int = 0


class Chunks:
    """Owns the incomplete messages of one session, by their consumer and their id."""

    def __init__(self, budget: PublishBudget) -> None:
        self._budget = budget
        self._incomplete: dict[tuple[Receiver, str], _Incomplete] = {}
        self._bytes = 0

    def add(self, arrived: Arrived, chunk: Chunk) -> tuple[Arrived, list[Entry]] | None:
        """Return the whole message and the entries of its chunks, if this is the last. PeerProtocolError."""
        self._require_small(chunk)
        key = arrived.consumer, chunk.uuid
        found = self._incomplete.get(key)
        entry = chunk.message_id.entry
        if chunk.index == 0:
            if found is None:
                found = self._incomplete[key] = _Incomplete([], [])
            found.parts.clear()
        elif found is None or chunk.index > len(found.parts):
            self._forget(key)
            return None
        found.entries.append(entry)
        is_next = chunk.index == len(found.parts)
        if is_next:
            found.parts.append(chunk.payload)
        size_bytes = _CHUNK_BYTES + len(chunk.uuid) + len(chunk.payload) * is_next
        found.size_bytes += size_bytes
        self._count(size_bytes)
        if not is_next:
            return None
        if chunk.index < chunk.count - 1:
            return None
        self._forget(key)
        return self._joined(arrived, chunk, found), list(dict.fromkeys(found.entries))

    def oldest(self, consumer: Receiver) -> Entry | None:
        """Return the first entry of the incomplete messages of a consumer, if it has some."""
        return min((one.entries[0] for key, one in self._incomplete.items() if key[0] is consumer), default=None)

    def drop(self, consumer: Receiver) -> None:
        """Drop the messages of a consumer that the broker delivers again."""
        for key in [one for one in self._incomplete if one[0] is consumer]:
            self._forget(key)

    def close(self) -> None:
        """Drop everything."""
        self._incomplete.clear()
        self._budget.give(self._bytes)
        self._bytes = 0

    @staticmethod
    def _joined(arrived: Arrived, chunk: Chunk, found: _Incomplete) -> Arrived:
        last = chunk.message_id
        message_id = MessageId(last.ledger_id, last.entry_id, last.partition, first=found.entries[0])
        message = message_of_chunks(chunk.summary, b"".join(found.parts))
        incoming = Incoming(arrived.consumer, message_id, message, chunk.redeliveries)
        return Arrived(arrived.consumer, len(message.payload), arrived.permits, 0, [incoming])

    @staticmethod
    def _require_small(chunk: Chunk) -> None:
        if chunk.total_bytes > WEBSOCKET_CHUNKED_BYTES_MAX or chunk.count > WEBSOCKET_CHUNKS_MAX:
            raise PeerProtocolError(
                f"a message of {chunk.total_bytes} bytes in {chunk.count} chunks; WebSocket serves at most "
                f"{WEBSOCKET_CHUNKED_BYTES_MAX} in {WEBSOCKET_CHUNKS_MAX}: use a Pulsar client"
            )

    def _count(self, size_bytes: int) -> None:
        self._bytes += size_bytes
        self._budget.take(size_bytes)
        if self._bytes > WEBSOCKET_CHUNKED_BYTES_MAX:
            raise PeerProtocolError(
                f"incomplete messages have more than {WEBSOCKET_CHUNKED_BYTES_MAX} bytes: use a Pulsar client"
            )

    def _forget(self, key: tuple[Receiver, str]) -> None:
        found = self._incomplete.pop(key, None)
        if found is not None:
            self._bytes -= found.size_bytes
            self._budget.give(found.size_bytes)
