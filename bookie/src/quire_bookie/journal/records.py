"""The body of a journal group: a sequence of records. Pure; without a checksum of its own (the group has one).

```
record     kind u8, zero u8 * 3, count u32, ledger i64, then by kind (little-endian throughout):
 1 entries      first i64, lac i64, length u32 * count, the entries' bytes
 2 master key   count bytes of key
 3 fence        nothing (count 0)
 4 explicit LAC count bytes of packet, as the writer sent it
 5 shutdown     nothing (count 0, ledger -1): the process closed the journal cleanly
 6 bound key    as 2, of a ledger with a token: count bytes of token size u8, token, key
```

Owns these bytes and nothing else; `bulk` encodes a whole group in one step. Must never parse an entry: its header was
checked when it was received.
"""

import struct
from collections.abc import Iterator
from dataclasses import field
from typing import cast

from quire_bookie.bulk import encode_body as encode_body
from quire_bookie.dataclass import dataclass
from quire_bookie.model import Buffer, EntryId, LedgerId, Run, RunBatch

_HEAD = struct.Struct("<B3xIq")
_IDS = struct.Struct("<qq")
PART_BYTES_MIN = 16 * 1024
"""A run whose mean entry size is at least this is not joined: a separate part costs less than the copy."""
JOINED_PART_BYTES_MAX = 4 * 1024
"""Parts whose mean size is smaller are joined after all: a checksum and a copy for each part cost as much."""
_ENTRIES, _MASTER_KEY, _FENCE, _EXPLICIT_LAC, _SHUTDOWN, _BOUND_KEY = range(1, 7)

SHUTDOWN_RECORD = _HEAD.pack(_SHUTDOWN, 0, -1)
"""The last record of a journal that was closed cleanly."""


class RecordFormatError(ValueError):
    """The body is not a sequence of records although its checksum is valid: another version wrote it, or a bug."""


@dataclass(frozen=True, slots=True)
class EntryRecord:
    """Added entries."""

    run: Run


@dataclass(frozen=True, slots=True)
class MasterKeyRecord:
    """The master key of the first request for a ledger. `token`: tells apart ledgers of the same id, or empty."""

    ledger: LedgerId
    key: bytes = field(repr=False)
    token: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class FenceRecord:
    """The ledger is fenced: it accepts no more adds from its writer."""

    ledger: LedgerId


@dataclass(frozen=True, slots=True)
class ExplicitLacRecord:
    """The LAC that the writer sent separately from the entries."""

    ledger: LedgerId
    packet: bytes


@dataclass(frozen=True, slots=True)
class ShutdownRecord:
    """The journal was closed cleanly: no append was in flight."""


JournalRecord = EntryRecord | MasterKeyRecord | FenceRecord | ExplicitLacRecord
"""The records that replay delivers."""


def encode_parts(items: list[Run | bytes]) -> list[Buffer]:
    """Encode a body in parts: entries of runs of large entries uncopied, everything else joined."""
    parts: list[Buffer] = []
    small: list[Run | bytes] = []
    for item in items:
        if isinstance(item, bytes) or item.size_bytes < PART_BYTES_MIN * len(item.entries):
            small.append(item)
            continue
        if small:
            parts.append(encode_body(small))
            small = []
        count, sizes = len(item.entries), map(len, item.entries)
        parts.append(struct.pack(f"<B3xIqqq{count}I", _ENTRIES, count, item.ledger, item.first, item.lac, *sizes))
        parts.extend(item.entries)
    if small:
        parts.append(encode_body(small))
    return parts


