"""The steps of reads that look at every entry of a buffer, in plain Python: what each of them means, and the fallback.

As `plain`: pure, and with native twins of the same names, arguments and results. A *stretch* is some records of one
ledger in one piece of an entry log: `ids` ascend; `starts` and `sizes` are those of the bodies in `data`, each of which
stands behind the 24 bytes of its record's head.
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
    """The V2 reads of 24 bytes that stand one behind the other from `position` on: same length, header word and ledger
    as the first. Gives the position behind the last one, and the ids that they ask for.
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
    """The indexes of the records of a stretch that are not intact (see `storage.log_format`): each record's checksum,
    size and ids are looked at. IndexError where a place is outside of `data`.
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
    """Where an entry is in ascending ids, -1 for nowhere; `guess` is looked at first."""
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
    """V2 answers to the reads of `wanted` from its index `at` on, one after the other, and how many those are: up to
    the first that the stretch has not, to `count_max`, and to the one with which they reach `bytes_max`.
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
    """Entries of consecutive ids from `first` on, each behind its length, and how many those are: up to the first that
    the stretch has not, to `entries_max`, and before the one with which they would go beyond `bytes_max`.
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
