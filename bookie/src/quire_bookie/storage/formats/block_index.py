"""The positions of a ledger's entries: one index value per 256 entry ids. Pure: encode, merge, look up.

A value is a list of segments. A segment is a contiguous stretch of records in one log, in ascending order of their
ids; no two segments of a value share an id, so at most one answers a lookup.

    value     0  crc32c u32 over key and bytes 4..   4  version u8 = 1   5  flags u8   6  segments
    flags     1 = lost: the block may have held more entries (its value was damaged); absence proves nothing
    segment   0  log u32   4  base u32: offset of the first record   8  form u8   9  first u8   10  stride u8
             11  count - 1 u8   12  [form & 1: ids as a bitmap of 32 bytes, instead of first and stride]
              -  lengths of the bodies: form & 6 == 0: one u32 for all; 2: u16 each; 4: u32 each

All integers are little-endian. With a write quorum smaller than the ensemble a bookie holds every second or third id
(stride), or two of three (bitmap). The newest copy wins: merging removes overwritten ids from the older segments.
"""

import struct
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from quire_bookie.bulk.plain_flushes import segment_tail
from quire_bookie.crc import crc32c
from quire_bookie.dataclass import dataclass
from quire_bookie.errors import DamagedError
from quire_bookie.storage.formats.log_format import RECORD_HEADER_BYTES

BLOCK_VERSION: Final = 1
_LOST = 1
_BITMAP = 1
_SHORT = 2
_LONG = 4
_HEAD = struct.Struct("<IBB")
_CRC = struct.Struct("<I")
_SEGMENT = struct.Struct("<IIBBBB")
_U32 = struct.Struct("<I")
_BITMAP_BYTES = 32


segment_head = struct.Struct("<II").pack
"""Encodes the start of a segment: the log, and the offset of its first record there."""


class Place(NamedTuple):
    """The position of a record. `size_bytes` is that of its body; the record is 24 bytes longer."""

    log: int
    offset: int
    size_bytes: int


@dataclass(slots=True)
class BlockSegment:
    """Records in one stretch of one log. `lows` are ids modulo 256, ascending; `sizes` those of the bodies."""

    log: int
    base: int
    lows: Sequence[int]
    sizes: Sequence[int]

    def offsets(self) -> list[int]:
        """Return the offset of each record, and the end of the stretch as an additional item."""
        return list(accumulate((size + RECORD_HEADER_BYTES for size in self.sizes), initial=self.base))


@dataclass(slots=True)
class Block:
    """A decoded value."""

    segments: list[BlockSegment]
    lost: bool = False


def encode_block(key: bytes, block: Block) -> bytes:
    """Encode a block whose segments share no id."""
    return _seal(key, b"".join(map(_encode_segment, block.segments)), block.lost)


def decode_block(key: bytes, value: bytes) -> Block:
    """Check and decode a value. DamagedError names the key."""
    body, lost = _open(key, value)
    try:
        return Block([_decode_segment(body, *bounds) for bounds in _walk(body)], lost)
    except (struct.error, IndexError) as error:
        raise _damaged(key, "a segment ends early") from error


def look_up(key: bytes, value: bytes | None, low: int) -> Place | None:
    """Return the place of the entry with id % 256 == `low`; None if it is provably absent. DamagedError otherwise."""
    if value is None:
        return None
    body, lost = _open(key, value)
    for start, _end, mask in _walk(body):
        if mask >> low & 1:
            return _place_in(body, start, mask, low)
    if lost:
        raise _damaged(key, "a part of this block was lost to damage, so absence is not provable")
    return None


def tail_from(key: bytes, value: bytes | None, low: int, *, or_later: bool = False) -> BlockSegment | None:
    """Return the stretch that starts with the entry with id % 256 == `low`. None and errors as in `look_up`.

    `or_later`: or with the first entry after it; None then means that none is known.
    """
    if value is None:
        return None
    body, lost = _open(key, value)
    try:
        bounds = list(_walk(body))
        if or_later:
            later = [_lowest(mask >> low) + low for _start, _end, mask in bounds if mask >> low]
            if not later:
                return None
            low = min(later)
        for start, end, mask in bounds:
            if mask >> low & 1:
                segment = _decode_segment(body, start, end, mask)
                index = (mask & ((1 << low) - 1)).bit_count()
                skipped = sum(segment.sizes[:index]) + index * RECORD_HEADER_BYTES
                return BlockSegment(segment.log, segment.base + skipped, segment.lows[index:], segment.sizes[index:])
    except (struct.error, IndexError) as error:
        raise _damaged(key, "a segment ends early") from error
    if lost:
        raise _damaged(key, "a part of this block was lost to damage, so absence is not provable")
    return None


def _lowest(mask: int) -> int:
    """Return the index of the lowest set bit of a non-zero mask."""
    return (mask & -mask).bit_length() - 1


def merge_block(key: bytes, old: bytes | None, new: Iterable[BlockSegment], *, lost: bool = False) -> bytes:
    """Return the value after a flush: `new` is newer than all of `old`, later segments are newer than earlier ones.

    A damaged `old` sets `lost`, so that an entry that it may have held never becomes *no such entry*.
    """
    raw = b""
    if old is not None:
        try:
            raw, was_lost = _open(key, old)
            lost = lost or was_lost
        except DamagedError:
            raw, lost = b"", True
    taken = 0
    for _start, _end, mask in _walk(raw):
        taken |= mask
    fresh = list(new)
    clash = False
    for segment in fresh:
        mask = _mask_of(segment.lows)
        clash = clash or bool(taken & mask)
        taken |= mask
    if clash:
        older = [_decode_segment(raw, *bounds) for bounds in _walk(raw)]
        return encode_block(key, Block(overlay([*older, *fresh]), lost))
    return _seal(key, raw + b"".join(map(_encode_segment, fresh)), lost)


