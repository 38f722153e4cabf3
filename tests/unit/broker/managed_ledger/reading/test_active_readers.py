"""Positions of active cursors, compared with the entries of a list of ledgers."""

import asyncio
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from quire_broker.managed_ledger.nodes.ledger_list import LedgerList, LedgerRecord
from quire_broker.managed_ledger.position import Position
from quire_broker.managed_ledger.reading.active_readers import ActiveReaders
from tests.sim.loop import simulate

_SIZES = ((3, 10), (5, 4), (9, 20))
_PLACES = [Position(ledger, entry) for ledger, entries in _SIZES for entry in range(entries)]


@dataclass
class PlacedCursor:
    read_position: Position
    active: bool = True


def _list() -> LedgerList:
    return LedgerList([LedgerRecord(ledger, entries, entries, 1) for ledger, entries in _SIZES])


@given(
    st.lists(st.tuples(st.integers(0, len(_PLACES) - 1), st.booleans()), max_size=20),
    st.sampled_from(_SIZES),
    st.integers(0, 19),
    st.integers(0, 5),
    st.integers(0, 40),
)
def test_it_counts_the_active_cursors_that_are_few_entries_before(
    cursors: list[tuple[int, bool]], ledger: tuple[int, int], first: int, more: int, entries_max: int
) -> None:
    ledger_id, entries = ledger
    first = min(first, entries - 1)
    last = min(first + more, entries - 1)
    start, end = _PLACES.index(Position(ledger_id, first)), _PLACES.index(Position(ledger_id, last))
    expected = sum(active and place <= end and start - place <= entries_max for place, active in cursors)

    async def scenario() -> None:
        readers = ActiveReaders(_list())
        placed = [PlacedCursor(_PLACES[place], active) for place, active in cursors]
        readers.follow(lambda: placed)
        assert readers.count(ledger_id, first, last, entries_max, 100) == expected
        assert readers.count(ledger_id, first, last, entries_max, 2) == min(2, expected)
        assert readers.reads_soon(ledger_id, first, last, entries_max) is (expected > 0)

    simulate(lambda _: scenario(), seed=1)


def test_the_positions_of_many_cursors_are_sorted_again_after_a_while() -> None:
    async def scenario() -> None:
        readers = ActiveReaders(_list())
        placed = [PlacedCursor(Position(9, 0)) for _ in range(100)]
        readers.follow(lambda: placed)
        assert readers.count(9, 0, 0, 0, 1000) == 100
        for cursor in placed:
            cursor.read_position = Position(9, 5)
        assert readers.count(9, 0, 0, 0, 1000) == 100
        await asyncio.sleep(0.01)
        assert readers.count(9, 0, 0, 0, 1000) == 0

    simulate(lambda _: scenario(), seed=1)


def test_far_behind_counts_the_entries_that_follow() -> None:
    async def scenario() -> None:
        readers = ActiveReaders(_list())
        assert not readers.is_far_behind(9, 9, 10)
        assert readers.is_far_behind(9, 8, 10)
        assert readers.is_far_behind(3, 9, 23)
        assert not readers.is_far_behind(3, 9, 24)

    simulate(lambda _: scenario(), seed=1)
