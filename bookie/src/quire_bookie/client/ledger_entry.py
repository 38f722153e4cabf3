"""One entry as a reader gets it. A value, nothing else."""

from dataclasses import dataclass

from quire_bookie.model import EntryId, LedgerId


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
