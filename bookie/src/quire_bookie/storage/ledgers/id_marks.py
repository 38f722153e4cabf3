"""Marks of ids that never go back: the highest ledger id ever held here, and the highest counters and epoch ever read.

Owns the record of them. Metadata can be put back to an older copy; these marks then show it: see
`server.metadata_doubt` and `client.fresh_ids`. There is one mark of ledger ids for each id space, below 2^31 and above.

The highest id is kept in memory and is the highest of four sources at a start: this record, the states in the index,
the proof beside the entry logs, and the journal, whose replay creates ledgers. So an add needs no write for it. The
record must only cover what leaves those sources: it is written after a ledger was deleted, and before its tombstone is
forgotten.

The record is in the index and, beside the entry logs, in a file of its own, so that a rebuild of the index keeps it.
The file is written first; the one with the higher number counts.

    record   0  crc32c u32 over bytes 4..   4  version u8 = 1   5  number u64: of this record   13  highest short id i64
            21  highest long id i64   29  epoch u64   37  short counter i64   45  long counter i64
            (little-endian; -1: none)
"""

import logging
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from quire_bookie.crc import crc32c
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
    """The record. `number` 0: never written."""

    number: int = 0
    short: LedgerId = NO_LEDGER
    long: LedgerId = NO_LEDGER
    seen: IdCounters = field(default_factory=IdCounters)


def encode_id_record(record: IdRecord) -> bytes:
    """Value and file content."""
    seen = record.seen
    rest = _RECORD.pack(ID_MARKS_VERSION, record.number, record.short, record.long, seen.epoch, seen.short, seen.long)
    return _CRC.pack(crc32c(rest)) + rest


def decode_id_record(value: bytes, path: str) -> IdRecord:
    """Check and read a record; DamagedError when it is not intact."""
    if len(value) != _CRC.size + _RECORD.size or crc32c(value[4:]) != _CRC.unpack_from(value)[0]:
        raise DamagedError(path, 0, "the record of ledger ids does not match its checksum")
    version, number, short, long, epoch, short_counter, long_counter = _RECORD.unpack_from(value, _CRC.size)
    if version != ID_MARKS_VERSION:
        raise DamagedError(path, 0, f"version {version} of the record of ledger ids is not known here")
    return IdRecord(number, LedgerId(short), LedgerId(long), IdCounters(epoch, short_counter, long_counter))


class IdMarks:
    """The marks of one storage. The async methods are for the holder of the write lock."""

    def __init__(self, disk: Disk, directory: str, commits: IndexCommits, record: IdRecord) -> None:
        self._disk = disk
        self._path = f"{directory}/{ID_MARKS_NAME}"
        self._commits = commits
        self._record = record
        self.short, self.long = record.short, record.long
        self.on_above_counter: Callable[[], None] | None = None
        """Called when a ledger comes whose id is above the counters that were read last."""
        self.note(commits.highest_ledgers)

    @classmethod
    async def load(cls, disk: Disk, index: IndexStore, directory: str, commits: IndexCommits) -> "IdMarks":
        """What holds at a start: the newer of the two copies; the other is brought up to it. DamagedError."""
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
                _log.warning("the index still knows what it says: %s", error)
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
        """These ledgers are held here, or were."""
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
        """Durably: no start finds a lower mark than there is now. DiskFullError: nothing was changed."""
        if (self._record.short, self._record.long) != (self.short, self.long):
            await self._store(self._next(self._record.seen))

    async def keep_seen(self, seen: IdCounters) -> None:
        """Durably: these counters were read. DiskFullError: nothing was changed."""
        if seen != self._record.seen:
            await self._store(self._next(seen))

    def _next(self, seen: IdCounters) -> IdRecord:
        return replace(self._record, number=self._record.number + 1, short=self.short, long=self.long, seen=seen)

    async def _store(self, record: IdRecord) -> None:
        value = encode_id_record(record)
        await self._disk.replace_file(self._path, value)
        await self._commits.commit([(ID_MARKS_KEY, value)])
        self._record = record
