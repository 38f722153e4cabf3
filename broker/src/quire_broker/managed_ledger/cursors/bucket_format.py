"""The stored form of a bucket: delivery times of entries that one subscription delays, in a ledger of their own. Pure.

    entry 0 .. p-1    pages      up to 4,096 entries each, all in the order of delivery time
    entry p .. q-1    positions  which entries the pages hold, as compressed bitmaps
    entry q, the last head       JSON: whose it is, its ledgers, the first time and the size of each page

Every entry begins with a frame: four bytes of its kind, a byte with the version, the CRC32C of the rest. Numbers are
little-endian.

    page       count u32 | has slots u8 | count x time i64 | count x key u64 | count x slot i32, if it has slots
               key: number of the ledger in the head << 40 | entry id
    positions  zlib of: number of the ledger u32 | chunk u64 | 512 bytes, bit i: entry 4096 * chunk + i

The head and the positions suffice to know which entries need not be read again; a page is read when its time comes.
A bucket states facts that never change: the entry at a position is due at a time. It does not say which entries are
acknowledged.
"""

import json
import struct
import sys
import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Final, NamedTuple

from quire_bookie.crc import crc32c
from quire_bookie.dataclass import dataclass
from quire_bookie.errors import MetadataFormatError
from quire_bookie.model import Buffer
from quire_broker.managed_ledger.cursors.ack_ranges import CHUNK_ENTRIES, AckRanges
from quire_broker.managed_ledger.position import Position

BUCKETS_PROPERTY: Final = "#pulsar.internal.quire.delayed-buckets"
"""Property of a cursor's node; stock brokers keep properties with this prefix and hide them."""
PAGE_ENTRIES: Final = 4096
ENTRY_SHIFT: Final = 40
"""Of a key: the number of its ledger is above these bits, the entry id below."""
ENTRY_MASK: Final = (1 << ENTRY_SHIFT) - 1
_VERSION: Final = 1
_PAGE, _POSITIONS, _HEAD = b"QDPG", b"QDPO", b"QDHD"
_FRAME: Final = struct.Struct("<4sBI")
_PAGE_HEAD: Final = struct.Struct("<IB")
_CHUNK_HEAD: Final = struct.Struct("<IQ")
_CHUNK_BYTES: Final = CHUNK_ENTRIES // 8
_CHUNKS_AT_ONCE: Final = 256
"""Bitmaps of 128 KiB, compressed within a millisecond, are one stored entry."""


class BucketRecord(NamedTuple):
    """What the cursor's node says of a bucket: its ledger, and the highest position in it."""

    ledger_id: int
    last: Position


@dataclass(frozen=True, slots=True)
class BucketHead:
    """The last entry of a bucket's ledger. `slots`: the kind of hash slots in it; empty if it has none."""

    managed_ledger: str
    cursor: str
    slots: str
    ledgers: list[int]
    first: tuple[int, int]
    """Ledger and entry of the lowest position."""
    pages: list[tuple[int, int]]
    """Of each page, the first delivery time in ms since the epoch, and the number of entries."""
    positions: int
    """Number of stored entries with positions; they follow the pages."""


def position_of(key: int, ledgers: Sequence[int]) -> Position:
    """Return the position of a key, whose number of the ledger is an index of `ledgers`."""
    return Position(ledgers[key >> ENTRY_SHIFT], key & ENTRY_MASK)


class Page:
    """Entries in the order of their delivery time."""

    __slots__ = ("keys", "slots", "times_ms")

    def __init__(self, times_ms: "array[int]", keys: "array[int]", slots: "array[int] | None") -> None:
        self.times_ms = times_ms
        self.keys = keys
        self.slots = slots

    def __len__(self) -> int:
        return len(self.keys)


def records_text(records: Iterable[BucketRecord]) -> str:
    """Return the value of the property."""
    return " ".join(f"{one.ledger_id}:{one.last.ledger_id}:{one.last.entry_id}" for one in records)


def records_of(text: str) -> tuple[BucketRecord, ...]:
    """Return the records in a property's value. MetadataFormatError."""
    try:
        found = (tuple(map(int, one.split(":"))) for one in text.split())
        return tuple(BucketRecord(bucket, Position(ledger, entry)) for bucket, ledger, entry in found)
    except ValueError as error:
        raise MetadataFormatError(f"not a list of buckets of delayed entries: {text[:200]!r}") from error


def encode_page(page: Page) -> bytes:
    """Return a page as it is stored."""
    columns = [page.times_ms, page.keys] if page.slots is None else [page.times_ms, page.keys, page.slots]
    body = b"".join(_little(column).tobytes() for column in columns)
    return _framed(_PAGE, _PAGE_HEAD.pack(len(page), page.slots is not None) + body)


