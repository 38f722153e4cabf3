"""The steps of reads that process every entry of a buffer, in plain Python: the specification and the fallback.

Pure, with native twins as in `plain`. A *stretch* consists of records of one ledger in one contiguous part of an entry
log: `ids` ascend; `starts` and `sizes` locate the bodies in `data`, each of which follows the 24 bytes of its record's
head.
"""

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from struct import Struct

from quire_bookie.crc import crc32c

_READ_FRAME_BYTES = 24
_READ_PREFIX_BYTES = 16
_READ_ID = Struct(">16xq")
_REPLY = Struct(">iIiqq")
_LENGTH = Struct(">i")
_RECORD = Struct("<IIqq")
_RECORD_HEAD_BYTES = 24


def take_reads(data: bytes, position: int) -> tuple[int, bytes]:
    """Decode consecutive V2 reads of 24 bytes from `position` on, with length, header word and ledger of the first one.

    Returns the position after the last one, and the requested ids.
    """
    prefix = data[position : position + _READ_PREFIX_BYTES]
    end = position
    last = len(data) - _READ_FRAME_BYTES
    while end <= last and data[end : end + _READ_PREFIX_BYTES] == prefix:
        end += _READ_FRAME_BYTES
    return end, array("q", [ids[0] for ids in _READ_ID.iter_unpack(data[position:end])]).tobytes()


def check_records(
    data: bytes, salt: int, ledger: int, ids: Sequence[int], starts: Sequence[int], sizes: Sequence[int]
) -> list[int]:
    """Return the indexes of damaged records of a stretch: checks the checksum, size and ids of each record.

    See `storage.log_format`. IndexError if a record is outside of `data`.
    """
    unpack, view = _RECORD.unpack_from, memoryview(data)
    damaged = []
    for index, (entry, start, size) in enumerate(zip(ids, starts, sizes, strict=True)):
        begin, end = start - _RECORD_HEAD_BYTES, start + size
        if begin < 0 or size < 0 or end > len(data):
            raise IndexError("a record outside its stretch")
        if unpack(data, begin) != (crc32c(view[begin + 4 : end], salt), size, ledger, entry):
            damaged.append(index)
    return damaged


def _index_of(ids: Sequence[int], entry: int, guess: int) -> int:
    """Return the index of an entry in ascending ids, or -1; tries `guess` first."""
    if 0 <= guess < len(ids) and ids[guess] == entry:
        return guess
    index = bisect_left(ids, entry)
    return index if index < len(ids) and ids[index] == entry else -1


def read_replies(
    data: bytes,
    ids: Sequence[int],
    starts: Sequence[int],
    sizes: Sequence[int],
    header: int,
    ledger: int,
    wanted: Sequence[int],
    at: int,
    count_max: int,
    bytes_max: int,
) -> tuple[bytes, int]:
    """Encode V2 responses to the reads of `wanted` from its index `at` on. Return them concatenated, and their number.

    Stops before the first entry that the stretch lacks, after `count_max` responses, and after the response with which
    they reach `bytes_max`.
    """
    pack, head_bytes = _REPLY.pack, _REPLY.size
    parts: list[bytes] = []
    add = parts.append
    size_bytes = index = 0
    for entry in wanted[at : at + count_max]:
        index = _index_of(ids, entry, index)
        if index < 0 or (size_bytes >= bytes_max and parts):
            break
        start, size = starts[index], sizes[index]
        add(pack(head_bytes - 4 + size, header, 0, ledger, entry))
        add(data[start : start + size])
        size_bytes += head_bytes + size
        index += 1
    return b"".join(parts), len(parts) // 2


def batch_bodies(
    data: bytes,
    ids: Sequence[int],
    starts: Sequence[int],
    sizes: Sequence[int],
    first: int,
    entries_max: int,
    bytes_max: int,
) -> tuple[bytes, int]:
    """Return entries of consecutive ids from `first` on, each preceded by its length, and their number.

    Stops before the first entry that the stretch lacks, after `entries_max` entries, and before the entry with which
    they would exceed `bytes_max`.
    """
    parts: list[bytes] = []
    size_bytes = 0
    begin = _index_of(ids, first, first - ids[0] if ids else 0)
    for index in range(begin, min(begin + entries_max, len(ids)) if begin >= 0 else begin):
        start, size = starts[index], sizes[index]
        size_bytes += _LENGTH.size + size
        if ids[index] - first != index - begin or size_bytes > bytes_max:
            break
        parts.append(_LENGTH.pack(size))
        parts.append(data[start : start + size])
    return b"".join(parts), len(parts) // 2
