"""Which messages of a topic are the latest of their keys. Phase one notes every entry in order; phase two asks, in the
same order, for the live messages of each entry. Pure; bounded memory.

    message with a key      kept if none with that key follows; an empty payload deletes the key, and is dropped
    message without a key   dropped, or kept if `keyless`
    batch                   message by message: written again, with the dropped ones marked `compacted_out`
    chunked message         all its chunks or none; a message whose last chunk is not there yet is kept
    encrypted batch         kept whole: its keys cannot be read. So is an entry that is unreadable
    marker of a broker      dropped

The rules are those of Pulsar 4.0, except for chunks, of which it keeps only the last.
"""

import struct
from collections.abc import Callable, Iterable
from typing import NamedTuple

from quire_bookie.errors import PeerProtocolError
from quire_bookie.model import Buffer
from quire_broker.compression import compress
from quire_broker.errors import CompactionError
from quire_broker.managed_ledger.cursors.ack_set import full_mask, words_of
from quire_broker.managed_ledger.position import Position
from quire_broker.wire.entry import EntrySummary, broker_metadata_of, peek, seal
from quire_broker.wire.payload import Part, parts_of, plain_payload
from quire_broker.wire.proto.pulsar_pb2 import MessageMetadata, SingleMessageMetadata

KEY_BYTES = 220
"""Memory of a key besides its characters: its objects, and its share of the table."""
ENTRY_US = 10
MESSAGE_US = 3
"""Of a message in a batch."""
BATCH_BYTES_PER_US = 500
"""Decompressed, copied and compressed again."""
_WHOLE = -1
_REMOVED_METADATA = SingleMessageMetadata(payload_size=0, compacted_out=True).SerializeToString()
_REMOVED = struct.pack(">I", len(_REMOVED_METADATA)) + _REMOVED_METADATA


def token_of(position: Position, index: int = _WHOLE) -> int:
    """Return a number for one message: smaller than a tuple, of which there would be one for each key.

    Numbers have the order of the messages in the topic.
    """
    return position.ledger_id << 64 | position.entry_id << 24 | index + 1


class Mark(NamedTuple):
    """What decides about one message. `empty`: it deletes its key. `uuid`: of a chunk, with its number in the message.

    `token`: see `token_of`.
    """

    token: int
    key: str | None
    empty: bool = False
    uuid: str | None = None
    chunk_id: int = 0
    is_last: bool = False


class Kept(NamedTuple):
    """What compaction keeps of an entry. `live`: words whose set bits are the messages left of a batch; None: all."""

    data: Buffer
    live: tuple[int, ...] | None = None


class LatestMessages:
    """The latest message of each key. `entries`: how many were noted; `removed`: messages dropped in phase two."""

    def __init__(self, *, keyless: bool, bytes_max: int) -> None:
        """`keyless`: keep messages without a key. `bytes_max`: memory for the keys; CompactionError above it."""
        self.entries = 0
        self.removed = 0
        self._keyless = keyless
        self._bytes_max = bytes_max
        self._bytes = 0
        self._latest: dict[str, int] = {}
        self._incomplete: dict[str, int] = {}
        """The first chunks of messages without a last chunk, by uuid."""
        self._first_chunks: dict[str, int] = {}
        """The same in phase two, up to the entry that is asked for."""

    @property
    def keys(self) -> int:
        """The number of keys with a message that is kept."""
        return len(self._latest)

    @property
    def tokens(self) -> Iterable[int]:
        """The token of the latest message of each key; of a chunked message that of its first chunk."""
        return self._latest.values()

    # ---- phase one
    def note(self, position: Position, entry: Buffer, summary: EntrySummary | None) -> None:
        """Note the next entry. CompactionError if the keys need too much memory. `summary`: see `summary_of`."""
        self.entries += 1
        for mark in marks_of(position, entry, summary):
            self.add(mark)

    def add(self, mark: Mark) -> None:
        """Note the next message. CompactionError as `note`."""
        if mark.uuid is not None:
            self._note_chunk(mark, mark.uuid)
        elif mark.key is not None:
            self._set(mark.key, None if mark.empty else mark.token)

    def _note_chunk(self, mark: Mark, uuid: str) -> None:
        if mark.chunk_id == 0:
            self._count(uuid, new=uuid not in self._incomplete)
            self._incomplete[uuid] = mark.token
        if mark.is_last:
            first = self._incomplete.pop(uuid, None)
            if first is not None:
                self._bytes -= KEY_BYTES + len(uuid)
                if mark.key is not None:
                    self._set(mark.key, first)

    def _set(self, key: str, token: int | None) -> None:
        if token is None:
            if self._latest.pop(key, None) is not None:
                self._bytes -= KEY_BYTES + len(key)
            return
        self._count(key, new=key not in self._latest)
        self._latest[key] = token

    def _count(self, text: str, *, new: bool) -> None:
        if not new:
            return
        self._bytes += KEY_BYTES + len(text)
        if self._bytes > self._bytes_max:
            raise CompactionError(
                f"{len(self._latest)} keys need more memory than the {self._bytes_max >> 20} MiB of a compaction: "
                "raise topicCompactionKeysMaxMb, or use fewer keys in one topic"
            )

    # ---- phase two
    def kept(self, position: Position, entry: Buffer, summary: EntrySummary | None) -> Kept | None:
        """Return the next entry with its live messages; None if it has none."""
        found, removed = kept_of(position, entry, summary, self.is_live)
        self.removed += removed
        return found

    def is_live(self, mark: Mark) -> bool:
        """Return whether the next message is kept."""
        token = mark.token
        if mark.uuid is not None:
            first = self._first_chunk(mark, mark.uuid)
            if first is None:
                return False  # its first chunk is gone: no client could join it
            if self._incomplete.get(mark.uuid) == first:
                return True
            token = first
        return self._keyless if mark.key is None else self._latest.get(mark.key) == token

    def _first_chunk(self, mark: Mark, uuid: str) -> int | None:
        if mark.chunk_id == 0:
            self._first_chunks[uuid] = mark.token
        return self._first_chunks.pop(uuid, None) if mark.is_last else self._first_chunks.get(uuid)


