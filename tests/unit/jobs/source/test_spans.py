"""Ranges to read: no entry twice, none missing, tasks of about the requested size."""

from dataclasses import replace

import pytest

pytest.importorskip("pyspark")

from hypothesis import given
from hypothesis import strategies as st

from quire_broker.managed_ledger.position import Position
from quire_jobs.decode.chunks import LOOK_BACK_ENTRIES_MAX
from quire_jobs.source.spans import Log, LogName, Span, look_back, splits

NAME = LogName("t/n/persistent/x", "persistent://t/n/x", -1)


def log_of(*counts: int, bytes_each: int = 100) -> Log:
    spans = tuple(Span(10 * index, 0, count - 1, count * bytes_each, 1) for index, count in enumerate(counts) if count)
    return Log(NAME, spans, tuple(10 * index for index in range(len(counts))))


def positions(spans: tuple[Span, ...] | list[Span]) -> list[Position]:
    return [Position(span.ledger_id, entry) for span in spans for entry in range(span.first, span.last + 1)]


@given(st.lists(st.integers(0, 40), min_size=1, max_size=6), st.integers(1, 5000))
def test_tasks_contain_every_entry_once_in_order(counts: list[int], split_bytes: int) -> None:
    log = log_of(*counts)
    found = splits([log], split_bytes, {NAME: log})
    assert [each for split in found for each in positions(split.spans)] == positions(log.spans)
    assert all(split.size_bytes <= split_bytes + 100 for split in found)  # and one entry


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=5),
    st.tuples(st.integers(-1, 50), st.integers(-1, 10)),
    st.tuples(st.integers(-1, 50), st.integers(-1, 10)),
)
def test_between_keeps_exactly_the_positions_between(
    counts: list[int], first: tuple[int, int], last: tuple[int, int]
) -> None:
    log = log_of(*counts)
    found = positions(log.between(Position(*first), Position(*last)).spans)
    assert found == [each for each in positions(log.spans) if first <= each <= last]


def test_small_ledgers_share_a_task_and_large_ones_are_cut_evenly() -> None:
    log = log_of(3, 3, 30)
    assert [split.size_bytes for split in splits([log], 1000, {NAME: log})] == [600, 1000, 1000, 1000]


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=6),
    st.sets(st.sampled_from([0, 10, 20, 30, 40, 50])),
    st.tuples(st.integers(0, 5), st.integers(4, 9)),
)
def test_a_task_has_no_gaps_and_looks_back_at_entries_that_a_filter_removed(
    counts: list[int], ledgers: set[int], entries: tuple[int, int]
) -> None:
    log = log_of(*counts)
    cut = [part for span in log.spans if span.ledger_id in ledgers and (part := span.cut(*entries)) is not None]
    found = splits([replace(log, spans=tuple(cut))], 1000, {NAME: log})
    everything = positions(log.spans)
    assert [each for split in found for each in positions(split.spans)] == positions(cut)
    for split in found:
        read = positions(split.spans)
        start = everything.index(read[0])
        assert read == everything[start : start + len(read)]
        assert sorted(positions(split.before)) == everything[:start]


def test_a_task_looks_back_over_ledgers_up_to_the_bound() -> None:
    log = log_of(LOOK_BACK_ENTRIES_MAX, 5, 20)
    found = look_back(log, Span(20, 7, 9, 300))
    assert [(span.ledger_id, span.first, span.last) for span in found] == [
        (20, 0, 6),
        (10, 0, 4),
        (0, 12, LOOK_BACK_ENTRIES_MAX - 1),
    ]
    assert look_back(log, log.spans[0]) == []


def test_entries_are_numbered_over_ledgers() -> None:
    log = log_of(2, 0, 2)
    assert [log.at(index) for index in range(4)] == positions(log.spans)
    with pytest.raises(IndexError):
        log.at(4)
