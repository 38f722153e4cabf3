"""The persistent state of a cursor and its two stored forms. Pure; decides which parts to omit if a state is too large.

Each entry of a cursor ledger is one complete PositionInfo; a cursor node is one ManagedCursorInfo. Both hold the
mark-delete position, the individually acknowledged ranges, partial batches and the properties. Ranges have two forms,
and a reader must support both: open-closed message ranges (lower endpoint excluded; a first entry 0 has lower entry
-1), or one bitmap per ledger (bit i of word w: entry 64*w + i is acknowledged). The bitmap is written in ledgers only,
when there are many ranges: a million of single entries take 350 kB and a millisecond.

Bounds limit the number of ranges, of partial batches and of bytes. Beyond the first bound that is reached, the highest
positions are omitted, so that their entries are delivered again after a restart. The mark-delete position never moves
because of a bound.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from itertools import islice
from typing import TypeAlias

from google.protobuf.message import DecodeError

from quire_bookie.dataclass import dataclass
from quire_bookie.errors import MetadataFormatError
from quire_broker.managed_ledger.cursors.ack_ranges import CHUNK_ENTRIES, AckRange, AckRanges
from quire_broker.managed_ledger.cursors.ack_set import bytes_of, unacked_mask, words_in, words_of
from quire_broker.managed_ledger.cursors.bucket_format import BUCKETS_PROPERTY, BucketRecord, records_of, records_text
from quire_broker.managed_ledger.nodes.ledger_list import LedgerList
from quire_broker.managed_ledger.nodes.node_codec import plain_value
from quire_broker.managed_ledger.nodes.proto import managed_ledger_pb2 as pb
from quire_broker.managed_ledger.position import Position
from quire_broker.wire.varint import varint

NO_CURSOR_LEDGER = -1
"""As the ledger id of a cursor: the state is in the node itself."""

_BITMAP_RANGES_MIN = 32
_WORDS_PER_RANGE_MAX = 16
_LISTED_RANGES_MAX = 10_000
"""More ranges are never listed: each takes microseconds to encode."""
_WORD_BITS = 64
_WORD_BYTES = 8
_EMPTY_WORD_BYTES = 2
"""Of a word without an entry, as it is stored."""
_BITMAP_TAG = b"\x32"
"""Of the field individualDeletedMessageRanges."""
_HEAD_BYTES_MAX = 16
"""Of the tag and the length of a bitmap."""
_LISTED_CHUNKS_MAX = 1 << 21
"""Chunks that listed ranges may span if their ledgers are not known: 16 MiB of memory."""

_StoredState: TypeAlias = pb.PositionInfo | pb.ManagedCursorInfo


@dataclass(slots=True)
class CursorState:
    """The part of a cursor that survives a restart. `batches`: for each entry, the mask of unacknowledged messages."""

    mark_delete: Position
    ranges: AckRanges = field(default_factory=AckRanges)
    batches: dict[Position, int] = field(default_factory=dict)
    properties: dict[str, int] = field(default_factory=dict)

    def last_in(self, ledger_id: int) -> int:
        """Return the last entry of a ledger that is acknowledged, at least in part; -1 if there is none."""
        mark = self.mark_delete.entry_id if self.mark_delete.ledger_id == ledger_id else -1
        partly = (position.entry_id for position in self.batches if position.ledger_id == ledger_id)
        return max(mark, self.ranges.last_of(ledger_id), *partly)


@dataclass(frozen=True, slots=True)
class CursorNode:
    """A cursor's node. `state` is valid if `ledger_id` is -1; otherwise it dates from the creation of the ledger."""

    ledger_id: int
    state: CursorState
    cursor_properties: Mapping[str, str] = field(default_factory=dict)
    last_active_ms: int = 0
    buckets: tuple[BucketRecord, ...] = ()
    """Where the times of delayed entries are saved: a property that brokers do not show to clients."""


@dataclass(frozen=True, slots=True)
class StateBounds:
    """Limits on how much of a state is written."""

    ranges_max: int
    batches_max: int
    bytes_max: int
    bitmap: bool = True


