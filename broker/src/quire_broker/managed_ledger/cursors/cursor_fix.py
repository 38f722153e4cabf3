"""Aligns a loaded cursor state with the ledgers that exist. Pure.

Empty and trimmed ledgers leave the list, so a stored position may name a ledger that no longer exists. Ranges stored
by another broker version may cover entries that do not exist. Never moves a mark-delete position over an existing
entry that was not acknowledged, nor beyond the last confirmed entry.
"""

from quire_broker.managed_ledger.cursors.ack_ranges import AckRanges
from quire_broker.managed_ledger.cursors.cursor_state import CursorState
from quire_broker.managed_ledger.nodes.ledger_list import LedgerList
from quire_broker.managed_ledger.position import Position


def aligned(state: CursorState, ledgers: LedgerList) -> CursorState:
    """Return the same acknowledgments, expressed in existing ledgers and entries."""
    mark = _aligned_mark(state.mark_delete, ledgers)
    ranges = state.ranges.copy()
    for ledger_id in ranges.ledgers():
        ranges.keep_below(ledger_id, ledgers.entries_in(ledger_id))
    ranges.drop_through(mark.ledger_id, mark.entry_id)
    mark = advanced(mark, ranges, ledgers)
    batches = {
        position: mask
        for position, mask in state.batches.items()
        if position > mark and ledgers.holds(position) and position not in ranges and mask
    }
    return CursorState(mark, ranges, batches, dict(state.properties))


def advanced(mark: Position, ranges: AckRanges, ledgers: LedgerList) -> Position:
    """Return the mark-delete position moved over every adjoining range, never over a gap. Drops those ranges."""
    if not ranges:
        return mark
    moved = mark
    while True:
        following = ledgers.next_position(moved)
        end = ranges.end_of(following.ledger_id, following.entry_id)
        if end is None:
            break
        moved = Position(following.ledger_id, end)
    if moved != mark:
        ranges.drop_through(moved.ledger_id, moved.entry_id)
    return moved


def _aligned_mark(mark: Position, ledgers: LedgerList) -> Position:
    if mark > ledgers.last_confirmed:
        return ledgers.last_confirmed
    if ledgers.holds(mark) or mark.ledger_id in ledgers.ids:
        return mark
    following = ledgers.at_or_after(mark)
    if following > ledgers.last_confirmed:
        return ledgers.last_confirmed
    return Position(following.ledger_id, following.entry_id - 1)
