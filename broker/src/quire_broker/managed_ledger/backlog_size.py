"""Estimates how many bytes follow a position, and after which position only a given number of bytes follows. Pure.

Sizes are known per ledger. Within a ledger each entry counts with the mean size, as in Pulsar.
"""

from collections.abc import Sequence

from quire_broker.managed_ledger.nodes.ledger_list import LedgerRecord
from quire_broker.managed_ledger.position import Position


def bytes_after(ledgers: Sequence[LedgerRecord], position: Position) -> int:
    """Return the estimated bytes of the entries after `position`. `ledgers`: oldest first, with counts."""
    total = 0
    for ledger in ledgers:
        if ledger.ledger_id < position.ledger_id or not ledger.entries:
            continue
        passed = position.entry_id + 1 if ledger.ledger_id == position.ledger_id else 0
        left = ledger.entries - min(max(passed, 0), ledger.entries)
        total += ledger.size_bytes * left // ledger.entries
    return total


def end_of_excess(ledgers: Sequence[LedgerRecord], bytes_max: int) -> Position | None:
    """Return the first position with at most `bytes_max` after it, or None if all entries together fit."""
    left = bytes_max
    for ledger in reversed(ledgers):
        if ledger.size_bytes <= left:
            left -= ledger.size_bytes
            continue
        kept = left * ledger.entries // ledger.size_bytes
        return Position(ledger.ledger_id, ledger.entries - kept - 1)
    return None