def encode_position(state: CursorState, bounds: StateBounds) -> bytes:
    """Encode an entry of a cursor ledger, within `bounds.bytes_max` unless mark-delete and properties exceed it.

    Costs what changed since the last call, and a copy of the rest, where the ranges are bitmaps.
    """
    count = len(state.ranges)
    ranges_max, batches_max = min(bounds.ranges_max, count), min(bounds.batches_max, len(state.batches))
    as_bitmaps = bounds.bitmap and _bitmap_pays(state.ranges, count, bounds.bytes_max)
    if not as_bitmaps:
        ranges_max = min(ranges_max, _LISTED_RANGES_MAX)
    head = pb.PositionInfo(ledgerId=state.mark_delete.ledger_id, entryId=state.mark_delete.entry_id)
    for name, value in state.properties.items():
        head.properties.add(name=name, value=value)
    # Bitmaps come first: a whole entry matters more than parts of batches.
    room = bounds.bytes_max - head.ByteSize()
    bitmaps = b"".join(_bitmaps(state.ranges, ranges_max, room)) if as_bitmaps else b""
    while True:
        message = pb.PositionInfo()
        message.CopyFrom(head)
        if not as_bitmaps:
            _add_ranges(message.individualDeletedMessages, islice(state.ranges, ranges_max))
        _add_batches(message.batchedEntryDeletionIndexInfo, state.batches, batches_max)
        data = message.SerializeToString() + bitmaps
        if len(data) <= bounds.bytes_max or (batches_max == 0 and (as_bitmaps or ranges_max == 0)):
            return data
        ranges_max, batches_max = ranges_max // 2, batches_max // 2


def decode_position(data: bytes, ledgers: LedgerList | None = None) -> CursorState:
    """Decode the state in an entry of a cursor ledger. MetadataFormatError.

    A range over several ledgers is distributed over `ledgers`.
    """
    message = pb.PositionInfo()
    _parse(message, data)
    state = _state_of(message, Position(message.ledgerId, message.entryId), ledgers)
    if not message.individualDeletedMessages:
        for known in message.individualDeletedMessageRanges:
            state.ranges.add_bits(known.key, bytes_of(known.values))
    return state


def encode_node(node: CursorNode, bounds: StateBounds) -> bytes:
    """Encode the value of a cursor node. If there is a cursor ledger, only the mark-delete is added, as in Pulsar."""
    position = node.state.mark_delete
    message = pb.ManagedCursorInfo(
        cursorsLedgerId=node.ledger_id, markDeleteLedgerId=position.ledger_id, markDeleteEntryId=position.entry_id
    )
    if node.ledger_id == NO_CURSOR_LEDGER:
        _add_ranges(message.individualDeletedMessages, islice(node.state.ranges, bounds.ranges_max))
        _add_batches(message.batchedEntryDeletionIndexInfo, node.state.batches, bounds.batches_max)
        for name, value in node.state.properties.items():
            message.properties.add(name=name, value=value)
    message.lastActive = node.last_active_ms
    for key, text in node.cursor_properties.items():
        message.cursorProperties.add(name=key, value=text)
    if node.buckets:
        message.cursorProperties.add(name=BUCKETS_PROPERTY, value=records_text(node.buckets))
    return message.SerializeToString()


def decode_node(value: bytes, ledgers: LedgerList | None = None) -> CursorNode:
    """Decode the value of a cursor node, compressed or not. MetadataFormatError."""
    message = pb.ManagedCursorInfo()
    _parse(message, plain_value(value))
    position = Position(
        message.markDeleteLedgerId if message.HasField("markDeleteLedgerId") else -1,
        message.markDeleteEntryId if message.HasField("markDeleteEntryId") else -1,
    )
    properties = {known.name: known.value for known in message.cursorProperties}
    return CursorNode(
        message.cursorsLedgerId,
        _state_of(message, position, ledgers),
        properties,
        message.lastActive,
        records_of(properties.pop(BUCKETS_PROPERTY, "")),
    )


def fits_node(state: CursorState, bounds: StateBounds) -> bool:
    """Return whether a node can hold the whole state, so that no acknowledged entry is delivered again."""
    if len(state.ranges) > bounds.ranges_max or len(state.batches) > bounds.batches_max:
        return False
    return len(encode_node(CursorNode(NO_CURSOR_LEDGER, state), bounds)) <= bounds.bytes_max


def _parse(message: _StoredState, data: bytes) -> None:
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise MetadataFormatError(f"not a cursor state: {error}") from error
    if not message.IsInitialized():
        raise MetadataFormatError("not a cursor state: a required field is missing")


