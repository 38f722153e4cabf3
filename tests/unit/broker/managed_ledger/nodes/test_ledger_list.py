"""Position arithmetic against a plain list of all existing positions."""

from hypothesis import given
from hypothesis import strategies as st

from quire_broker.managed_ledger.nodes.ledger_list import LedgerList, LedgerRecord
from quire_broker.managed_ledger.position import EARLIEST, LATEST, Position

_LISTS = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 4)), min_size=1, max_size=6)
_POSITION = st.tuples(st.integers(0, 20), st.integers(-1, 6)).map(lambda pair: Position(*pair))


def _build(steps: list[tuple[int, int]]) -> tuple[LedgerList, list[Position]]:
    """Ledgers with gaps between their ids; the last one is the tail."""
    ledger_id, records, existing = 0, [], []
    for gap, entries in steps:
        ledger_id += gap
        records.append(LedgerRecord(ledger_id, entries, entries * 10, 1))
        existing += [Position(ledger_id, entry) for entry in range(entries)]
    return LedgerList(records, steps[-1][1], steps[-1][1] * 10), existing


@given(_LISTS, _POSITION)
def test_next_and_previous_are_the_neighbours_that_exist(steps: list[tuple[int, int]], position: Position) -> None:
    ledgers, existing = _build(steps)
    after = [known for known in existing if known > position]
    before = [known for known in existing if known < position]
    following = ledgers.next_position(position)
    if after:
        assert following == after[0]
    else:
        assert following > ledgers.last_confirmed
        assert not ledgers.holds(following)
    if before:
        assert ledgers.previous_position(position) == before[-1]
    else:
        assert ledgers.previous_position(position).entry_id == -1
    assert ledgers.holds(position) == (position in existing)


@given(_LISTS, _POSITION)
def test_a_read_position_is_the_first_entry_not_before_it(steps: list[tuple[int, int]], position: Position) -> None:
    ledgers, existing = _build(steps)
    rest = [known for known in existing if known >= position]
    found = ledgers.at_or_after(position)
    assert found == rest[0] if rest else not ledgers.holds(found)


@given(_LISTS, _POSITION, _POSITION)
def test_counting_excludes_the_lower_and_includes_the_upper_end(
    steps: list[tuple[int, int]], after: Position, through: Position
) -> None:
    ledgers, existing = _build(steps)
    expected = len([known for known in existing if after < known <= through])
    assert ledgers.entries_between(after, through) == expected


@given(_LISTS)
def test_last_confirmed_is_the_newest_entry_or_the_position_before_the_first(steps: list[tuple[int, int]]) -> None:
    ledgers, existing = _build(steps)
    assert ledgers.last_confirmed == (existing[-1] if existing else Position(ledgers.ids[-1], -1))
    assert ledgers.entries == len(existing)
    assert ledgers.size_bytes == 10 * len(existing)
    assert ledgers.previous_position(LATEST) == existing[-1] if existing else True
    assert ledgers.at_or_after(EARLIEST) == (existing[0] if existing else Position(ledgers.ids[-1], 0))


def test_after_the_last_entry_of_a_closed_ledger_the_empty_tail_is_expected() -> None:
    ledgers = LedgerList([LedgerRecord(3, 10, 100, 1), LedgerRecord(7)], 0)
    assert ledgers.next_position(Position(3, 9)) == Position(7, 0)
    ledgers.confirm(0, 10)
    assert ledgers.last_confirmed == Position(7, 0)
    assert ledgers.next_position(Position(7, 0)) == Position(7, 1)


def test_last_confirmed_stays_when_everything_before_the_empty_tail_is_trimmed() -> None:
    ledgers = LedgerList([LedgerRecord(3, 10, 100, 1), LedgerRecord(7)], 0)
    ledgers.replace([LedgerRecord(7)], tail=7)
    assert ledgers.last_confirmed == Position(3, 9)
    assert ledgers.first_position() == Position(7, 0)
    assert ledgers.next_position(Position(3, 9)) == Position(7, 0)


def test_the_counts_of_the_tail_survive_a_change_elsewhere_in_the_list() -> None:
    ledgers = LedgerList([LedgerRecord(3, 10, 100, 1), LedgerRecord(7)], 0)
    ledgers.confirm(4, 50)
    ledgers.replace([LedgerRecord(7)], tail=7)
    assert ledgers.entries_in(7) == 5
    assert [record.entries for record in ledgers.counted()] == [5]
    assert [record.entries for record in ledgers.records()] == [0]


def test_between_two_ledgers_the_next_position_is_behind_the_last_entry() -> None:
    ledgers = LedgerList([LedgerRecord(3, 10, 100, 1)])
    assert ledgers.tail is None
    assert ledgers.next_position(ledgers.last_confirmed) == Position(3, 10)
    assert LedgerList([]).first_position() == Position(-1, 0)
