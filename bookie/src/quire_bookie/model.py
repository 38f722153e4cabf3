"""Ids and frozen value types of the ledger store. No behaviour beyond what follows from the values.

Source of the terms: BookKeeper's protocol (ensemble E, write quorum Qw, ack quorum Qa, last add confirmed LAC).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NewType, TypeAlias

LedgerId = NewType("LedgerId", int)
EntryId = NewType("EntryId", int)
BookieId = NewType("BookieId", str)

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Bytes that the holder must not change. A memoryview may pin a larger buffer: account for that."""

NO_ENTRY = EntryId(-1)
"""LAC and last entry of a ledger in which nothing is confirmed; as a read id, *the last entry held*."""

MASTER_KEY_BYTES = 20
ENTRY_HEADER_BYTES = 32
"""ledger id, entry id, LAC, accumulated length: 8 bytes each, before the digest."""


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
    password: bytes = b""
    custom: Mapping[str, bytes] = field(default_factory=dict)
    ctime_ms: int | None = None
    c_token: int | None = 0
    format_version: int = 3
    has_password: bool = True
    """False: the stored form names neither digest type nor password; both are the opener's to know."""

    def ensemble_of(self, entry: EntryId) -> tuple[BookieId, ...]:
        """The ensemble of the segment that owns `entry` (largest first_entry not above it)."""
        owner = self.segments[0]
        for segment in self.segments:
            if segment.first_entry > entry:
                break
            owner = segment
        return owner.ensemble


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
