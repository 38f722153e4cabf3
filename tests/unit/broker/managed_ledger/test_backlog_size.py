"""Bytes after a position, and the position after which a given number of bytes follows, tested against each other."""

from hypothesis import given
from hypothesis import strategies as st

from quire_broker.managed_ledger.backlog_size import bytes_after, end_of_excess
from quire_broker.managed_ledger.nodes.ledger_list import LedgerRecord
from quire_broker.managed_ledger.position import Position

LEDGERS = [LedgerRecord(3, 10, 1000, 1), LedgerRecord(5, 0, 0, 2), LedgerRecord(8, 4, 100, 0)]


def test_the_bytes_after_a_position_are_the_rest_of_its_ledger_and_all_later_ledgers() -> None:
    found = {position: bytes_after(LEDGERS, Position(*position)) for position in ((-1, -1), (3, -1), (3, 4), (3, 9))}
    assert found == {(-1, -1): 1100, (3, -1): 1100, (3, 4): 600, (3, 9): 100}
    assert [bytes_after(LEDGERS, Position(*position)) for position in ((4, 7), (8, 0), (8, 3), (8, 9), (9, 0))] == [
        *(100, 75, 0, 0, 0)
    ]


def test_the_excess_ends_where_the_rest_fits() -> None:
    assert end_of_excess(LEDGERS, 1100) is None
    assert end_of_excess(LEDGERS, 1099) == Position(3, 0)
    assert end_of_excess(LEDGERS, 600) == Position(3, 4)
    assert end_of_excess(LEDGERS, 100) == Position(3, 9)
    assert end_of_excess(LEDGERS, 0) == Position(8, 3)
    assert end_of_excess([], 0) is None


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(0, 10_000)), max_size=6),
    st.integers(0, 60_000),
)
def test_the_rest_fits_the_bound_and_one_entry_more_would_not(sizes: list[tuple[int, int]], bytes_max: int) -> None:
    ledgers = [LedgerRecord(number, *size) for number, size in enumerate(sizes)]
    end = end_of_excess(ledgers, bytes_max)
    total = sum(size for _, size in sizes)
    assert (end is None) == (total <= bytes_max)
    if end is not None:
        assert bytes_after(ledgers, end) <= bytes_max
        record = ledgers[end.ledger_id]
        one_more = Position(end.ledger_id, end.entry_id - 1)
        assert bytes_after(ledgers, one_more) + record.size_bytes / record.entries >= bytes_max
