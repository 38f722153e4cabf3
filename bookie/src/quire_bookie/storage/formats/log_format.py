"""The bytes of an entry log, version 1. Pure: encodes and checks, never accesses a disk.

All integers are little-endian. A log is a header, then flushes; every flush begins at a multiple of 4096, so that a
block with durable records is never written again.

    header   0  magic "QUIRELOG"   8  version u32   12  header size u32 = 4096   16  log id u64
            24  log uuid 16 bytes  40  storage uuid 16 bytes   56  crc32c of bytes 0..55   60  zeros up to 4096
    record   0  crc32c u32   4  body size u32   8  ledger i64   16  entry i64   24  body
             the crc covers bytes 4.. of the record and starts from the crc of the log's header, so that a record
             of another log is never taken for one of this log
    entry >= 0                 body is the stored entry (header, digest, payload)
    ledger >= 0, entry = -2    body is the ledger's state (ledger_states.encode_state)
    ledger = -1, entry = -1    footer: ends one flush. body: previous footer's offset u64 (0 = none), then a map
    ledger = -1, entry = -2    map of the whole log, once sealed. body: 0 u64, then a map
    map      count u32, then count x { ledger i64, first i64, last i64, entries u32, bytes u64 }, then a table of ages
             (`log_ages`; absent in logs that were written before ages were stored)
             a ledger that only has state records in this log is listed with first = last = -1 and 0 entries
    seal     the last 64 bytes of a sealed log: magic "QUIRSEAL", log id u64, offset of the map u64, file size u64,
             crc32c of the 32 bytes before; zeros

Zeros fill up to 4096 after a footer, and between the map and the seal. The index (`log_catalog`) has the durable bytes
of an unsealed log: after them there is at most a torn tail; damage before them is provable.
"""

import struct
from collections.abc import Iterable, Sequence
from typing import Final

from quire_bookie.crc import crc32c
from quire_bookie.dataclass import dataclass
from quire_bookie.errors import DamagedError
from quire_bookie.model import NO_ENTRY, Buffer, EntryId, LedgerId
from quire_bookie.storage.formats.log_ages import AgeTable, decode_ages, encode_ages

LOG_VERSION: Final = 1
LOG_ALIGNMENT_BYTES: Final = 4096
LOG_HEADER_BYTES: Final = 4096
RECORD_HEADER_BYTES: Final = 24
SEAL_BYTES: Final = 64
STATE_ENTRY: Final = EntryId(-2)
FILE_LEDGER: Final = LedgerId(-1)
FOOTER_ENTRY: Final = EntryId(-1)
MAP_ENTRY: Final = EntryId(-2)

_HEADER_MAGIC = b"QUIRELOG"
_SEAL_MAGIC = b"QUIRSEAL"
_HEADER = struct.Struct("<8sIIQ16s16s")
_SEAL = struct.Struct("<8sQQQ")
_CRC = struct.Struct("<I")
_TAIL = struct.Struct("<Iqq")
_RECORD = struct.Struct("<IIqq")
_MAP_HEAD = struct.Struct("<QI")
_MAP_LINE = struct.Struct("<qqqIQ")


@dataclass(frozen=True, slots=True)
class LogHeader:
    """The identity of a log."""

    log: int
    uuid: bytes
    storage_uuid: bytes


@dataclass(slots=True)
class LedgerSpan:
    """The records of one ledger in one log. `size_bytes` counts bodies and record headers."""

    first: EntryId
    last: EntryId
    entries: int
    size_bytes: int


LedgerMap = dict[LedgerId, LedgerSpan]


def encode_header(header: LogHeader) -> bytes:
    """Encode the first 4096 bytes of a log."""
    fixed = _HEADER.pack(_HEADER_MAGIC, LOG_VERSION, LOG_HEADER_BYTES, header.log, header.uuid, header.storage_uuid)
    return (fixed + _CRC.pack(crc32c(fixed))).ljust(LOG_HEADER_BYTES, b"\0")


def decode_header(data: Buffer, path: str) -> LogHeader:
    """Check and decode a header. DamagedError if it is not a header of an entry log, or is damaged."""
    if len(data) < _HEADER.size + 4:
        raise DamagedError(path, 0, f"the header ends after {len(data)} bytes")
    magic, version, size, log, uuid, storage_uuid = _HEADER.unpack_from(data)
    if magic != _HEADER_MAGIC:
        raise DamagedError(path, 0, "not an entry log: the magic is wrong")
    if crc32c(data[: _HEADER.size]) != _CRC.unpack_from(data, _HEADER.size)[0]:
        raise DamagedError(path, 0, "the header's checksum is wrong")
    if version != LOG_VERSION or size != LOG_HEADER_BYTES:
        raise DamagedError(path, 0, f"version {version} of the format is not supported")
    return LogHeader(log, uuid, storage_uuid)


def salt_of(header: LogHeader) -> int:
    """Return the start value of the checksums of a log's records."""
    return crc32c(encode_header(header)[: _HEADER.size])


def encode_records(
    salt: int, ledger: LedgerId, ids: Iterable[int], bodies: Sequence[Buffer], out: list[Buffer]
) -> None:
    """Append head and body of each record to `out`."""
    pack, crc, crc_pack, add = _TAIL.pack, crc32c, _CRC.pack, out.append
    for entry, body in zip(ids, bodies, strict=True):
        head = pack(len(body), ledger, entry)
        add(crc_pack(crc(body, crc(head, salt))) + head)
        add(body)


