"""How many bytes lie behind a position, and the position behind which only so many lie. Pure.

Sizes are known by ledger: within one, entries count with their mean size, as in the stock system.
"""

from collections.abc import Sequence

from quire_broker.managed_ledger.ledger_list import LedgerRecord
from quire_broker.managed_ledger.position import Position


def bytes_after(ledgers: Sequence[LedgerRecord], position: Position) -> int:
    """Bytes of the entries after `position`, estimated. `ledgers`: oldest first, with counts."""
    total = 0
    for ledger in ledgers:
        if ledger.ledger_id < position.ledger_id or not ledger.entries:
            continue
        passed = position.entry_id + 1 if ledger.ledger_id == position.ledger_id else 0
        left = ledger.entries - min(max(passed, 0), ledger.entries)
        total += ledger.size_bytes * left // ledger.entries
    return total


def end_of_excess(ledgers: Sequence[LedgerRecord], bytes_max: int) -> Position | None:
    """The first position with at most `bytes_max` after it; None when the entries are not more than that in all."""
    room = bytes_max
    for ledger in reversed(ledgers):
        if ledger.size_bytes <= room:
            room -= ledger.size_bytes
            continue
        kept = room * ledger.entries // ledger.size_bytes
        return Position(ledger.ledger_id, ledger.entries - kept - 1)
    return None
