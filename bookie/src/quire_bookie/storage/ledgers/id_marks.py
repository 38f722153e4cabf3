"""Marks of ids that never decrease: the highest ledger id ever held here, and the highest epoch and id counters that
this bookie ever read from the metadata.

Owns their record. If the metadata is restored to an older copy, these marks reveal it: see `client.fresh_ids` and
`server.upkeep.metadata_doubt`. Each id space, below 2^31 and above, has its own mark of ledger ids.

The highest id is kept in memory; at a start it is the highest of four sources: this record, the states in the index,
the file of the highest ledgers beside the entry logs, and the journal, whose replay creates ledgers. An add therefore
needs no write for it. The record only needs to cover ids that disappear from the other sources: it is written after a
ledger was deleted, and before its tombstone expires.

The record is stored in the index and in its own file beside the entry logs, so that a rebuild of the index keeps it.
The file is written first; the copy with the higher number is valid.

    record   0  crc32c u32 over bytes 4..   4  version u8 = 1   5  number u64: of this record   13  highest short id i64
            21  highest long id i64   29  epoch u64   37  short counter i64   45  long counter i64
            (little-endian; -1: none)
"""

import logging
import struct
from collections.abc import Callable, Iterable
from dataclasses import field, replace
from typing import Final

from quire_bookie.crc import crc32c
from quire_bookie.dataclass import dataclass
from quire_bookie.env.disk import Disk
from quire_bookie.env.index_store import IndexStore
from quire_bookie.errors import DamagedError
from quire_bookie.model import IdCounters, LedgerId
from quire_bookie.storage.formats.index_keys import ID_MARKS_KEY
from quire_bookie.storage.index.index_commits import IndexCommits
from quire_bookie.storage.ledgers.limbo import LONG_IDS_START, NO_LEDGER

ID_MARKS_NAME: Final = "ids.record"
ID_MARKS_VERSION: Final = 1
_CRC = struct.Struct("<I")
_RECORD = struct.Struct("<BQqqQqq")

_log = logging.getLogger("quire.storage.id_marks")


@dataclass(frozen=True, slots=True)
class IdRecord:
    """The stored marks. `number` 0: never written."""

    number: int = 0
    short: LedgerId = NO_LEDGER
    long: LedgerId = NO_LEDGER
    seen: IdCounters = field(default_factory=IdCounters)


def encode_id_record(record: IdRecord) -> bytes:
    """Encode the index value, which is also the content of the file."""
    seen = record.seen
    rest = _RECORD.pack(ID_MARKS_VERSION, record.number, record.short, record.long, seen.epoch, seen.short, seen.long)
    return _CRC.pack(crc32c(rest)) + rest


def decode_id_record(value: bytes, path: str) -> IdRecord:
    """Check and decode a record. DamagedError if it is damaged."""
    if len(value) != _CRC.size + _RECORD.size or crc32c(value[4:]) != _CRC.unpack_from(value)[0]:
        raise DamagedError(path, 0, "the record of ledger ids does not match its checksum")
    version, number, short, long, epoch, short_counter, long_counter = _RECORD.unpack_from(value, _CRC.size)
    if version != ID_MARKS_VERSION:
        raise DamagedError(path, 0, f"version {version} of the record of ledger ids is not supported")
    return IdRecord(number, LedgerId(short), LedgerId(long), IdCounters(epoch, short_counter, long_counter))


class IdMarks:
    """Tracks the marks of one storage. The caller of async methods holds the write lock."""

    def __init__(self, disk: Disk, directory: str, commits: IndexCommits, record: IdRecord) -> None:
        self._disk = disk
        self._path = f"{directory}/{ID_MARKS_NAME}"
        self._commits = commits
        self._record = record
        self.short, self.long = record.short, record.long
        self.on_above_counter: Callable[[], None] | None = None
        """Called for a ledger whose id is above the counters that were read last."""
        self.note(commits.highest_ledgers)

    @classmethod
    async def load(cls, disk: Disk, index: IndexStore, directory: str, commits: IndexCommits) -> "IdMarks":
        """Load the newer of the two copies at a start, and update the other. DamagedError."""
        value = await index.get(ID_MARKS_KEY)
        indexed = None if value is None else decode_id_record(value, "index")
        path = f"{directory}/{ID_MARKS_NAME}"
        filed: IdRecord | None = None
        if await disk.exists(path):
            try:
                filed = decode_id_record(await disk.read_file(path), path)
            except DamagedError as error:
                if indexed is None:
                    raise
                _log.warning("using the copy of the record in the index: %s", error)
        record = max(filter(None, (indexed, filed)), key=lambda each: each.number, default=IdRecord())
        marks = cls(disk, directory, commits, record)
        if record.number and (filed != record or indexed != record):
            await marks._store(record)
        return marks

    @property
    def seen(self) -> IdCounters:
        """The highest counters of the highest epoch that were ever read, durably."""
        return self._record.seen

    def note(self, ledgers: Iterable[LedgerId]) -> None:
        """Record ledgers that are or were held here."""
        seen = self._record.seen
        for ledger in ledgers:
            if ledger >= LONG_IDS_START:
                self.long = max(self.long, ledger)
                above = ledger > seen.long
            else:
                self.short = max(self.short, ledger)
                above = ledger > seen.short
            if above and ledger >= 0 and self.on_above_counter is not None:
                self.on_above_counter()

    async def cover(self) -> None:
        """Store the current marks durably, so that no start finds lower ones. DiskFullError: nothing changed."""
        if (self._record.short, self._record.long) != (self.short, self.long):
            await self._store(self._next(self._record.seen))

    async def keep_seen(self, seen: IdCounters) -> None:
        """Store counters that were read, durably. DiskFullError: nothing changed."""
        if seen != self._record.seen:
            await self._store(self._next(seen))

    def _next(self, seen: IdCounters) -> IdRecord:
        return replace(self._record, number=self._record.number + 1, short=self.short, long=self.long, seen=seen)

    async def _store(self, record: IdRecord) -> None:
        assert record.short >= self._record.short and record.long >= self._record.long, "marks never decrease"
        value = encode_id_record(record)
        await self._disk.replace_file(self._path, value)
        await self._commits.commit([(ID_MARKS_KEY, value)])
        self._record = record