def encode_items(items: list[Run | RunBatch | bytes], entries: int, queued_bytes: int) -> list[Buffer]:
    """Encode the body of a group of any items, in parts; large entries are not copied.

    `entries` and `queued_bytes` are the totals over all items.
    """
    if not any(type(item) is RunBatch for item in items):
        plain = cast(list[Run | bytes], items)
        return encode_parts(plain) if queued_bytes >= PART_BYTES_MIN * entries else [encode_body(plain)]
    parts: list[Buffer] = []
    others: list[Run | bytes] = []
    for item in items:
        if not isinstance(item, RunBatch):
            others.append(item)
            continue
        if others:
            parts += encode_parts(others)
            others = []
        parts += item.parts()
    if others:
        parts += encode_parts(others)
    small = sum(map(len, parts)) < JOINED_PART_BYTES_MAX * len(parts)
    return [b"".join(parts)] if small else parts


def records_of(item: Run | RunBatch | bytes) -> int:
    """Return the number of records in an item."""
    return sum([len(rows) for _records, rows in item.pieces]) if isinstance(item, RunBatch) else 1


def master_key_record(ledger: LedgerId, key: bytes, token: bytes = b"") -> bytes:
    """Encode a master key, with the ledger's token if it has one."""
    if token:
        return _HEAD.pack(_BOUND_KEY, 1 + len(token) + len(key), ledger) + bytes((len(token),)) + token + key
    return _HEAD.pack(_MASTER_KEY, len(key), ledger) + key


def fence_record(ledger: LedgerId) -> bytes:
    """Encode a fence."""
    return _HEAD.pack(_FENCE, 0, ledger)


def explicit_lac_record(ledger: LedgerId, packet: Buffer) -> bytes:
    """Encode an explicit LAC."""
    return _HEAD.pack(_EXPLICIT_LAC, len(packet), ledger) + packet


def decode_body(body: bytes) -> Iterator[JournalRecord | ShutdownRecord]:
    """Decode the records of a body whose checksum is valid. Entries are copies, so they do not pin the body."""
    offset = 0
    while offset < len(body):
        record, offset = _decode_one(body, offset)
        yield record


def _decode_one(body: bytes, offset: int) -> tuple[JournalRecord | ShutdownRecord, int]:
    if offset + _HEAD.size > len(body):
        raise RecordFormatError(f"incomplete record at {offset} of {len(body)} bytes")
    kind, count, ledger = _HEAD.unpack_from(body, offset)
    start = offset + _HEAD.size
    if kind == _ENTRIES:
        return _decode_run(body, start, count, LedgerId(ledger))
    end = start + count
    if end > len(body):
        raise RecordFormatError(f"record at {offset} ends at {end} of {len(body)} bytes")
    if kind == _MASTER_KEY:
        return MasterKeyRecord(LedgerId(ledger), body[start:end]), end
    if kind == _BOUND_KEY and count and start + 1 + body[start] <= end:
        key_at = start + 1 + body[start]
        return MasterKeyRecord(LedgerId(ledger), body[key_at:end], body[start + 1 : key_at]), end
    if kind == _EXPLICIT_LAC:
        return ExplicitLacRecord(LedgerId(ledger), body[start:end]), end
    if kind == _FENCE and not count:
        return FenceRecord(LedgerId(ledger)), end
    if kind == _SHUTDOWN and not count:
        return ShutdownRecord(), end
    raise RecordFormatError(f"record of unknown kind {kind} at {offset}")


def _decode_run(body: bytes, start: int, count: int, ledger: LedgerId) -> tuple[EntryRecord, int]:
    offset = start + _IDS.size + 4 * count
    if offset > len(body):
        raise RecordFormatError(f"run at {start} names {count} entries in {len(body)} bytes")
    first, lac = _IDS.unpack_from(body, start)
    entries: list[bytes] = []
    begin = offset
    for length in struct.unpack_from(f"<{count}I", body, start + _IDS.size):
        entries.append(body[offset : offset + length])
        offset += length
    if offset > len(body):
        raise RecordFormatError(f"run at {start} ends at {offset} of {len(body)} bytes")
    return EntryRecord(Run(ledger, EntryId(first), entries, EntryId(lac), offset - begin)), offset
