"""Ids and value types of the ledger store. Their methods only derive values.

The terms are those of BookKeeper's protocol (ensemble E, write quorum Qw, ack quorum Qa, last add confirmed LAC).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from enum import Enum, IntEnum
from struct import unpack_from
from typing import NewType, TypeAlias

from quire_bookie.dataclass import dataclass

LedgerId = NewType("LedgerId", int)
EntryId = NewType("EntryId", int)
BookieId = NewType("BookieId", str)

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Bytes that the receiver must not change. A memoryview may keep a larger buffer alive: account for that."""

new_tuple = tuple.__new__
"""Makes a NamedTuple of a class and all its fields, at half the cost of calling the class: for one made per message."""

NO_ENTRY = EntryId(-1)
"""LAC and last entry of a ledger without confirmed entries. As the id of a read: the last entry that the bookie has."""

MASTER_KEY_BYTES = 20
LEDGER_TOKEN = "quire/token"
"""Key of the creator's token in the custom metadata; identifies a ledger beside its id. Stock clients keep it."""
LEDGER_TOKEN_BYTES_MAX = 64
"""Quire's tokens have 16 bytes. Bounded, because a bookie stores one token with the state of each ledger."""
ENTRY_HEADER_BYTES = 32
"""Ledger id, entry id, LAC and accumulated length, 8 bytes each, before the digest."""


RUN_RECORD_BYTES = 32
"""Header of the journal record of a run. The lengths of its entries, 4 bytes each, and the entries follow."""


class ReplicaState(Enum):
    """How far a bookie is with an entry that its quorum has just stored."""

    STORED = "stored"
    """It stored the entry before the bookie that completed the quorum."""
    LAST = "last"
    """It completed the quorum."""
    WAITING = "waiting"
    """It has not answered yet."""
    LOST = "lost"
    """It was given up."""


class DigestType(IntEnum):
    """The end-to-end digest of an entry. Values are those of the ledger metadata format."""

    CRC32 = 1
    HMAC = 2
    CRC32C = 3
    DUMMY = 4


class LedgerState(IntEnum):
    """The state of a ledger. Values are those of the ledger metadata format."""

    OPEN = 1
    IN_RECOVERY = 2
    CLOSED = 3


@dataclass(frozen=True, slots=True)
class Segment:
    """The ensemble of the entries from `first_entry` up to the next segment or the end of the ledger."""

    first_entry: EntryId
    ensemble: tuple[BookieId, ...]


@dataclass(frozen=True, slots=True)
class LedgerMetadata:
    """The metadata of one ledger. `last_entry` and `length` are valid only when the ledger is CLOSED."""

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
    """False: the stored form has neither digest type nor password; the caller that opens the ledger supplies both."""

    @property
    def token(self) -> bytes:
        """The creator's token, which tells apart ledgers that had the same id; empty if the creator set none."""
        token = self.custom.get(LEDGER_TOKEN, b"")
        return token if len(token) <= LEDGER_TOKEN_BYTES_MAX else b""

    def is_another_than(self, other: "LedgerMetadata") -> bool:
        """Return whether the creators' tokens show that these are two ledgers with the same id.

        A missing `c_token` proves nothing: BookKeeper's client drops it with each update. It keeps custom metadata.
        """
        if self.token != other.token:
            return True
        return bool(self.c_token and other.c_token) and self.c_token != other.c_token

    def ensemble_of(self, entry: EntryId) -> tuple[BookieId, ...]:
        """Return the ensemble of the segment of `entry`: the one with the largest `first_entry` not above it."""
        owner = self.segments[0]
        for segment in self.segments:
            if segment.first_entry > entry:
                break
            owner = segment
        return owner.ensemble


