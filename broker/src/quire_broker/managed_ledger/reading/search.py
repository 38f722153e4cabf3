"""Binary search over the entries of a managed ledger, for seek by time. Reads one entry per step."""

from collections.abc import Callable

from quire_bookie.model import Buffer
from quire_broker.managed_ledger.nodes.ledger_list import LedgerList
from quire_broker.managed_ledger.position import Position
from quire_broker.managed_ledger.reading.reader import EntryReader


async def find_first(ledgers: LedgerList, reader: EntryReader, predicate: Callable[[Buffer], bool]) -> Position | None:
    """Return the first entry for which `predicate` holds, or None. It must hold for every later entry too.

    Searches the entries that exist at the beginning. For entries that are trimmed meanwhile it counts as false.
    """
    spans = [(record.ledger_id, record.entries) for record in ledgers.counted() if record.entries]
    low, high = 0, sum(entries for _, entries in spans)
    end = high
    while low < high:
        middle = (low + high) // 2
        position = _nth(spans, middle)
        found = await reader.read(position, 1)
        if found and found[0].position == position and predicate(found[0].data):
            high = middle
        else:
            low = middle + 1
    return None if low == end else _nth(spans, low)


def _nth(spans: list[tuple[int, int]], index: int) -> Position:
    for ledger_id, entries in spans:
        if index < entries:
            return Position(ledger_id, index)
        index -= entries
    raise IndexError(index)
