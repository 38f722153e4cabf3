"""One entry as returned to a reader, and entries as bookies store them. Values only."""

from collections.abc import Sequence
from typing import NamedTuple

from quire_bookie.dataclass import dataclass
from quire_bookie.model import Buffer, EntryId, LedgerId
from quire_bookie.wire.packed_entries import stored_bytes


@dataclass(slots=True)
class LedgerEntry:
    """An entry whose digest matched. `payload` may be a view that keeps a larger network buffer alive.

    `lac`: the writer's last add confirmed when it sent the entry. `length`: payload bytes of the ledger up to and
    including this entry.
    """

    ledger_id: LedgerId
    entry_id: EntryId
    lac: EntryId
    length: int
    payload: memoryview

    def __bytes__(self) -> bytes:
        """Return a copy of the payload."""
        return bytes(self.payload)


class StoredRun(NamedTuple):
    """Consecutive entries, at least one, as a bookie stores them: header, digest, payload. Their digests matched."""

    first: EntryId
    entries: Sequence[Buffer]
    payload_bytes: int
    """Payload bytes of all entries together."""

    @property
    def end(self) -> int:
        """The entry after the last."""
        return self.first + len(self.entries)

    @property
    def head_bytes(self) -> int:
        """Bytes before each payload: header and digest."""
        return (stored_bytes(self.entries) - self.payload_bytes) // len(self.entries)
