"""Ids and frozen value types of the ledger store. No behaviour beyond what follows from the values.

Source of the terms: BookKeeper's protocol (ensemble E, write quorum Qw, ack quorum Qa, last add confirmed LAC).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from struct import unpack_from
from typing import NewType, TypeAlias

LedgerId = NewType("LedgerId", int)
EntryId = NewType("EntryId", int)
BookieId = NewType("BookieId", str)

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Bytes that the holder must not change. A memoryview may pin a larger buffer: account for that."""

NO_ENTRY = EntryId(-1)
"""LAC and last entry of a ledger in which nothing is confirmed; as a read id, *the last entry held*."""

MASTER_KEY_BYTES = 20
LEDGER_TOKEN = "quire/token"
"""Key of the custom metadata under which the creator of a ledger names it, beside its id. Stock clients keep it."""
LEDGER_TOKEN_BYTES_MAX = 64
"""Ours have 16: the state of a ledger at a bookie keeps one."""
ENTRY_HEADER_BYTES = 32
"""ledger id, entry id, LAC, accumulated length: 8 bytes each, before the digest."""


RUN_RECORD_BYTES = 32
"""Of the journal record of a run, before the lengths of its entries, 4 bytes each, and the entries."""


class DigestType(IntEnum):
    """How an entry is protected end to end. Values are those of the ledger metadata format."""

    CRC32 = 1
    HMAC = 2
    CRC32C = 3
    DUMMY = 4


class LedgerState(IntEnum):
    """State in the ledger metadata. Values are those of the ledger metadata format."""

    OPEN = 1
    IN_RECOVERY = 2
    CLOSED = 3


@dataclass(frozen=True, slots=True)
class Segment:
    """The ensemble that owns the entries from `first_entry` to the next segment (or the end)."""

    first_entry: EntryId
    ensemble: tuple[BookieId, ...]


@dataclass(frozen=True, slots=True)
class LedgerMetadata:
    """One ledger as the metadata store knows it. `last_entry` and `length` count only once CLOSED."""

    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    segments: tuple[Segment, ...]
    state: LedgerState = LedgerState.OPEN
    last_entry: EntryId = NO_ENTRY
    length: int = 0
    digest_type: DigestType = DigestType.CRC32C
    password: bytes = field(default=b"", repr=False)
    custom: Mapping[str, bytes] = field(default_factory=dict)
    ctime_ms: int | None = None
    c_token: int | None = 0
    format_version: int = 3
    has_password: bool = True
    """False: the stored form names neither digest type nor password; both are the opener's to know."""

    @property
    def token(self) -> bytes:
        """Which of the ledgers that ever had this id it is, as its creator named it; empty: its creator named none."""
        token = self.custom.get(LEDGER_TOKEN, b"")
        return token if len(token) <= LEDGER_TOKEN_BYTES_MAX else b""

    def is_another_than(self, other: "LedgerMetadata") -> bool:
        """Whether the tokens of their creators say that an id was given to two ledgers.

        No `c_token` says nothing: BookKeeper's own client drops it with each update. It keeps custom metadata.
        """
        if self.token != other.token:
            return True
        return bool(self.c_token and other.c_token) and self.c_token != other.c_token

    def ensemble_of(self, entry: EntryId) -> tuple[BookieId, ...]:
        """The ensemble of the segment that owns `entry` (largest first_entry not above it)."""
        owner = self.segments[0]
        for segment in self.segments:
            if segment.first_entry > entry:
                break
            owner = segment
        return owner.ensemble


