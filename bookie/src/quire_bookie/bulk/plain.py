"""Steps that process every entry of a buffer, in plain Python: the specification and the fallback.

Pure and stateless. The native twins (`bookie/native`) have the same names, arguments and results and pass the same
tests. The steps only copy, count and compute checksums; decisions belong to their callers.

A *place* locates an entry in a half of the write cache. It is either the index of a kept object with the bit
PLACE_KEPT, or the entry's offset in the sequence of chunks, shifted left by PLACE_SIZE_BITS, plus its size. Ids and
places are int64 in native byte order: `array("q")`, or its bytes.
"""

from array import array
from itertools import accumulate
from operator import attrgetter
from struct import Struct
from typing import Final

from quire_bookie.model import ENTRY_HEADER_BYTES, Buffer, EntryId, LedgerId, Run, RunPiece, RunRow

CHUNK_BYTES: Final = 1 << 20
BATCHED_ENTRY_BYTES_MAX: Final = 16 * 1024 - 1
"""Larger entries are not copied into batches: see `take_adds`."""
PLACE_SIZE_BITS: Final = 24
PLACE_KEPT: Final = 1 << 62
PLACE_SIZE_MASK: Final = (1 << PLACE_SIZE_BITS) - 1

_ADD_HEAD = Struct(">i32sqq")
_ADD_FIXED_BYTES = 24
_FULL_ADD_LENGTH = _ADD_FIXED_BYTES + ENTRY_HEADER_BYTES
_REPLY = Struct(">iIiqq")
_RUN_HEAD = Struct("<B3xIqqq")
_RUN_HEAD_OF_ONE = Struct("<B3xIqqqI")
_ENTRIES_KIND = 1
_JOIN_BYTES_MAX = 48 * 1024
"""A larger join is a new memory mapping each time, whose page faults cost more than copying entry by entry."""
_run_fields = attrgetter("ledger", "first", "lac", "entries")


def take_adds(
    data: bytes, position: int, frame_bytes_max: int, first: int, lac: int, entries: list[Buffer]
) -> tuple[int, int, int]:
    """Append the bodies of consecutive V2 adds from `position` on to `entries`.

    The adds have the header word, key and ledger of the first one, ids that count up from `first`, and complete frames
    of at most `frame_bytes_max` bytes. Returns the position after the last add, the bytes of all bodies, and the
    highest LAC (at least `lac`). Bodies are views into `data`, or copies: the native twin copies small ones, so that
    they do not keep the buffer alive.
    """
    end = len(data)
    unpack, head_bytes = _ADD_HEAD.unpack_from, _ADD_HEAD.size
    view = memoryview(data)
    wanted = data[position + 4 : position + 36]
    size_bytes = 0
    add = entries.append
    while end - position >= head_bytes:
        length, prefix, entry, entry_lac = unpack(data, position)
        stop = position + 4 + length
        if prefix != wanted or entry != first or not _FULL_ADD_LENGTH <= length <= frame_bytes_max or stop > end:
            break
        add(view[position + 28 : stop])
        first += 1
        size_bytes += length - _ADD_FIXED_BYTES
        if entry_lac > lac:
            lac = entry_lac
        position = stop
    return position, size_bytes, lac