@dataclass(frozen=True, slots=True)
class IdCounters:
    """The epoch of the metadata and the highest id that each counter of ledger ids had given out; -1 if none.

    Within one epoch no counter decreases.
    """

    epoch: int = 0
    short: int = -1
    long: int = -1

    def behind(self, seen: "IdCounters") -> str | None:
        """Return why metadata with these counters are older than metadata with `seen`, or None if they are not."""
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
        """Return the later of two readings: the one of the later epoch, or the higher counters of the same epoch."""
        if self.epoch != other.epoch:
            return self if self.epoch > other.epoch else other
        return IdCounters(self.epoch, max(self.short, other.short), max(self.long, other.long))


@dataclass(frozen=True, slots=True)
class IdReport:
    """A bookie's report on ledger ids. `short` and `long`: the highest that it ever held or deleted; -1 if none."""

    short: LedgerId
    long: LedgerId
    seen: IdCounters
    """The highest counters of the latest epoch that it read."""
    ledger_known: bool | None = None
    """Whether it holds or deleted the ledger named in the request; None if the request named none."""


@dataclass(slots=True)
class Run:
    """Consecutive entries of one ledger that arrived in one buffer: the unit that is passed from stage to stage.

    `entries[i]` is the complete stored entry (header, digest, payload) with id `first + i`. `lac` is the highest LAC
    in their headers. The buffers may be views into one socket read.
    """

    ledger: LedgerId
    first: EntryId
    entries: Sequence[Buffer]
    lac: EntryId
    size_bytes: int


RunRow: TypeAlias = tuple[LedgerId, EntryId, int, EntryId, bytes, int, int]
"""One run of a `RunBatch`: ledger, first entry, count, highest LAC, master key, and the start and end of its journal
record within the records of its piece."""
RunPiece: TypeAlias = tuple[bytes, list[RunRow]]
"""Concatenated journal records of runs (`journal.records`), and the runs. There may be fewer rows than records."""


@dataclass(slots=True)
class RunBatch:
    """Runs of any ledgers that arrived in one loop iteration, one piece for each buffer, passed on together.

    When thousands of ledgers are written in turn, most runs have one entry, and work per run dominates the cost.
    """

    pieces: list[RunPiece]
    entries: int
    """Number of entries of all rows."""
    size_bytes: int
    """Size of these entries."""

    def parts(self) -> list[Buffer]:
        """Return the records of the rows: one part for each piece, more for a piece from which rows were removed."""
        parts: list[Buffer] = []
        for records, rows in self.pieces:
            if sum([row[6] - row[5] for row in rows]) == len(records):
                parts.append(records)
            else:
                view = memoryview(records)
                parts += [view[row[5] : row[6]] for row in rows]
        return parts

    def rows(self) -> list[RunRow]:
        """Return the rows of all pieces."""
        return [row for _records, rows in self.pieces for row in rows]

    def runs(self) -> list[Run]:
        """Return all rows as separate runs."""
        return [run_of(records, row) for records, rows in self.pieces for row in rows]

    def only(self, wanted: Callable[[RunRow], bool]) -> "RunBatch":
        """Return a batch with only the wanted rows, in the same number of pieces."""
        pieces = [(records, [row for row in rows if wanted(row)]) for records, rows in self.pieces]
        return RunBatch(
            pieces,
            sum(row[2] for _records, rows in pieces for row in rows),
            sum(row_bytes(row) for _records, rows in pieces for row in rows),
        )


def run_of(records: bytes, row: RunRow) -> Run:
    """Return a row as a separate run, with copies of its entries."""
    ledger, first, count, lac, _key, start, _end = row
    body = start + RUN_RECORD_BYTES + 4 * count
    entries: list[Buffer] = []
    for length in unpack_from(f"<{count}I", records, start + RUN_RECORD_BYTES):
        entries.append(records[body : body + length])
        body += length
    return Run(ledger, first, entries, lac, row_bytes(row))


def row_bytes(row: RunRow) -> int:
    """Return the size of a row's entries."""
    return row[6] - row[5] - RUN_RECORD_BYTES - 4 * row[2]
