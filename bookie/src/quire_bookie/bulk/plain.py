"""Steps that look at every entry of a buffer, in plain Python: what each of them means, and the fallback.

Pure: bytes in, bytes out, no state. The native twins (`bookie/native`) have the same names, arguments and results and
pass the same tests. Whatever decides something stays with its owner: these only copy, count and check sums.

A *place* says where an entry lies in a half of the write cache: the index of a kept object with the bit PLACE_KEPT, or
the offset in the row of chunks shifted by PLACE_SIZE_BITS, with the size below. Ids and places travel as int64 of the
machine's byte order: `array("q")`, or bytes of one.
"""

from array import array
from itertools import accumulate
from operator import attrgetter
from struct import Struct
from typing import Final

from quire_bookie.model import ENTRY_HEADER_BYTES, Buffer, EntryId, LedgerId, Run, RunPiece, RunRow

CHUNK_BYTES: Final = 1 << 20
BATCHED_ENTRY_BYTES_MAX: Final = 16 * 1024 - 1
"""Larger entries are not copied together: see `take_adds`."""
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
"""A larger join is a fresh mapping every time, and its page faults cost more than copying entry by entry."""
_run_fields = attrgetter("ledger", "first", "lac", "entries")


def take_adds(
    data: bytes, position: int, frame_bytes_max: int, first: int, lac: int, entries: list[Buffer]
) -> tuple[int, int, int]:
    """Append the bodies of the V2 adds that stand one behind the other from `position` on: same header word, key and
    ledger as the one there, ids counting up from `first`, whole frames of at most `frame_bytes_max` bytes.

    Gives the position behind the last one, their bytes together, and the highest LAC (at least `lac`). Bodies are
    views into `data`, or copies: the native twin copies the small ones, so that nothing pins the buffer.
    """
    end = len(data)
    unpack, head_bytes = _ADD_HEAD.unpack_from, _ADD_HEAD.size
    view = memoryview(data)
    wanted = data[position + 4 : position + 36]
    size_bytes = 0
    add = entries.append
    while end - position >= head_bytes:
        length, prefix, entry, told = unpack(data, position)
        stop = position + 4 + length
        if prefix != wanted or entry != first or not _FULL_ADD_LENGTH <= length <= frame_bytes_max or stop > end:
            break
        add(view[position + 28 : stop])
        first += 1
        size_bytes += length - _ADD_FIXED_BYTES
        if told > lac:
            lac = told
        position = stop
    return position, size_bytes, lac


def take_add_rows(data: bytes, position: int, frame_bytes_max: int) -> tuple[int, list[RunRow], bytes, int, int]:
    """Take the V2 adds that stand one behind the other from `position` on, of whatever ledgers: header word as the
    first one's, whole frames of at most `frame_bytes_max` bytes, entries of at most BATCHED_ENTRY_BYTES_MAX.

    Gives the position behind the last one, a row for each run of ids of one ledger and key (see `model.RunRow`), their
    journal records one behind the other (see `journal.records`), the entries taken and their bytes. Adds of one ledger
    stay in order; those of different ledgers are put together.
    """
    end = len(data)
    unpack, head_bytes = _ADD_HEAD.unpack_from, _ADD_HEAD.size
    view = memoryview(data)
    header = data[position + 4 : position + 8]
    open_rows: dict[bytes, tuple[int, list[int], list[Buffer]]] = {}
    found: list[tuple[bytes, int, list[int], list[Buffer]]] = []
    taken = size_bytes = 0
    while end - position >= head_bytes:
        length, prefix, entry, told = unpack(data, position)
        stop = position + 4 + length
        fits = _FULL_ADD_LENGTH <= length <= frame_bytes_max and stop <= end
        if not fits or prefix[:4] != header or length - _ADD_FIXED_BYTES > BATCHED_ENTRY_BYTES_MAX:
            break
        row = open_rows.get(prefix)
        if row is None or row[0] + len(row[2]) != entry:
            row = open_rows[prefix] = (entry, [], [])
            found.append((prefix, *row))
        row[1].append(told)
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
    """As `store_entries`, of the entries of all rows, `count` in all, out of the records of `take_add_rows`."""
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
        raise ValueError("more or fewer entries than were told")
    return store_entries(chunk, offset, start, entries)


def row_replies(length: int, header: int, code: int, rows: list[RunRow]) -> bytes:
    """V2 answers to every add of some rows, one after the other."""
    return b"".join([add_replies(length, header, code, row[0], row[1], row[2]) for row in rows])


def add_replies(length: int, header: int, code: int, ledger: int, first: int, count: int) -> bytes:
    """V2 answers to `count` adds, one after the other."""
    pack = _REPLY.pack
    if count == 1:
        return pack(length, header, code, ledger, first)
    return b"".join([pack(length, header, code, ledger, entry) for entry in range(first, first + count)])


def store_entries(chunk: bytearray, offset: int, start: int, entries: list[Buffer]) -> bytes:
    """Copy entries into a chunk from `offset` on, which is `start` in the row of chunks; their places.

    IndexError or ValueError where they do not fit: the chunk never grows.
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
    """Runs and encoded records, in order, as the body of a journal group (see `journal.records`)."""
    parts: list[Buffer] = []
    add = parts.append
    for item in items:
        if isinstance(item, bytes):
            add(item)
            continue
        ledger, first, lac, entries = _run_fields(item)
        if len(entries) == 1:
            # Unbatched adds: a third of the cost of the general case.
            entry = entries[0]
            add(_RUN_HEAD_OF_ONE.pack(_ENTRIES_KIND, 1, ledger, first, lac, len(entry)))
            add(entry)
        else:
            add(_RUN_HEAD.pack(_ENTRIES_KIND, len(entries), ledger, first, lac))
            add(Struct(f"<{len(entries)}I").pack(*map(len, entries)))
            parts.extend(entries)
    return b"".join(parts)