def merge_encoded(key: bytes, old: bytes | None, new: bytes, *, lost: bool = False) -> bytes:
    """Merge encoded segments that share no id, as `merge_block` does."""
    return merge_block(key, old, [_decode_segment(new, *bounds) for bounds in _walk(new)], lost=lost)


def overlay(segments: Iterable[BlockSegment]) -> list[BlockSegment]:
    """Return the same ids without overlap, in maximal stretches; later segments win."""
    places: dict[int, Place] = {}
    for segment in segments:
        for low, offset, size in zip(segment.lows, segment.offsets(), segment.sizes, strict=False):
            places[low] = Place(segment.log, offset, size)
    merged: list[BlockSegment] = []
    lows: list[int] = []
    sizes: list[int] = []
    end = (-1, -1)
    for low in sorted(places):
        log, offset, size = places[low]
        if (log, offset) != end:
            lows, sizes = [], []
            merged.append(BlockSegment(log, offset, lows, sizes))
        lows.append(low)
        sizes.append(size)
        end = (log, offset + size + RECORD_HEADER_BYTES)
    return merged


def known_top(key: bytes, value: bytes) -> tuple[int, bool]:
    """Return the highest known id % 256 (-1: none), and whether the block may have held more entries."""
    try:
        body, lost = _open(key, value)
    except DamagedError:
        return -1, True
    taken = 0
    for _start, _end, mask in _walk(body):
        taken |= mask
    return taken.bit_length() - 1, lost


def ids_in_block(key: bytes, value: bytes) -> int:
    """Return the ids % 256 of a block as a bit mask. DamagedError if it may have held more entries."""
    body, lost = _open(key, value)
    if lost:
        raise _damaged(key, "a part of this block was lost to damage, so it may have held more entries")
    taken = 0
    for _start, _end, mask in _walk(body):
        taken |= mask
    return taken


def _damaged(key: bytes, what: str) -> DamagedError:
    return DamagedError(f"index key {key.hex()}", 0, what)


def _seal(key: bytes, body: bytes, lost: bool) -> bytes:
    rest = bytes((BLOCK_VERSION, _LOST if lost else 0)) + body
    return _CRC.pack(crc32c(rest, crc32c(key))) + rest


def _open(key: bytes, value: bytes) -> tuple[bytes, bool]:
    if len(value) < _HEAD.size:
        raise _damaged(key, f"a value of {len(value)} bytes")
    stored, version, flags = _HEAD.unpack_from(value)
    if crc32c(value[4:], crc32c(key)) != stored:
        raise _damaged(key, "the checksum is wrong")
    if version != BLOCK_VERSION:
        raise _damaged(key, f"version {version} of the format is not supported")
    return value[_HEAD.size :], bool(flags & _LOST)


def _encode_segment(segment: BlockSegment) -> bytes:
    return segment_head(segment.log, segment.base) + segment_tail(segment.lows, segment.sizes)


def _walk(body: bytes) -> Iterable[tuple[int, int, int]]:
    """Yield (start, end, mask of ids) of each segment, without reading the lengths."""
    at = 0
    while at < len(body):
        _log, _base, form, first, stride, last = _SEGMENT.unpack_from(body, at)
        count = last + 1
        end = at + _SEGMENT.size + (_BITMAP_BYTES if form & _BITMAP else 0)
        if form & _BITMAP:
            mask = int.from_bytes(body[at + _SEGMENT.size : end], "little")
        elif stride == 1:
            mask = ((1 << count) - 1) << first
        else:
            mask = _mask_of(range(first, first + stride * count, stride))
        end += count * 2 if form & _SHORT else count * 4 if form & _LONG else 4
        yield at, end, mask
        at = end


def _decode_segment(body: bytes, start: int, end: int, mask: int) -> BlockSegment:
    log, base, form, first, stride, last = _SEGMENT.unpack_from(body, start)
    count = last + 1
    lows: Sequence[int] = range(first, first + stride * count, stride)
    if form & _BITMAP:
        lows = [low for low in range(256) if mask >> low & 1]
    return BlockSegment(log, base, lows, _sizes(body, start, form, count))


def _sizes(body: bytes, start: int, form: int, count: int) -> Sequence[int]:
    at = start + _SEGMENT.size + (_BITMAP_BYTES if form & _BITMAP else 0)
    if form & _SHORT:
        return struct.unpack_from(f"<{count}H", body, at)
    if form & _LONG:
        return struct.unpack_from(f"<{count}I", body, at)
    return [_U32.unpack_from(body, at)[0]] * count


def _place_in(body: bytes, start: int, mask: int, low: int) -> Place:
    """Return the place of an entry; its offset is the sum of the records before it."""
    log, base, form, _first, _stride, last = _SEGMENT.unpack_from(body, start)
    index = (mask & ((1 << low) - 1)).bit_count()
    sizes = _sizes(body, start, form, last + 1)
    return Place(log, base + sum(sizes[:index]) + index * RECORD_HEADER_BYTES, sizes[index])


def _mask_of(lows: Iterable[int]) -> int:
    if isinstance(lows, range) and lows.step == 1:
        return ((1 << len(lows)) - 1) << lows.start
    mask = 0
    for low in lows:
        mask |= 1 << low
    return mask