def _bitmap_pays(ranges: AckRanges, count: int, bytes_max: int) -> bool:
    """Return whether bitmaps take fewer bytes; if there are too many ranges to list all, whether they hold more."""
    if count <= _BITMAP_RANGES_MIN:
        return False
    words = sum(ranges.last_of(ledger_id) // _WORD_BITS + 1 for ledger_id in ranges.ledgers())
    if count > _LISTED_RANGES_MAX:
        return count * bytes_max >= _LISTED_RANGES_MAX * words * _EMPTY_WORD_BYTES
    return words <= _WORDS_PER_RANGE_MAX * count


def _bitmaps(ranges: AckRanges, ranges_max: int, bytes_max: int) -> Iterator[bytes]:
    """Yield the field of the bitmaps, with the lowest ranges: at most `ranges_max` and `bytes_max`."""
    for ledger_id in ranges.ledgers():
        key = pb.LongListMap(key=ledger_id).SerializeToString()
        chunks: list[bytes] = []
        size = len(key)
        whole = True
        for number, (begun, chunk) in enumerate(ranges.chunk_bytes(ledger_id, _encoded_words)):
            room = bytes_max - _HEAD_BYTES_MAX - size
            if begun > ranges_max or len(chunk) > room:
                chunk = _cut(ranges, ledger_id, number, ranges_max, room)
                whole = False
            chunks.append(chunk)
            size += len(chunk)
            ranges_max -= begun
            if not whole:
                break
        if len(chunks) > 1 or chunks[0]:
            bitmap = b"".join((_BITMAP_TAG, varint(size), key, *chunks))
            yield bitmap
            bytes_max -= len(bitmap)
        if not whole:
            return


def _cut(ranges: AckRanges, ledger_id: int, number: int, ranges_max: int, bytes_max: int) -> bytes:
    """Encode of one chunk what is below its range after the first `ranges_max`, within `bytes_max`."""
    first = number * CHUNK_ENTRIES
    end = first - 1
    for _ in range(ranges_max + 1):
        start = ranges.next_start(ledger_id, end)
        if start is None or start >= first + CHUNK_ENTRIES:
            end = first + CHUNK_ENTRIES
            break
        end = start
    bits = ranges.bits(ledger_id, number) & (1 << end - first) - 1
    words = (bits.bit_length() + _WORD_BITS - 1) // _WORD_BITS
    raw = bits.to_bytes(words * _WORD_BYTES, "little")
    encoded = _encoded_words(raw)
    while raw and len(encoded) > bytes_max:
        raw = raw[:-_WORD_BYTES]
        encoded = _encoded_words(raw)
    return encoded


def _encoded_words(bits: bytes) -> bytes:
    """Encode eight-byte words as values of a LongListMap, without its key: they can be appended to others."""
    return pb.LongListMap(values=words_in(bits)).SerializePartialToString()


def _add_ranges(target: "object", ranges: Iterable[AckRange]) -> None:
    add = target.add  # type: ignore[attr-defined]
    for ledger_id, first, last in ranges:
        message = add()
        lower = message.lowerEndpoint
        lower.ledgerId = ledger_id
        lower.entryId = first - 1
        upper = message.upperEndpoint
        upper.ledgerId = ledger_id
        upper.entryId = last


def _add_batches(target: "object", batches: Mapping[Position, int], count_max: int) -> None:
    for position in sorted(batches)[:count_max]:
        message = target.add(deleteSet=words_of(batches[position]))  # type: ignore[attr-defined]
        message.position.ledgerId = position.ledger_id
        message.position.entryId = position.entry_id


def _state_of(message: _StoredState, position: Position, ledgers: LedgerList | None) -> CursorState:
    state = CursorState(position)
    ranges, room = state.ranges, _LISTED_CHUNKS_MAX
    for known in message.individualDeletedMessages:
        lower, upper = known.lowerEndpoint, known.upperEndpoint
        for ledger_id, first, last in _spread(
            Position(lower.ledgerId, lower.entryId), Position(upper.ledgerId, upper.entryId), ledgers
        ):
            if ledgers is not None:
                last = min(last, ledgers.most_entries_in(ledger_id) - 1)
            if first > last:
                continue
            room -= ranges.chunks_to_add(ledger_id, first, last)
            if room < 0:
                raise MetadataFormatError(
                    f"not a cursor state: its ranges reach to entry {last} of ledger {ledger_id}; "
                    f"at most {_LISTED_CHUNKS_MAX * CHUNK_ENTRIES} entries are taken"
                )
            ranges.add(ledger_id, first, last)
    for batch in message.batchedEntryDeletionIndexInfo:
        state.batches[Position(batch.position.ledgerId, batch.position.entryId)] = unacked_mask(batch.deleteSet)
    state.properties.update({known.name: known.value for known in message.properties})
    return state


def _spread(lower: Position, upper: Position, ledgers: LedgerList | None) -> Iterable[AckRange]:
    """Split an open-closed range into closed ranges, one per ledger. Ledgers that are not listed are omitted."""
    if lower.ledger_id == upper.ledger_id:
        if upper.entry_id > lower.entry_id:
            yield AckRange(lower.ledger_id, max(0, lower.entry_id + 1), upper.entry_id)
        return
    if ledgers is not None:
        for ledger_id in ledgers.ids:
            if lower.ledger_id <= ledger_id < upper.ledger_id:
                first = max(0, lower.entry_id + 1) if ledger_id == lower.ledger_id else 0
                last = ledgers.entries_in(ledger_id) - 1
                if last >= first:
                    yield AckRange(ledger_id, first, last)
    if upper.entry_id >= 0 and upper.ledger_id > lower.ledger_id:
        yield AckRange(upper.ledger_id, 0, upper.entry_id)
