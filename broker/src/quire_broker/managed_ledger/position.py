"""Positions in a managed ledger and the entries at them. Values only."""

from dataclasses import field
from typing import NamedTuple

from quire_bookie.dataclass import dataclass
from quire_bookie.model import Buffer
from quire_broker.wire.entry import EntrySummary


class Position(NamedTuple):
    """The position of one entry, ordered by ledger, then entry. Entry -1 is before a ledger's first entry."""

    ledger_id: int
    entry_id: int

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.entry_id}"

    @property
    def following(self) -> "Position":
        """The next position of the same ledger, whether it has an entry there or not."""
        return Position(self.ledger_id, self.entry_id + 1)


EARLIEST = Position(-1, -1)
"""As a start position: the first entry that still exists."""

LATEST = Position(2**63 - 1, 2**63 - 1)
"""As a start position: entries appended from now on."""


@dataclass(slots=True)
class StoredEntry:
    """An entry as appended, or what compaction kept of it. `data` may be a view that pins a larger buffer."""

    position: Position
    data: Buffer
    live: tuple[int, ...] | None = None
    """Words whose set bits are the messages that compaction kept of a batch; None: all."""
    summary: EntrySummary | None = field(default=None, compare=False, repr=False)
    """Its metadata, once a dispatcher has read it: several subscriptions may get the same object."""
    messages: int = field(default=-1, compare=False, repr=False)
    """Its number of messages if its metadata have nothing else that dispatch looks at; 0: see `summary`; -1: unknown.

    See `quire_bookie.bulk.plain_deliveries.plain_heads`."""
    key: bytes | None = field(default=None, compare=False, repr=False)
    """What Key_Shared hashes of such an entry, if that was asked for."""
