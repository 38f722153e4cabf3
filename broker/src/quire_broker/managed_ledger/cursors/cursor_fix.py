"""Relates a cursor's state to the ledgers that exist: aligns a loaded one, chooses the next entries to read. Pure.

Empty and trimmed ledgers leave the list, so a stored position may name a ledger that no longer exists. Ranges stored
by another broker version may cover entries that do not exist. Never moves a mark-delete position over an existing
entry that was not acknowledged, nor beyond the last confirmed entry.
"""

from collections.abc import Sequence

from quire_broker.managed_ledger.cursors.ack_ranges import AckRanges
from quire_broker.managed_ledger.cursors.cursor_state import CursorState
from quire_broker.managed_ledger.nodes.ledger_list import LedgerList
from quire_broker.managed_ledger.position import Position

_BRIDGED_ENTRIES_MAX = 16
"""Acknowledged entries in a row that are read and dropped: a read of its own for what follows costs more."""


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


def next_span(
    ledgers: LedgerList, unwanted: Sequence[AckRanges], start: Position, entries_max: int
) -> tuple[Position, int] | None:
    """Return the first entry from `start` on that no set of `unwanted` has, and how many entries to read from there.

    At most `entries_max` of them are wanted. Short unwanted ranges are read, too, and dropped. None at the tail.
    """
    position = ledgers.at_or_after(start)
    while position <= ledgers.last_confirmed:
        ledger_id, entry_id = position
        end = next((end for each in unwanted if (end := each.end_of(ledger_id, entry_id)) is not None), None)
        if end is None:
            if not unwanted:
                return position, entries_max
            last = min(each.span(ledger_id, entry_id, entries_max, _BRIDGED_ENTRIES_MAX) for each in unwanted)
            last = min(last, ledgers.entries_in(ledger_id) - 1)
            return position, last - entry_id + 1
        position = ledgers.next_position(Position(ledger_id, end))
    return None
