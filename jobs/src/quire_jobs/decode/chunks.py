"""Chunked messages that are not complete yet. Bounded: what would be too much makes the oldest give way.

A message belongs to the entry of its *last* chunk, as its id does in Pulsar. Whoever reads a range of entries therefore
has every message whose last chunk is in the range; its earlier chunks may lie before the range. They are fetched by
looking back, if the reader can do that. Chunks at the end of the range whose message ends behind it make no row: they
are part of a message of the next range. So no two ranges have the same message, and none falls between two.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from quire_bookie.model import Buffer

CHUNK_BYTES_MAX = 256 * 1024 * 1024
"""Bytes of incomplete messages that a decoder keeps."""
MESSAGES_MAX = 1000
"""Incomplete messages that it keeps, and complete ones whose repeated ends it knows."""
LOOK_BACK_ENTRIES_MAX = 10_000
"""Entries before the range that are searched for the first chunks of one message."""

Chunk = tuple[int, Buffer]
"""Index of the chunk, and its bytes."""


@dataclass(slots=True)
class _Pending:
    parts: dict[int, bytes] = field(default_factory=dict)
    size_bytes: int = 0


class Chunks:
    """What was seen of messages that are not complete, by producer and uuid."""

    def __init__(self, bytes_max: int = CHUNK_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._pending: OrderedDict[tuple[str, str], _Pending] = OrderedDict()
        self._completed: OrderedDict[tuple[str, str], None] = OrderedDict()
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
        """The whole message when this was its last chunk, None when it was not; text: what it lacks.

        `message` is (producer, uuid). `look_back` gives the chunks of this message that come before what was added,
        latest first; it is called at the last chunk, when others are not known. Chunks that a client sent again after
        it reconnected change nothing.
        """
        if chunk_id == 0:
            self._drop(message)  # a producer that came back without its sequence ids uses the same uuids again
        pending = self._pending.get(message)
        if pending is None:
            pending = self._pending[message] = _Pending()
        if chunk_id not in pending.parts:
            pending.parts[chunk_id] = bytes(data)
            pending.size_bytes += len(data)
            self.size_bytes += len(data)
        if chunk_id < count - 1:
            while self.size_bytes > self._bytes_max or len(self._pending) > MESSAGES_MAX:
                self._drop(next(iter(self._pending)))
            return None
        self._drop(message)
        return self._whole(message, count, pending.parts, look_back)

    def _whole(
        self,
        message: tuple[str, str],
        count: int,
        parts: dict[int, bytes],
        look_back: Callable[[], Iterable[Chunk]],
    ) -> bytes | str | None:
        if len(parts) < count:
            if message in self._completed:
                return None  # its end was sent again
            for chunk_id, data in look_back():
                if chunk_id == count - 1:
                    return None  # so it was here: complete before the range
                parts.setdefault(chunk_id, bytes(data))
                if len(parts) == count:
                    break
            else:
                lacking = next(index for index in range(count) if index not in parts)
                return f"chunk {lacking} of {count} of this message is not in the log"
        self._completed[message] = None
        if len(self._completed) > MESSAGES_MAX:
            self._completed.popitem(last=False)
        return b"".join(parts[index] for index in range(count))

    def _drop(self, message: tuple[str, str]) -> None:
        dropped = self._pending.pop(message, None)
        if dropped is not None:
            self.size_bytes -= dropped.size_bytes


def nothing_earlier() -> Iterator[Chunk]:
    """A look back where there is nothing to look at."""
    return iter(())
