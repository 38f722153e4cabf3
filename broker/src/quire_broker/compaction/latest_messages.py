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


def _token(position: Position, index: int = _WHOLE) -> int:
    """Return a number for one message: smaller than a tuple, of which there would be one for each key."""
    return position.ledger_id << 64 | position.entry_id << 24 | index + 1


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

    # ---- phase one
    def note(self, position: Position, entry: Buffer, summary: EntrySummary | None) -> None:
        """Note the next entry. CompactionError if the keys need too much memory. `summary`: see `summary_of`."""
        self.entries += 1
        if summary is None or summary.marker is not None:
            return
        if summary.is_batch:
            for part in _parts(entry, summary)[1]:
                key = _key_of(part.single)
                if key is not None:
                    self._set(key, _token(position, part.number) if part.single.payload_size else None)
            return
        key = summary.partition_key
        if summary.num_chunks > 1 and summary.uuid is not None:
            self._note_chunk(position, summary, key)
        elif key is not None:
            self._set(key, _token(position) if _size_of(entry, summary) else None)

    def _note_chunk(self, position: Position, summary: EntrySummary, key: str | None) -> None:
        uuid = summary.uuid
        assert uuid is not None
        if summary.chunk_id == 0:
            self._count(uuid, new=uuid not in self._incomplete)
            self._incomplete[uuid] = _token(position)
        if summary.is_last_chunk:
            first = self._incomplete.pop(uuid, None)
            if first is not None:
                self._bytes -= KEY_BYTES + len(uuid)
                if key is not None:
                    self._set(key, first)

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
        if summary is None:
            return Kept(entry)
        if summary.marker is not None:
            return None
        if summary.is_batch:
            return self._kept_of_batch(position, entry, summary)
        if self._keeps(position, summary):
            return Kept(entry)
        self.removed += 1
        return None

    def _keeps(self, position: Position, summary: EntrySummary) -> bool:
        key = summary.partition_key
        token: int | None = _token(position)
        if summary.num_chunks > 1 and summary.uuid is not None:
            token = self._first_chunk(position, summary)
            if token is None:
                return False  # its first chunk is gone: no client could join it
            if self._incomplete.get(summary.uuid) == token:
                return True
        return self._keyless if key is None else self._latest.get(key) == token

    def _first_chunk(self, position: Position, summary: EntrySummary) -> int | None:
        uuid = summary.uuid
        assert uuid is not None
        if summary.chunk_id == 0:
            self._first_chunks[uuid] = _token(position)
        return self._first_chunks.pop(uuid, None) if summary.is_last_chunk else self._first_chunks.get(uuid)

    def _kept_of_batch(self, position: Position, entry: Buffer, summary: EntrySummary) -> Kept | None:
        payload, parts = _parts(entry, summary)
        if not parts:
            return Kept(entry)
        pieces: list[Buffer] = []
        live = removed = 0
        for part in parts:
            if self._is_kept(position, part):
                pieces.append(payload[part.start : part.end])
                live |= 1 << part.number
            else:
                pieces.append(_REMOVED)
                removed += not part.single.compacted_out
        self.removed += removed
        if not live:
            return None
        data = _written_again(entry, summary, b"".join(pieces)) if removed else entry
        return Kept(data, None if live == full_mask(len(parts)) else words_of(live))

    def _is_kept(self, position: Position, part: Part) -> bool:
        if part.single.compacted_out:
            return False
        key = _key_of(part.single)
        return self._keyless if key is None else self._latest.get(key) == _token(position, part.number)


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
