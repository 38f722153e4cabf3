"""Computes the changes that compaction makes to one value of the block index. Pure.

A move takes effect only for an entry that is still at the old place: an entry that was stored again or deleted while
its record was copied keeps its new state.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from quire_bookie.storage.formats.block_index import BlockSegment, decode_block, encode_block, overlay
from quire_bookie.storage.formats.log_format import RECORD_HEADER_BYTES


class Move(NamedTuple):
    """Entries of one block, with the places of the records and of their copies: same ids, same sizes."""

    old: BlockSegment
    new: BlockSegment


def moved_block(key: bytes, value: bytes, moves: Sequence[Move]) -> bytes | None:
    """Return the value after the moves that still apply; None if none does. DamagedError if the value is damaged."""
    block = decode_block(key, value)
    whole = {(move.old.log, move.old.base): move for move in moves}
    segments: list[BlockSegment] = []
    changed = False
    for segment in block.segments:
        move = whole.get((segment.log, segment.base))
        if (
            move is not None
            and list(move.old.lows) == list(segment.lows)
            and list(move.old.sizes) == list(segment.sizes)
        ):
            segments.append(move.new)
            changed = True
        else:
            segments.append(segment)
    if changed and len(moves) == 1:
        return encode_block(key, type(block)(segments, block.lost))
    single = list(_still_there(segments, moves))
    if not single and not changed:
        return None
    return encode_block(key, type(block)(overlay([*segments, *single]), block.lost))


def _still_there(segments: Sequence[BlockSegment], moves: Sequence[Move]) -> Iterator[BlockSegment]:
    """Yield, one by one, the new places of entries that are still at the old place in a stretch that changed."""
    places = {
        low: (segment.log, offset)
        for segment in segments
        for low, offset in zip(segment.lows, segment.offsets(), strict=False)
    }
    for old, new in moves:
        for low, size, source, target in zip(old.lows, old.sizes, old.offsets(), new.offsets(), strict=False):
            if places.get(low) == (old.log, source):
                yield BlockSegment(new.log, target, [low], [size])


def stretches(
    segment: BlockSegment, bytes_max: int, cuts: Callable[[int, int], Sequence[int]] = lambda _start, _end: ()
) -> Iterator[BlockSegment]:
    """Split a segment into parts of at most `bytes_max` bytes of records, with at least one record each.

    `cuts(start, end)` returns the offsets at which a part must end because the following record has another age.
    """
    start, offset, size = 0, segment.base, 0
    end = segment.base + sum(segment.sizes) + len(segment.sizes) * RECORD_HEADER_BYTES
    must_end = frozenset(cuts(segment.base, end))
    for at, body in enumerate(segment.sizes):
        record = body + RECORD_HEADER_BYTES
        if size and (size + record > bytes_max or offset + size in must_end):
            yield BlockSegment(segment.log, offset, segment.lows[start:at], segment.sizes[start:at])
            start, offset, size = at, offset + size, 0
        size += record
    yield BlockSegment(segment.log, offset, segment.lows[start:], segment.sizes[start:])
