"""Filters drop only rows that Spark would drop."""

from datetime import UTC, datetime
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    Not,
    StringStartsWith,
)

from quire_jobs.source.filters import Filters
from quire_jobs.source.spans import Log, LogName, Span

NAME = LogName("t/n/persistent/x", "persistent://t/n/x", 2)
LOG = Log(NAME, tuple(Span(ledger, 0, 9, 100, closed_ms=1_000_000 * ledger) for ledger in (1, 2, 3)), (1, 2, 3))


def filters(*given: Any) -> Filters:
    found = Filters()
    found.take(given)
    return found


def ledgers(*given: Any, tolerance_s: int = 0) -> list[int]:
    return [span.ledger_id for span in filters(*given).prune(LOG, tolerance_s).spans]


def at(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def test_ledgers_and_entries_outside_are_not_read() -> None:
    assert ledgers(EqualTo(("ledger",), 2)) == [2]
    assert ledgers(In(("ledger",), (1, 3, None))) == [1, 3]
    assert ledgers(GreaterThan(("ledger",), 1), LessThan(("ledger",), 3)) == [1, 2, 3]  # Spark does the rest
    (span, *_) = filters(GreaterThanOrEqual(("entry",), 4)).prune(LOG, 0).spans
    assert (span.first, span.last) == (4, 9)
    assert ledgers(EqualTo(("entry",), 10)) == []


def test_ledgers_closed_long_before_or_begun_long_after_the_times_are_skipped() -> None:
    late = GreaterThanOrEqual(("publish_time",), at(2_500_000))
    assert ledgers(late) == [3]
    assert ledgers(late, tolerance_s=600) == [2, 3]
    assert ledgers(LessThan(("publish_time",), at(1_500_000))) == [1, 2]
    assert ledgers(LessThan(("publish_time",), at(500_000)), tolerance_s=600) == [1, 2]


def test_the_open_ledger_is_always_read() -> None:
    written = Log(NAME, (*LOG.spans, Span(4, 0, 0, 1)), (1, 2, 3, 4))
    found = filters(GreaterThanOrEqual(("publish_time",), at(9_000_000_000))).prune(written, 0)
    assert [span.ledger_id for span in found.spans] == [4]


def test_other_topics_and_partitions_are_skipped() -> None:
    assert filters(EqualTo(("partition",), 2), EqualTo(("topic",), NAME.topic)).wants(NAME)
    assert not filters(EqualTo(("partition",), 1)).wants(NAME)
    assert not filters(EqualTo(("topic",), "another")).wants(NAME)
    assert not filters(EqualTo(("partition",), 2)).wants(LogName("", None, None))


def test_unsupported_filters_drop_nothing() -> None:
    odd = (Not(EqualTo(("ledger",), 2)), StringStartsWith(("key",), "k"), IsNotNull(("key",)), EqualTo(("a", "b"), 1))
    assert filters(*odd).terms == []
    assert ledgers(*odd) == [1, 2, 3]


def test_rows_that_cannot_match_are_dropped() -> None:
    batch = pa.record_batch(
        {
            "key": pa.array(["a", None, "b", "a"]),
            "publish_time": pa.array([at(1000), at(2000), None, at(3000)], pa.timestamp("us", tz="UTC")),
        }
    )
    assert filters(EqualTo(("key",), "a")).apply(batch).num_rows == 2
    assert filters(In(("key",), ("b", "c"))).apply(batch).column("key").to_pylist() == ["b"]
    assert filters(GreaterThan(("publish_time",), at(1000))).apply(batch).num_rows == 2
    assert filters(EqualTo(("key",), "a"), LessThan(("publish_time",), at(2000))).apply(batch).num_rows == 1
    assert filters(EqualTo(("ledger",), 5)).apply(batch).num_rows == 4  # the batch does not have that column


def test_in_mode_table_only_filters_on_metadata_columns_are_kept() -> None:
    found = Filters()
    found.take([EqualTo(("_ledger",), 2), EqualTo(("ledger",), 3), EqualTo(("_price",), 1)], prefix="_")
    assert [(term.column, term.value) for term in found.terms] == [("ledger", 2)]
