"""Positions in a managed ledger and the entries found there. Values only."""

from dataclasses import dataclass
from typing import NamedTuple

from quire_bookie.model import Buffer


class Position(NamedTuple):
    """One entry's place, ordered by ledger, then entry. Entry -1 is the place before a ledger's first entry."""

    ledger_id: int
    entry_id: int


EARLIEST = Position(-1, -1)
"""As a start: the first entry that is still there."""

LATEST = Position(2**63 - 1, 2**63 - 1)
"""As a start: what is appended from now on."""


@dataclass(slots=True)
class StoredEntry:
    """An entry as it was appended. `data` may be a view that pins a larger buffer."""

    position: Position
    data: Buffer
