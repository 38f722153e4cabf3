"""Steps of a flush over the entries of many ledgers, in plain Python: the specification and the fallback.

Pure, with native twins as in `plain`. A *run* here is `(ledger, ids, places, start, stop)`: entries of one ledger and
one index block with ascending ids, of which those from index `start` up to and excluding `stop` are used (see
`FlushRun`).
"""

import struct
from array import array
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from quire_bookie.bulk.plain import CHUNK_BYTES, PLACE_KEPT, PLACE_SIZE_BITS, PLACE_SIZE_MASK
from quire_bookie.crc import crc32c
from quire_bookie.model import NO_ENTRY, Buffer

if TYPE_CHECKING:
    from mmap import mmap

FlushRun: TypeAlias = "tuple[int, array[int], array[int], int, int]"
RECORD_HEADER_BYTES: Final = 24
BLOCK_VERSION: Final = 1
_BLOCK_MASK = 0xFF
_BITMAP, _SHORT, _LONG = 1, 2, 4
_BITMAP_BYTES = 32
_HEAD = struct.Struct("<IBB")
_SEGMENT = struct.Struct("<IIBBBB")
_FORM = struct.Struct("<BBBB")
_U32 = struct.Struct("<I")
_RECORD_TAIL = struct.Struct("<Iqq")
_BLOCK_SHIFT = 8
_BLOCK_KEY = struct.Struct(">cqIHB")
_SEGMENT_HEAD = struct.Struct("<II")
_SPAN = struct.Struct("<qqqIQ")


def ledger_runs(
    held: Mapping[Any, Any], ledgers: Sequence[int], at: int, runs_max: int
) -> tuple[int, list[FlushRun], list[bytes]]:
    """Return the runs of the ledgers from index `at` on, the keys of their index blocks, and the next index.

    `held`: what a half of the write cache has of each ledger (`storage.write_cache.LedgerEntries`). Ledgers that it
    does not have, or that were deleted, have no runs. Stops after the ledger with which there are `runs_max` runs.
    """
    runs: list[FlushRun] = []
    keys: list[bytes] = []
    while at < len(ledgers) and len(runs) < runs_max:
        ledger = ledgers[at]
        at += 1
        entries = held.get(ledger)
        if entries is None or entries.info.deleted:
            continue
        ids, places = entries.in_order()
        if not ids:
            raise ValueError("a ledger without entries")
        start, count = 0, len(ids)
        while start < count:
            block = ids[start] >> _BLOCK_SHIFT
            stop = bisect_left(ids, (block + 1) << _BLOCK_SHIFT, start)
            runs.append((ledger, ids, places, start, stop))
            keys.append(_BLOCK_KEY.pack(b"b", ledger, block >> 24 & 0xFFFFFFFF, block >> 8 & 0xFFFF, block & 0xFF))
            start = stop
    return at, runs, keys


def place_runs(
    runs: list[FlushRun], segments: list[tuple[int, bytes]], log: int, base: int
) -> tuple[list[bytes], bytes, int]:
    """Return the index segments of runs whose records follow each other in `log` from the offset `base` on.

    Also their lines of the log's map, one for each run, and the number of their entries. `segments`: see
    `run_segments`. OverflowError if a record begins beyond 4 GiB.
    """
    placed: list[bytes] = []
    lines: list[bytes] = []
    total = 0
    for (ledger, ids, _places, start, stop), (size_bytes, tail) in zip(runs, segments, strict=True):
        if base > 0xFFFFFFFF:
            raise OverflowError("an offset beyond a log")
        placed.append(_SEGMENT_HEAD.pack(log, base) + tail)
        lines.append(_SPAN.pack(ledger, ids[start], ids[stop - 1], stop - start, size_bytes))
        base += size_bytes
        total += stop - start
    return placed, b"".join(lines), total


def join_spans(parts: list[bytes]) -> bytes:
    """Sort lines of a log's map by ledger, and join those of the same ledger. ValueError if a line ends early."""
    lines = sorted((line for part in parts for line in _spans_in(part)), key=itemgetter(0))
    joined: list[list[int]] = []
    for ledger, first, last, entries, size_bytes in lines:
        if not joined or joined[-1][0] != ledger:
            joined.append([ledger, first, last, entries, size_bytes])
            continue
        known = joined[-1]
        if first != NO_ENTRY:
            known[1] = first if known[1] == NO_ENTRY else min(known[1], first)
            known[2] = max(known[2], last)
        known[3] += entries
        known[4] += size_bytes
        if known[3] > 0xFFFFFFFF:
            raise OverflowError("too many entries of a ledger")
    return b"".join([_SPAN.pack(*line) for line in joined])


def _spans_in(part: bytes) -> list[tuple[int, int, int, int, int]]:
    if len(part) % _SPAN.size:
        raise ValueError("a line of a map ends early")
    return list(_SPAN.iter_unpack(part))


