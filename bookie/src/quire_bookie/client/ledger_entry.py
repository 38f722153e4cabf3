"""One entry as a reader gets it, and entries as bookies store them. Values, nothing else."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from quire_bookie.model import Buffer, EntryId, LedgerId
from quire_bookie.wire.packed_entries import stored_bytes


@dataclass(slots=True)
class LedgerEntry:
    """An entry whose digest was right. `payload` may be a view that keeps a larger network buffer alive.

    `lac`: the writer's last add confirmed when it sent the entry. `length`: payload bytes of the ledger up to and
    with this entry.
    """

    ledger_id: LedgerId
    entry_id: EntryId
    lac: EntryId
    length: int
    payload: memoryview

    def __bytes__(self) -> bytes:
        """The payload, copied."""
        return bytes(self.payload)


class StoredRun(NamedTuple):
    """Consecutive entries, at least one, as a bookie stores them: header, digest, payload. Their digests were right."""

    first: EntryId
    entries: Sequence[Buffer]
    payload_bytes: int
    """Of all together."""

    @property
    def end(self) -> int:
        """The entry after the last."""
        return self.first + len(self.entries)

    @property
    def head_bytes(self) -> int:
        """What is in front of each payload: header and digest."""
        return (stored_bytes(self.entries) - self.payload_bytes) // len(self.entries)