def take_add_rows(data: bytes, position: int, frame_bytes_max: int) -> tuple[int, list[RunRow], bytes, int, int]:
    """Decode consecutive V2 adds of any ledgers from `position` on.

    The adds have the header word of the first one, complete frames of at most `frame_bytes_max` bytes, and entries of
    at most BATCHED_ENTRY_BYTES_MAX. Returns the position after the last add, a row for each run of ids of one ledger
    and key (see `model.RunRow`), their concatenated journal records (see `journal.records`), the number of entries, and
    their bytes. Adds of one ledger stay in order; they are grouped by ledger.
    """
    end = len(data)
    unpack, head_bytes = _ADD_HEAD.unpack_from, _ADD_HEAD.size
    view = memoryview(data)
    header = data[position + 4 : position + 8]
    open_rows: dict[bytes, tuple[int, list[int], list[Buffer]]] = {}
    found: list[tuple[bytes, int, list[int], list[Buffer]]] = []
    taken = size_bytes = 0
    while end - position >= head_bytes:
        length, prefix, entry, entry_lac = unpack(data, position)
        stop = position + 4 + length
        fits = _FULL_ADD_LENGTH <= length <= frame_bytes_max and stop <= end
        if not fits or prefix[:4] != header or length - _ADD_FIXED_BYTES > BATCHED_ENTRY_BYTES_MAX:
            break
        row = open_rows.get(prefix)
        if row is None or row[0] + len(row[2]) != entry:
            row = open_rows[prefix] = (entry, [], [])
            found.append((prefix, *row))
        row[1].append(entry_lac)
        row[2].append(view[position + 28 : stop])
        taken += 1
        size_bytes += length - _ADD_FIXED_BYTES
        position = stop
    parts: list[Buffer] = []
    rows: list[RunRow] = []
    at = 0
    for prefix, first, lacs, entries in found:
        ledger, count, lac = int.from_bytes(prefix[24:], "big", signed=True), len(entries), max(lacs)
        parts.append(_RUN_HEAD.pack(_ENTRIES_KIND, count, ledger, first, lac))
        parts.append(Struct(f"<{count}I").pack(*map(len, entries)))
        parts += entries
        stop = at + _RUN_HEAD.size + 4 * count + sum(map(len, entries))
        rows.append((LedgerId(ledger), EntryId(first), count, EntryId(lac), prefix[4:24], at, stop))
        at = stop
    return position, rows, b"".join(parts), taken, size_bytes


def store_rows(chunk: bytearray, offset: int, start: int, pieces: list[RunPiece], count: int) -> bytes:
    """Store entries as `store_entries` does: those of all rows, `count` in total, from records of `take_add_rows`."""
    entries: list[Buffer] = []
    for records, rows in pieces:
        view = memoryview(records)
        for row in rows:
            at = row[5] + _RUN_HEAD.size
            body = at + 4 * row[2]
            if body > len(records):
                raise IndexError("a row outside its records")
            for length in Struct(f"<{row[2]}I").unpack_from(records, at):
                if body + length > len(records):
                    raise IndexError("a row outside its records")
                entries.append(view[body : body + length])
                body += length
    if len(entries) != count:
        raise ValueError("the rows do not have `count` entries")
    return store_entries(chunk, offset, start, entries)


def row_replies(length: int, header: int, code: int, rows: list[RunRow]) -> bytes:
    """Encode V2 responses to every add of some rows, concatenated."""
    return b"".join([add_replies(length, header, code, row[0], row[1], row[2]) for row in rows])


def add_replies(length: int, header: int, code: int, ledger: int, first: int, count: int) -> bytes:
    """Encode V2 responses to `count` adds, concatenated."""
    pack = _REPLY.pack
    if count == 1:
        return pack(length, header, code, ledger, first)
    return b"".join([pack(length, header, code, ledger, entry) for entry in range(first, first + count)])


def store_entries(chunk: bytearray, offset: int, start: int, entries: list[Buffer]) -> bytes:
    """Copy entries into a chunk from `offset` on, which is `start` in the sequence of chunks. Return their places.

    IndexError or ValueError if they do not fit: the chunk never grows.
    """
    sizes = list(map(len, entries))
    size_bytes = sum(sizes)
    if offset + size_bytes > len(chunk):
        raise IndexError("the entries do not fit the chunk")
    if size_bytes <= _JOIN_BYTES_MAX:
        chunk[offset : offset + size_bytes] = b"".join(entries)
    else:
        for entry, size in zip(entries, sizes, strict=True):
            chunk[offset : offset + size] = entry
            offset += size
    starts = accumulate(sizes, initial=start)
    return array("q", [at << PLACE_SIZE_BITS | size for at, size in zip(starts, sizes, strict=False)]).tobytes()


def encode_body(items: list[Run | bytes]) -> bytes:
    """Encode runs and append encoded records, in order, as the body of a journal group (see `journal.records`)."""
    parts: list[Buffer] = []
    add = parts.append
    for item in items:
        if isinstance(item, bytes):
            add(item)
            continue
        ledger, first, lac, entries = _run_fields(item)
        if len(entries) == 1:
            # Unbatched adds cost a third of the general case this way.
            entry = entries[0]
            add(_RUN_HEAD_OF_ONE.pack(_ENTRIES_KIND, 1, ledger, first, lac, len(entry)))
            add(entry)
        else:
            add(_RUN_HEAD.pack(_ENTRIES_KIND, len(entries), ledger, first, lac))
            add(Struct(f"<{len(entries)}I").pack(*map(len, entries)))
            parts.extend(entries)
    return b"".join(parts)