def marks_of(position: Position, entry: Buffer, summary: EntrySummary | None) -> list[Mark]:
    """Return the marks of an entry's messages; none of a marker, or of an entry or batch that cannot be read."""
    if summary is None or summary.marker is not None:
        return []
    if not summary.is_batch:
        return [_mark_of(position, entry, summary)]
    return [_mark_of_part(position, part) for part in _parts(entry, summary)[1]]


def _mark_of(position: Position, entry: Buffer, summary: EntrySummary) -> Mark:
    token, key = token_of(position), summary.partition_key
    if summary.num_chunks > 1 and summary.uuid is not None:
        return Mark(token, key, uuid=summary.uuid, chunk_id=summary.chunk_id, is_last=summary.is_last_chunk)
    return Mark(token, key, not _size_of(entry, summary))


def _mark_of_part(position: Position, part: Part) -> Mark:
    return Mark(token_of(position, part.number), _key_of(part.single), not part.single.payload_size)


def kept_of(
    position: Position, entry: Buffer, summary: EntrySummary | None, is_live: Callable[[Mark], bool]
) -> tuple[Kept | None, int]:
    """Return an entry with its live messages, None if it has none, and the number of messages that were dropped.

    `is_live` is asked for each message, in order, except for those that an earlier compaction dropped.
    """
    if summary is None:
        return Kept(entry), 0
    if summary.marker is not None:
        return None, 0
    if summary.is_batch:
        return _kept_of_batch(position, entry, summary, is_live)
    return (Kept(entry), 0) if is_live(_mark_of(position, entry, summary)) else (None, 1)


def _kept_of_batch(
    position: Position, entry: Buffer, summary: EntrySummary, is_live: Callable[[Mark], bool]
) -> tuple[Kept | None, int]:
    payload, parts = _parts(entry, summary)
    if not parts:
        return Kept(entry), 0
    pieces: list[Buffer] = []
    live = removed = 0
    for part in parts:
        if not part.single.compacted_out and is_live(_mark_of_part(position, part)):
            pieces.append(payload[part.start : part.end])
            live |= 1 << part.number
        else:
            pieces.append(_REMOVED)
            removed += not part.single.compacted_out
    if not live:
        return None, removed
    data = _written_again(entry, summary, b"".join(pieces)) if removed else entry
    return Kept(data, None if live == full_mask(len(parts)) else words_of(live)), removed


def weight(entry: Buffer, summary: EntrySummary | None) -> int:
    """Return about how many microseconds `note` takes for an entry, or `kept`."""
    if summary is None or not summary.is_batch:
        return ENTRY_US
    plain_bytes = max(len(entry), summary.metadata.uncompressed_size)
    return ENTRY_US + MESSAGE_US * summary.num_messages + plain_bytes // BATCH_BYTES_PER_US


def summary_of(entry: Buffer) -> EntrySummary | None:
    """Return the summary of an entry; None if it is unreadable."""
    try:
        return peek(entry)
    except PeerProtocolError:
        return None


def _parts(entry: Buffer, summary: EntrySummary) -> tuple[bytes, list[Part]]:
    """Return the payload of a batch and its messages; none if it is encrypted or unreadable."""
    if summary.metadata.encryption_keys:
        return b"", []
    try:
        payload = plain_payload(entry, summary)
        return payload, list(parts_of(payload, summary.num_messages))
    except PeerProtocolError:
        return b"", []


def _key_of(single: SingleMessageMetadata) -> str | None:
    return single.partition_key if single.HasField("partition_key") and not single.compacted_out else None


def _size_of(entry: Buffer, summary: EntrySummary) -> int:
    metadata = summary.metadata
    if metadata.HasField("uncompressed_size"):
        return metadata.uncompressed_size
    return len(entry) - summary.payload_offset


def _written_again(entry: Buffer, summary: EntrySummary, payload: bytes) -> bytes:
    metadata = MessageMetadata()
    metadata.CopyFrom(summary.metadata)
    metadata.uncompressed_size = len(payload)
    return bytes(broker_metadata_of(entry)) + seal(metadata, compress(payload, metadata.compression))