def run_segments(runs: list[FlushRun], kept: list[Buffer], bytes_max: int) -> list[tuple[int, bytes]]:
    """Return for each run the bytes of its records, and the part of an index block's segment after log and base.

    Stops before the run with which the records would exceed `bytes_max` bytes (see `storage.block_index`). ValueError
    if a run is empty or not of one block.
    """
    found: list[tuple[int, bytes]] = []
    for _ledger, ids, places, start, stop in runs:
        if not 0 <= start < stop <= len(ids) or len(ids) != len(places) or ids[start] >> 8 != ids[stop - 1] >> 8:
            raise ValueError("not a run of one block")
        part = places[start:stop]
        if max(part) < PLACE_KEPT:
            sizes = [place & PLACE_SIZE_MASK for place in part]
        else:
            sizes = [len(kept[p ^ PLACE_KEPT]) if p & PLACE_KEPT else p & PLACE_SIZE_MASK for p in part]
        size_bytes = sum(sizes) + len(sizes) * RECORD_HEADER_BYTES
        bytes_max -= size_bytes
        if bytes_max < 0:
            break
        found.append((size_bytes, segment_tail(ids[start:stop], sizes)))
    return found


def segment_tail(ids: Sequence[int], sizes: Sequence[int]) -> bytes:
    """Encode the part of an index block's segment after log and base: ascending ids of a block, and body sizes."""
    count, first = len(ids), ids[0] & _BLOCK_MASK
    stride = ids[1] - ids[0] if count > 1 else 1
    form, bitmap = 0, b""
    if ids[-1] - ids[0] != stride * (count - 1) or any(ids[at + 1] - ids[at] != stride for at in range(count - 1)):
        form, bitmap = _BITMAP, sum(1 << (entry & _BLOCK_MASK) for entry in ids).to_bytes(_BITMAP_BYTES, "little")
    longest = max(sizes)
    if sizes.count(longest) == count:
        lengths = _U32.pack(longest)
    elif longest < 1 << 16:
        form |= _SHORT
        lengths = struct.pack(f"<{count}H", *sizes)
    else:
        form |= _LONG
        lengths = struct.pack(f"<{count}I", *sizes)
    return _FORM.pack(form, first, stride, count - 1) + bitmap + lengths


def encode_runs(
    target: "bytearray | memoryview | mmap",
    at: int,
    salt: int,
    runs: list[FlushRun],
    chunks: list[bytearray],
    kept: list[Buffer],
) -> int:
    """Write the records of several runs into `target` from `at` on (see `storage.log_format`).

    Returns the position after the last record. ValueError or IndexError if they do not fit; nothing is written beyond
    the end of `target`.
    """
    pack, crc, crc_pack = _RECORD_TAIL.pack, crc32c, _U32.pack
    parts: list[Buffer] = []
    views = [memoryview(chunk) for chunk in chunks]
    for ledger, ids, places, start, stop in runs:
        if len(ids) != len(places):
            raise ValueError("not one place for each id")
        for entry, place in zip(ids[start:stop], places[start:stop], strict=True):
            if place & PLACE_KEPT:
                body: Buffer = kept[place ^ PLACE_KEPT]
            else:
                begin, size = place >> PLACE_SIZE_BITS, place & PLACE_SIZE_MASK
                offset = begin % CHUNK_BYTES
                body = views[begin // CHUNK_BYTES][offset : offset + size]
                if len(body) != size:
                    raise IndexError("a place outside its chunk")
            head = pack(len(body), ledger, entry)
            parts.append(crc_pack(crc(body, crc(head, salt))) + head)
            parts.append(body)
    joined = b"".join(parts)
    end = at + len(joined)
    if end > len(target):
        raise IndexError("the records do not fit the target")
    target[at:end] = joined
    return end


def merge_blocks(keys: list[bytes], olds: list[bytes | None], fresh: list[bytes]) -> list[bytes | None]:
    """Append new segments to the values of index blocks if they share no id. Return the new values.

    None for a block that the caller must merge itself: its old value is damaged or contains one of the ids.
    """
    found: list[bytes | None] = []
    for key, old, new in zip(keys, olds, fresh, strict=True):
        salt = crc32c(key)
        body, flags = b"", 0
        if old is not None:
            if len(old) < _HEAD.size:
                found.append(None)
                continue
            stored, version, flags = _HEAD.unpack_from(old)
            body = old[_HEAD.size :]
            if version != BLOCK_VERSION or crc32c(old[4:], salt) != stored or _masks(body) & _masks(new):
                found.append(None)
                continue
        rest = bytes((BLOCK_VERSION, flags & 1)) + body + new
        found.append(_U32.pack(crc32c(rest, salt)) + rest)
    return found


def _masks(segments: bytes) -> int:
    """Return the bit mask of the ids in some segments; all bits if the segments are invalid."""
    at = taken = 0
    while at < len(segments):
        if at + _SEGMENT.size > len(segments):
            return -1
        _log, _base, form, first, stride, last = _SEGMENT.unpack_from(segments, at)
        at += _SEGMENT.size
        if form & _BITMAP:
            taken |= int.from_bytes(segments[at : at + _BITMAP_BYTES], "little")
            at += _BITMAP_BYTES
        elif not stride or first + stride * last > _BLOCK_MASK:
            return -1
        else:
            taken |= sum(1 << low for low in range(first, first + stride * last + 1, stride))
        at += (last + 1) * (2 if form & _SHORT else 4) if form & (_SHORT | _LONG) else 4
    return taken if at == len(segments) else -1