@dataclass(frozen=True, slots=True)
class IdCounters:
    """What the metadata said of ledger ids: the epoch, and the highest id that each counter had given out; -1: none.

    Within one epoch no counter falls.
    """

    epoch: int = 0
    short: int = -1
    long: int = -1

    def behind(self, seen: "IdCounters") -> str | None:
        """Why metadata that say this are older than some that said `seen`; None when they need not be."""
        if self.epoch < seen.epoch:
            return f"its epoch is {self.epoch} and was {seen.epoch}"
        if self.epoch > seen.epoch:
            return None
        if self.short < seen.short:
            return f"its counter of ledger ids is at {self.short} and was at {seen.short}"
        if self.long < seen.long:
            return f"its counter of long ledger ids is at {self.long} and was at {seen.long}"
        return None

    def highest(self, other: "IdCounters") -> "IdCounters":
        """Return the later knowledge of two readings: the one with the later epoch, or the higher counters."""
        if self.epoch != other.epoch:
            return self if self.epoch > other.epoch else other
        return IdCounters(self.epoch, max(self.short, other.short), max(self.long, other.long))


@dataclass(frozen=True, slots=True)
class IdReport:
    """What one bookie says of ledger ids. `short` and `long`: the highest ever held or deleted there; -1: none."""

    short: LedgerId
    long: LedgerId
    seen: IdCounters
    """The highest counters of the latest epoch that it read."""
    ledger_known: bool | None = None
    """Whether it holds or deleted the ledger that was asked about; None: no ledger was."""


@dataclass(slots=True)
class Run:
    """Consecutive entries of one ledger that arrived in one buffer: the unit that stages hand on.

    `entries[i]` is the complete stored entry (header, digest, payload) of id `first + i`. `lac` is the
    highest LAC carried by their headers. The buffers may be views into one socket read.
    """

    ledger: LedgerId
    first: EntryId
    entries: Sequence[Buffer]
    lac: EntryId
    size_bytes: int


RunRow: TypeAlias = tuple[LedgerId, EntryId, int, EntryId, bytes, int, int]
"""One run of a `RunBatch`: ledger, first entry, count, highest LAC, master key, and from where to where its journal
record stands in the records of its piece."""
RunPiece: TypeAlias = tuple[bytes, list[RunRow]]
"""Journal records of runs one behind the other (`journal.records`), and the runs. Rows may be fewer than records."""


@dataclass(slots=True)
class RunBatch:
    """Runs of any ledgers that arrived in one turn of the loop, a piece for each buffer, to be handed on together: with
    thousands of ledgers in turns most runs have one entry, and what is done per run is what adds cost.
    """

    pieces: list[RunPiece]
    entries: int
    """Of all rows."""
    size_bytes: int
    """Of these entries."""

    def parts(self) -> list[Buffer]:
        """The records of the rows: one part a piece, unless rows were taken out."""
        parts: list[Buffer] = []
        for records, rows in self.pieces:
            if sum([row[6] - row[5] for row in rows]) == len(records):
                parts.append(records)
            else:
                view = memoryview(records)
                parts += [view[row[5] : row[6]] for row in rows]
        return parts

    def rows(self) -> list[RunRow]:
        """Those of all pieces."""
        return [row for _records, rows in self.pieces for row in rows]

    def runs(self) -> list[Run]:
        """Those of all rows, by themselves."""
        return [run_of(records, row) for records, rows in self.pieces for row in rows]

    def only(self, wanted: Callable[[RunRow], bool]) -> "RunBatch":
        """A batch of some of the rows, in as many pieces as there are here."""
        pieces = [(records, [row for row in rows if wanted(row)]) for records, rows in self.pieces]
        return RunBatch(
            pieces,
            sum(row[2] for _records, rows in pieces for row in rows),
            sum(row_bytes(row) for _records, rows in pieces for row in rows),
        )


def run_of(records: bytes, row: RunRow) -> Run:
    """A row by itself, with copies of its entries."""
    ledger, first, count, lac, _key, start, _end = row
    body = start + RUN_RECORD_BYTES + 4 * count
    entries: list[Buffer] = []
    for length in unpack_from(f"<{count}I", records, start + RUN_RECORD_BYTES):
        entries.append(records[body : body + length])
        body += length
    return Run(ledger, first, entries, lac, row_bytes(row))


def row_bytes(row: RunRow) -> int:
    """The bytes of a row's entries."""
    return row[6] - row[5] - RUN_RECORD_BYTES - 4 * row[2]
