"""The persistent state of a cursor and its two stored forms. Pure; decides which parts to omit if a state is too large.

Each entry of a cursor ledger is one complete PositionInfo; a cursor node is one ManagedCursorInfo. Both hold the
mark-delete position, the individually acknowledged ranges, partial batches and the properties. Ranges have two forms,
and a reader must support both: open-closed message ranges (lower endpoint excluded; a first entry 0 has lower entry
-1), or one bitmap per ledger (bit i of word w: entry 64*w + i is acknowledged). The bitmap is written in ledgers only,
when there are many ranges: it costs a tenth of the time and of the bytes.

Bounds limit the number of ranges, of partial batches and of bytes. Beyond the first bound that is reached, the highest
positions are omitted, so that their entries are delivered again after a restart. The mark-delete position never moves
because of a bound.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from google.protobuf.message import DecodeError

from quire_bookie.errors import MetadataFormatError
from quire_broker.managed_ledger.cursors.ack_ranges import AckRange, AckRanges
from quire_broker.managed_ledger.cursors.ack_set import unacked_mask, words_of
from quire_broker.managed_ledger.nodes.ledger_list import LedgerList
from quire_broker.managed_ledger.nodes.node_codec import plain_value
from quire_broker.managed_ledger.nodes.proto import managed_ledger_pb2 as pb
from quire_broker.managed_ledger.position import Position

NO_CURSOR_LEDGER = -1
"""As the ledger id of a cursor: the state is in the node itself."""

_BITMAP_RANGES_MIN = 32
_WORDS_PER_RANGE_MAX = 16
_WORD_BITS = 64
_WORD_BYTES = 8

_StoredState: TypeAlias = pb.PositionInfo | pb.ManagedCursorInfo


@dataclass(slots=True)
class CursorState:
    """The part of a cursor that survives a restart. `batches`: for each entry, the mask of unacknowledged messages."""

    mark_delete: Position
    ranges: AckRanges = field(default_factory=AckRanges)
    batches: dict[Position, int] = field(default_factory=dict)
    properties: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CursorNode:
    """A cursor's node. `state` is valid if `ledger_id` is -1; otherwise it dates from the creation of the ledger."""

    ledger_id: int
    state: CursorState
    cursor_properties: Mapping[str, str] = field(default_factory=dict)
    last_active_ms: int = 0


@dataclass(frozen=True, slots=True)
class StateBounds:
    """Limits on how much of a state is written."""

    ranges_max: int
    batches_max: int
    bytes_max: int
    bitmap: bool = True


def encode_position(state: CursorState, bounds: StateBounds) -> bytes:
    """Encode an entry of a cursor ledger, within `bounds.bytes_max` unless mark-delete and properties exceed it."""
    ranges_max, batches_max = bounds.ranges_max, bounds.batches_max
    while True:
        message = pb.PositionInfo(ledgerId=state.mark_delete.ledger_id, entryId=state.mark_delete.entry_id)
        kept = _lowest(state.ranges, ranges_max)
        if bounds.bitmap and _bitmap_pays(kept):
            _add_bitmaps(message.individualDeletedMessageRanges, kept)
        else:
            _add_ranges(message.individualDeletedMessages, kept)
        _add_batches(message.batchedEntryDeletionIndexInfo, state.batches, batches_max)
        for name, value in state.properties.items():
            message.properties.add(name=name, value=value)
        data = message.SerializeToString()
        if len(data) <= bounds.bytes_max or (ranges_max == 0 and batches_max == 0):
            return data
        ranges_max, batches_max = min(ranges_max, len(kept)) // 2, min(batches_max, len(state.batches)) // 2


def decode_position(data: bytes, ledgers: LedgerList | None = None) -> CursorState:
    """Decode the state in an entry of a cursor ledger. MetadataFormatError.

    A range over several ledgers is distributed over `ledgers`.
    """
    message = pb.PositionInfo()
    _parse(message, data)
    state = _state_of(message, Position(message.ledgerId, message.entryId), ledgers)
    if not message.individualDeletedMessages:
        for words in message.individualDeletedMessageRanges:
            for first, last in _runs_of(words.values):
                state.ranges.add(words.key, first, last)
    return state


