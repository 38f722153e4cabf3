"""A closed ledger for tests of offloading, its entries generated from a seed."""

import random
from collections.abc import Sequence

from quire_bookie.client.ledger_entry import StoredRun
from quire_bookie.model import BookieId, Buffer, EntryId, LedgerId, LedgerMetadata, LedgerState, Segment
from quire_broker.offload.segment_reader import SegmentEntry

UUID = "0a1b2c3d-4e5f-4789-8abc-def012345678"


def closed_metadata(entries: int, length: int) -> LedgerMetadata:
    """Return metadata like those of a topic's closed ledger."""
    return LedgerMetadata(
        ensemble_size=3,
        write_quorum=2,
        ack_quorum=2,
        segments=(
            Segment(EntryId(0), (BookieId("b1:3181"), BookieId("b2:3181"), BookieId("b3:3181"))),
            Segment(EntryId(2), (BookieId("b1:3181"), BookieId("b4:3181"), BookieId("b3:3181"))),
        ),
        state=LedgerState.CLOSED,
        last_entry=EntryId(entries - 1),
        length=length,
        ctime_ms=1_700_000_000_000,
        custom={"component": b"managed-ledger"},
    )


class ClosedLedger:
    """Entries in memory, read in runs like a bookie's."""

    def __init__(self, payloads: Sequence[bytes], ledger_id: int = 7, length: int | None = None) -> None:
        self.payloads = list(payloads)
        self.ledger_id = LedgerId(ledger_id)
        self.stored_reads = 0
        self.metadata = closed_metadata(len(self.payloads), sum(map(len, self.payloads)) if length is None else length)

    @classmethod
    def random(cls, seed: int, entries: int, size_max: int) -> "ClosedLedger":
        """Return a ledger with entries of 0 to `size_max` bytes."""
        chance = random.Random(seed)
        return cls([chance.randbytes(chance.randint(0, size_max)) for _ in range(entries)])

    async def read_stored(self, first: EntryId, last: EntryId, bytes_max: int) -> StoredRun | None:
        """Return entries in one piece, with heads; None at every other call."""
        self.stored_reads += 1
        if self.stored_reads % 2:
            return None
        found = await self.read(first, last, bytes_max)
        stored: list[Buffer] = [memoryview(b"h" * 32 + bytes(entry.payload)) for entry in found]
        return StoredRun(first, stored, sum(len(entry.payload) for entry in found))

    async def read(self, first: EntryId, last: EntryId, bytes_max: int | None = None) -> list[SegmentEntry]:
        """Return entries, at least one."""
        found: list[SegmentEntry] = []
        room = 1 << 60 if bytes_max is None else bytes_max
        for entry_id in range(first, last + 1):
            room -= len(self.payloads[entry_id])
            if room < 0 and found:
                break
            found.append(SegmentEntry(EntryId(entry_id), self.payloads[entry_id]))
        return found
