"""Collects the chunks of incomplete messages. Bounded: above the limit the oldest message is dropped.

A message belongs to the entry of its *last* chunk, like its id in Pulsar. A reader of a range of entries therefore
returns every message whose last chunk is in the range; earlier chunks may be before the range, and are fetched by
looking back if the reader supports that. Chunks at the end of the range whose message ends after it make no row: they
belong to a message of the next range. So no two ranges return the same message, and no message is lost between two.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b

from quire_bookie.model import Buffer

CHUNK_BYTES_MAX = 256 * 1024 * 1024
"""Bytes of incomplete messages that a decoder keeps."""
MESSAGES_MAX = 1000
"""Number of incomplete messages that it keeps, and of complete ones whose repeated last chunk it recognizes."""
PARTS_MAX = 1_000_000
"""Number of chunks that it keeps: chunks may be empty."""
LOOK_BACK_ENTRIES_MAX = 10_000
"""Number of entries before the range that are searched for the first chunks of one message."""

Chunk = tuple[int, Buffer]
"""Index and bytes of a chunk."""


@dataclass(slots=True)
class _Pending:
    parts: dict[int, bytes] = field(default_factory=dict)
    size_bytes: int = 0


class Chunks:
    """The chunks of incomplete messages, by a digest of producer and uuid: a client chooses the size of both."""

    def __init__(self, bytes_max: int = CHUNK_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._pending: OrderedDict[bytes, _Pending] = OrderedDict()
        self._completed: OrderedDict[bytes, None] = OrderedDict()
        self._parts = 0
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._pending)

    def add(
        self,
        message: tuple[str, str],
        chunk_id: int,
        count: int,
        data: Buffer,
        look_back: Callable[[], Iterable[Chunk]],
    ) -> bytes | str | None:
        """Return the whole message if this was its last chunk, None otherwise; an error text if a chunk is missing.

        `message` is (producer, uuid). `look_back` yields the chunks of this message before the present one, latest
        first; it is called at the last chunk if others are missing. Chunks that a client repeated after a reconnect
        have no effect.
        """
        key = blake2b(repr(message).encode(), digest_size=16).digest()
        if chunk_id == 0:
            self._drop(key)  # a producer that reconnects without its sequence ids reuses uuids
        pending = self._pending.get(key)
        if pending is None:
            pending = self._pending[key] = _Pending()
        if chunk_id not in pending.parts:
            pending.parts[chunk_id] = bytes(data)
            pending.size_bytes += len(data)
            self.size_bytes += len(data)
            self._parts += 1
        if chunk_id < count - 1:
            while self.size_bytes > self._bytes_max or self._parts > PARTS_MAX or len(self._pending) > MESSAGES_MAX:
                self._drop(next(iter(self._pending)))
            return None
        self._drop(key)
        # Chunks of one uuid may differ in their count; those that this count excludes are not of this message.
        parts = {index: part for index, part in pending.parts.items() if index < count}
        return self._whole(key, count, parts, look_back)

    def _whole(
        self,
        key: bytes,
        count: int,
        parts: dict[int, bytes],
        look_back: Callable[[], Iterable[Chunk]],
    ) -> bytes | str | None:
        if len(parts) < count:
            if key in self._completed:
                return None  # its last chunk was repeated
            size_bytes = sum(map(len, parts.values()))
            for chunk_id, data in look_back():
                if chunk_id == count - 1:
                    return None  # the message was already complete before the range
                if chunk_id in parts or not 0 <= chunk_id < count:
                    continue
                size_bytes += len(data)
                if size_bytes > self._bytes_max:
                    return f"its chunks have more than {self._bytes_max} bytes, the limit of a reader"
                parts[chunk_id] = bytes(data)
                if len(parts) == count:
                    break
            else:
                lacking = next(index for index in range(count) if index not in parts)
                return f"the log does not contain chunk {lacking} of {count} of this message"
        self._completed[key] = None
        if len(self._completed) > MESSAGES_MAX:
            self._completed.popitem(last=False)
        return b"".join(parts[index] for index in range(count))

    def _drop(self, key: bytes) -> None:
        dropped = self._pending.pop(key, None)
        if dropped is not None:
            self._parts -= len(dropped.parts)
            self.size_bytes -= dropped.size_bytes


def nothing_earlier() -> Iterator[Chunk]:
    """Return no chunks, for a range without earlier entries."""
    return iter(())