def encode_node(node: CursorNode, bounds: StateBounds) -> bytes:
    """Encode the value of a cursor node. If there is a cursor ledger, only the mark-delete is added, as in Pulsar."""
    position = node.state.mark_delete
    message = pb.ManagedCursorInfo(
        cursorsLedgerId=node.ledger_id, markDeleteLedgerId=position.ledger_id, markDeleteEntryId=position.entry_id
    )
    if node.ledger_id == NO_CURSOR_LEDGER:
        _add_ranges(message.individualDeletedMessages, _lowest(node.state.ranges, bounds.ranges_max))
        _add_batches(message.batchedEntryDeletionIndexInfo, node.state.batches, bounds.batches_max)
        for name, value in node.state.properties.items():
            message.properties.add(name=name, value=value)
    message.lastActive = node.last_active_ms
    for key, text in node.cursor_properties.items():
        message.cursorProperties.add(name=key, value=text)
    return message.SerializeToString()


def decode_node(value: bytes, ledgers: LedgerList | None = None) -> CursorNode:
    """Decode the value of a cursor node, compressed or not. MetadataFormatError."""
    message = pb.ManagedCursorInfo()
    _parse(message, plain_value(value))
    position = Position(
        message.markDeleteLedgerId if message.HasField("markDeleteLedgerId") else -1,
        message.markDeleteEntryId if message.HasField("markDeleteEntryId") else -1,
    )
    return CursorNode(
        message.cursorsLedgerId,
        _state_of(message, position, ledgers),
        {known.name: known.value for known in message.cursorProperties},
        message.lastActive,
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


def _lowest(ranges: AckRanges, count_max: int) -> list[AckRange]:
    kept = list(ranges)
    return kept if len(kept) <= count_max else kept[:count_max]


def _bitmap_pays(ranges: Sequence[AckRange]) -> bool:
    if len(ranges) <= _BITMAP_RANGES_MIN:
        return False
    words = {known.ledger_id: known.last // _WORD_BITS + 1 for known in ranges}  # the last range of each ledger wins
    return sum(words.values()) <= _WORDS_PER_RANGE_MAX * len(ranges)


def _add_bitmaps(target: "object", ranges: Sequence[AckRange]) -> None:
    by_ledger: dict[int, list[AckRange]] = {}
    for known in ranges:
        by_ledger.setdefault(known.ledger_id, []).append(known)
    for ledger_id, members in by_ledger.items():
        target.add(key=ledger_id, values=_words(members))  # type: ignore[attr-defined]


def _words(ranges: Sequence[AckRange]) -> Sequence[int]:
    """Return the signed words whose set bits are the entries of `ranges` (one ledger, ascending)."""
    bits = bytearray((ranges[-1].last // _WORD_BITS + 1) * _WORD_BYTES)
    for _, first, last in ranges:
        low, high = first >> 3, last >> 3
        if low == high:
            bits[low] |= (0xFF << (first & 7)) & (0xFF >> (7 - (last & 7)))
        else:
            bits[low] |= (0xFF << (first & 7)) & 0xFF
            bits[low + 1 : high] = b"\xff" * (high - low - 1)
            bits[high] |= 0xFF >> (7 - (last & 7))
    return [
        int.from_bytes(bits[at : at + _WORD_BYTES], "little", signed=True) for at in range(0, len(bits), _WORD_BYTES)
    ]


def _runs_of(words: Iterable[int]) -> Iterable[tuple[int, int]]:
    """Yield the first and last position of each run of set bits."""
    bits = b"".join(word.to_bytes(_WORD_BYTES, "little", signed=True) for word in words)
    start = -1
    for index, byte in enumerate(bits):
        if byte == 0:
            if start >= 0:
                yield start, index * 8 - 1
                start = -1
        elif byte == 0xFF:
            if start < 0:
                start = index * 8
        else:
            for bit in range(8):
                entry = index * 8 + bit
                if byte >> bit & 1:
                    if start < 0:
                        start = entry
                elif start >= 0:
                    yield start, entry - 1
                    start = -1
    if start >= 0:
        yield start, len(bits) * 8 - 1


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
    for known in message.individualDeletedMessages:
        lower, upper = known.lowerEndpoint, known.upperEndpoint
        for ledger_id, first, last in _spread(
            Position(lower.ledgerId, lower.entryId), Position(upper.ledgerId, upper.entryId), ledgers
        ):
            state.ranges.add(ledger_id, first, last)
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