def decode_page(data: Buffer) -> Page:
    """Return the page. MetadataFormatError."""
    body = _unframed(_PAGE, data)
    count, with_slots = _PAGE_HEAD.unpack_from(body)
    size = _PAGE_HEAD.size + count * (20 if with_slots else 16)
    if len(body) != size:
        raise MetadataFormatError(f"not a page of delayed entries: {len(body)} bytes for {count} entries")
    times_at, keys_at, slots_at = (_PAGE_HEAD.size + count * width for width in (0, 8, 16))
    slots = _column("i", body[slots_at:]) if with_slots else None
    return Page(_column("q", body[times_at:keys_at]), _column("q", body[keys_at:slots_at]), slots)


def encode_positions(positions: AckRanges, ledgers: list[int]) -> Iterator[bytes]:
    """Yield the positions as they are stored. `ledgers`: as in the head."""
    numbers = {ledger_id: number for number, ledger_id in enumerate(ledgers)}
    chunks = ((numbers[ledger], *chunk) for ledger in positions.ledgers() for chunk in positions.chunks(ledger))
    rows: list[bytes] = []
    for number, chunk, bits in chunks:
        rows.append(_CHUNK_HEAD.pack(number, chunk) + bits.to_bytes(_CHUNK_BYTES, "little"))
        if len(rows) == _CHUNKS_AT_ONCE:
            yield _framed(_POSITIONS, zlib.compress(b"".join(rows), 1))
            rows = []
    if rows:
        yield _framed(_POSITIONS, zlib.compress(b"".join(rows), 1))


def decode_positions(data: Buffer, ledgers: list[int]) -> Iterator[tuple[int, int, int]]:
    """Yield ledger, number and bits of each chunk: see `AckRanges.add_chunk`. MetadataFormatError."""
    unpacking = zlib.decompressobj()
    row = _CHUNK_HEAD.size + _CHUNK_BYTES
    try:
        body = unpacking.decompress(_unframed(_POSITIONS, data), _CHUNKS_AT_ONCE * row)
    except zlib.error as error:
        raise MetadataFormatError(f"not positions of delayed entries: {error}") from error
    if not unpacking.eof or len(body) % row:
        raise MetadataFormatError(f"not positions of delayed entries: {len(body)} bytes")
    for at in range(0, len(body), row):
        number, chunk = _CHUNK_HEAD.unpack_from(body, at)
        if number >= len(ledgers) or chunk * CHUNK_ENTRIES > ENTRY_MASK:
            raise MetadataFormatError(f"not positions of delayed entries: chunk {chunk} of ledger number {number}")
        yield ledgers[number], chunk, int.from_bytes(body[at + _CHUNK_HEAD.size : at + row], "little")


def encode_head(head: BucketHead) -> bytes:
    """Return the head as it is stored."""
    return _framed(_HEAD, json.dumps(asdict(head)).encode())


def decode_head(data: Buffer) -> BucketHead:
    """Return the head. MetadataFormatError."""
    try:
        fields = json.loads(bytes(_unframed(_HEAD, data)))
        pages = [(int(first_ms), int(count)) for first_ms, count in fields.pop("pages")]
        ledger_id, entry_id = map(int, fields.pop("first"))
        return BucketHead(**fields, first=(ledger_id, entry_id), pages=pages)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise MetadataFormatError(f"not the head of a bucket of delayed entries: {error}") from error


def _framed(kind: bytes, body: bytes) -> bytes:
    return _FRAME.pack(kind, _VERSION, crc32c(body)) + body


def _unframed(kind: bytes, data: Buffer) -> memoryview:
    view = memoryview(data)
    if len(view) < _FRAME.size:
        raise MetadataFormatError(f"no entry of a bucket of delayed entries: {len(view)} bytes")
    found, version, checksum = _FRAME.unpack_from(view)
    body = view[_FRAME.size :]
    if found != kind or version != _VERSION:
        raise MetadataFormatError(
            f"a bucket of delayed entries has {found!r} of version {version}; {kind!r} of version {_VERSION} is read"
        )
    if crc32c(body) != checksum:
        raise MetadataFormatError(f"an entry of a bucket of delayed entries has a wrong checksum: {len(view)} bytes")
    return body


def _column(kind: str, body: memoryview) -> "array[int]":
    column = array(kind)
    column.frombytes(bytes(body))
    return _little(column)


def _little(column: "array[int]") -> "array[int]":
    if sys.byteorder == "little":
        return column
    swapped = array(column.typecode, column)
    swapped.byteswap()
    return swapped
