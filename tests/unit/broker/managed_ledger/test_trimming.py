"""The rules of trimming."""

from hypothesis import given
from hypothesis import strategies as st

from quire_broker.managed_ledger.nodes.ledger_list import LedgerRecord
from quire_broker.managed_ledger.position import Position
from quire_broker.managed_ledger.trimming import slowest_mark_delete, trimmable, trimmable_from_ms
from quire_broker.settings.managed_ledger import ManagedLedgerSettings

NOW_MS = 1_000_000
LEDGERS = [LedgerRecord(3, 10, 100, 1000), LedgerRecord(5, 10, 100, 900_000), LedgerRecord(9, 4, 40, 0)]


def _gone(slowest: Position | None, ledgers: list[LedgerRecord] | None = None, **settings: float) -> list[int]:
    return trimmable(
        LEDGERS if ledgers is None else ledgers,
        tail=9,
        slowest=slowest,
        now_ms=NOW_MS,
        settings=ManagedLedgerSettings(**settings),  # type: ignore[arg-type]
    )


def test_consumed_ledgers_are_trimmed_and_the_written_one_stays() -> None:
    assert _gone(Position(9, 3)) == [3, 5]


def test_a_ledger_is_trimmed_only_after_its_last_entry_was_consumed() -> None:
    assert _gone(Position(3, 8)) == []
    assert _gone(Position(3, 9)) == [3]
    assert _gone(Position(5, 8)) == [3]


def test_without_a_durable_cursor_nothing_is_trimmed_unless_a_retention_is_set() -> None:
    assert _gone(None) == []
    assert _gone(None, retention_s=500, retention_bytes=-1) == [3]


def test_retention_by_time_keeps_younger_ledgers() -> None:
    assert _gone(Position(9, 3), retention_s=500, retention_bytes=-1) == [3]
    assert _gone(Position(9, 3), retention_s=5000, retention_bytes=-1) == []


def test_retention_by_size_keeps_at_least_its_size() -> None:
    assert _gone(Position(9, 3), retention_s=-1, retention_bytes=140) == [3]
    assert _gone(Position(9, 3), retention_s=-1, retention_bytes=141) == []


def test_unlimited_retention_by_time_and_size_keeps_everything() -> None:
    assert _gone(Position(9, 3), retention_s=-1, retention_bytes=-1) == []


def test_the_newest_ledger_stays_even_when_none_is_written() -> None:
    ledgers = [LedgerRecord(3, 10, 100, 1000)]
    settings = ManagedLedgerSettings()
    assert trimmable(ledgers, tail=None, slowest=Position(3, 9), now_ms=NOW_MS, settings=settings) == []


def test_the_slowest_cursor_counts() -> None:
    assert slowest_mark_delete([Position(9, 1), Position(3, 4), Position(5, 0)]) == Position(3, 4)
    assert slowest_mark_delete([]) is None


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=8),
    st.integers(0, 9),
    st.integers(-1, 6),
    st.sampled_from([-1, 0, 500]),
    st.sampled_from([-1, 0, 25]),
)
def test_no_unconsumed_entry_is_ever_trimmed_and_one_ledger_always_stays(
    entries: list[int], ledger: int, entry: int, retention_s: int, retention_bytes: int
) -> None:
    ledgers = [LedgerRecord(at, count, count * 10, 1 + at) for at, count in enumerate(entries)]
    slowest = Position(ledger, entry)
    gone = trimmable(
        ledgers,
        tail=len(ledgers) - 1,
        slowest=slowest,
        now_ms=NOW_MS,
        settings=ManagedLedgerSettings(retention_s=retention_s, retention_bytes=retention_bytes),
    )
    assert len(gone) < len(ledgers)
    for known in ledgers:
        if known.ledger_id in gone and known.entries:
            assert Position(known.ledger_id, known.entries - 1) <= slowest


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50), st.integers(1, 900)), max_size=4),
    st.one_of(st.none(), st.tuples(st.integers(0, 5), st.integers(-1, 3))),
    st.sampled_from([-1, 0, 1]),
    st.sampled_from([-1, 0, 60]),
    st.integers(0, 3000),
)
def test_something_is_trimmable_exactly_from_the_time_that_is_foretold(
    counts: list[tuple[int, int, int]], mark: tuple[int, int] | None, retention_s: int, kept_bytes: int, now_ms: int
) -> None:
    ledgers = [LedgerRecord(number, *each) for number, each in enumerate(counts)]
    slowest = None if mark is None else Position(*mark)
    settings = ManagedLedgerSettings(retention_s=retention_s, retention_bytes=kept_bytes)
    from_ms = trimmable_from_ms(ledgers, tail=None, slowest=slowest, settings=settings)
    gone = trimmable(ledgers, tail=None, slowest=slowest, now_ms=now_ms, settings=settings)
    assert bool(gone) == (from_ms is not None and now_ms >= from_ms)