def check_record(salt: int, record: Buffer, ledger: LedgerId, entry: EntryId, path: str, offset: int) -> memoryview:
    """Check that `record` is exactly this record and return its body. DamagedError names `path` and `offset`."""
    view = memoryview(record)
    if len(view) < RECORD_HEADER_BYTES:
        raise DamagedError(path, offset, f"the file ends inside a record of ledger {ledger} entry {entry}")
    stored, size, found_ledger, found_entry = _RECORD.unpack_from(view)
    if size != len(view) - RECORD_HEADER_BYTES:
        raise DamagedError(path, offset, f"record of {size} bytes where {len(view) - RECORD_HEADER_BYTES} were written")
    if crc32c(view[4:], salt) != stored:
        raise DamagedError(path, offset, f"the checksum of ledger {ledger} entry {entry} is wrong")
    if found_ledger != ledger or found_entry != entry:
        raise DamagedError(
            path, offset, f"holds ledger {found_ledger} entry {found_entry}, not ledger {ledger} entry {entry}"
        )
    return view[RECORD_HEADER_BYTES:]


def record_size(head: Buffer) -> int:
    """Return the size of the whole record from its first 24 bytes. Unverified: check the record afterwards."""
    return int(_RECORD.unpack_from(head)[1]) + RECORD_HEADER_BYTES


def encode_map(lines: bytes, previous: int, ages: AgeTable | None = None) -> bytes:
    """Encode the body of a footer or a map record. `lines`: those of its ledgers, ascending, one for each ledger."""
    count = len(lines) // _MAP_LINE.size
    return _MAP_HEAD.pack(previous, count) + lines + (b"" if ages is None else encode_ages(ages))


def map_line(ledger: LedgerId, first: EntryId, last: EntryId, entries: int, size_bytes: int) -> bytes:
    """Encode the line of a ledger in a map."""
    return _MAP_LINE.pack(ledger, first, last, entries, size_bytes)


def map_lines(spans: LedgerMap) -> bytes:
    """Encode the lines of a map."""
    return b"".join(
        map_line(ledger, span.first, span.last, span.entries, span.size_bytes) for ledger, span in sorted(spans.items())
    )


def decode_map(body: Buffer, path: str, offset: int) -> tuple[LedgerMap, int]:
    """Decode the map and the previous footer's offset. DamagedError."""
    if len(body) < _MAP_HEAD.size:
        raise DamagedError(path, offset, "a map record is too short")
    previous, count = _MAP_HEAD.unpack_from(body)
    end = _MAP_HEAD.size + count * _MAP_LINE.size
    if len(body) < end:
        raise DamagedError(path, offset, f"a map of {count} ledgers in {len(body)} bytes")
    decode_ages(memoryview(body)[end:], path, offset)
    lines = _MAP_LINE.iter_unpack(memoryview(body)[_MAP_HEAD.size : end])
    return {LedgerId(line[0]): LedgerSpan(EntryId(line[1]), EntryId(line[2]), line[3], line[4]) for line in lines}, int(
        previous
    )


def ages_of_map(body: Buffer, path: str, offset: int) -> AgeTable | None:
    """Decode the ages in a body that `decode_map` accepted; None in a log without ages. DamagedError."""
    count = _MAP_HEAD.unpack_from(body)[1]
    return decode_ages(memoryview(body)[_MAP_HEAD.size + count * _MAP_LINE.size :], path, offset)


def merge_map(into: LedgerMap, other: LedgerMap) -> None:
    """Add the counts of `other` to `into`."""
    for ledger, span in other.items():
        note_entries(into, ledger, span.first, span.last, span.entries, span.size_bytes)


def note_entries(
    spans: LedgerMap, ledger: LedgerId, first: EntryId, last: EntryId, entries: int, size_bytes: int
) -> None:
    """Count additional entries of a ledger (0 with first = last = NO_ENTRY for a state record)."""
    span = spans.get(ledger)
    if span is None:
        spans[ledger] = LedgerSpan(first, last, entries, size_bytes)
        return
    if first != NO_ENTRY:
        span.first = first if span.first == NO_ENTRY else min(span.first, first)
        span.last = max(span.last, last)
    span.entries += entries
    span.size_bytes += size_bytes


def encode_seal(log: int, map_offset: int, file_size: int) -> bytes:
    """Encode the last 64 bytes of a sealed log."""
    fixed = _SEAL.pack(_SEAL_MAGIC, log, map_offset, file_size)
    return (fixed + _CRC.pack(crc32c(fixed))).ljust(SEAL_BYTES, b"\0")


def decode_seal(data: Buffer, log: int, file_size: int, path: str) -> int:
    """Check the seal and return the offset of the map record. DamagedError."""
    offset = max(0, file_size - SEAL_BYTES)
    if len(data) != SEAL_BYTES or crc32c(data[: _SEAL.size]) != _CRC.unpack_from(data, _SEAL.size)[0]:
        raise DamagedError(path, offset, "the seal's checksum is wrong")
    magic, found, map_offset, size = _SEAL.unpack_from(data)
    if magic != _SEAL_MAGIC or found != log or size != file_size:
        raise DamagedError(path, offset, f"the seal is of log {found} with {size} bytes")
    return int(map_offset)


def padding_to(offset: int, alignment: int) -> int:
    """Return the number of bytes from `offset` to the next multiple of `alignment`."""
    return -offset % alignment
