"""Backlogs, holes and forecasts of small logs, computed by hand."""

from datetime import timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from quire_jobs.analytics import columns
from quire_jobs.analytics.figures import backlog
from tests.unit.jobs.analytics.small_tables import NOON, NOON_S, TOPIC, found, ledgers, one, table

HOUR = timedelta(hours=1)
SUB = {"topic": TOPIC, "partition": -1, "cursor": "s"}


def three(spark: SparkSession) -> DataFrame:
    """Ledgers 1, 2 and 3 of 100 entries, an hour each; 3 is open and has 50."""
    return ledgers(
        spark,
        {"ledger": 1, "opened_at": NOON - 3 * HOUR, "closed_at": NOON - 2 * HOUR},
        {"ledger": 2, "opened_at": NOON - 2 * HOUR, "closed_at": NOON - HOUR},
        {"ledger": 3, "opened_at": NOON - HOUR, "state": "open", "entries": 50, "bytes": 500},
    )


def cursors(spark: SparkSession, *marks: tuple[str, int, int]) -> DataFrame:
    rows = [{"cursor": name, "mark_ledger": ledger, "mark_entry": entry} for name, ledger, entry in marks]
    return table(spark, columns.CURSORS, rows, topic=TOPIC, partition=-1)


def acked(spark: SparkSession, *runs: tuple[int, int, int]) -> DataFrame:
    rows = [{"ledger": ledger, "first": first, "last": last} for ledger, first, last in runs]
    return table(spark, columns.ACKED, rows, **SUB)


def test_backlogs_of_cursors_at_different_positions(spark: SparkSession) -> None:
    marks = cursors(
        spark,
        ("s", 1, 89),  # 10 left in ledger 1, 100 in 2, 50 in 3, of which 20 are acknowledged
        ("new", -1, -1),  # at the very beginning
        ("trimmed", 0, 7),  # its ledger was deleted
        ("done", 3, 49),
        ("next", 3, 60),  # after the last entry that was read, of the open ledger
        ("beyond", 9, -1),  # in a ledger that is not listed
    )
    rows = backlog.backlog(three(spark), marks, acked(spark, (2, 10, 19), (3, 0, 9), (3, 45, 99)), NOON_S)
    by_name = {row.cursor: row for row in rows.collect()}
    assert {name: row.backlog for name, row in by_name.items()} == {
        "s": 10 + 90 + 35,
        "new": 250,
        "trimmed": 250,
        "done": 0,
        "next": 0,
        "beyond": 0,
    }
    assert {name for name, row in by_name.items() if row.ahead} == {"beyond"}
    first = by_name["s"]
    assert first.backlog_bytes == 100 + 900 + 350
    # Entry 90 of 100 of an hour that ended two hours ago.
    assert first.oldest_age_s == pytest.approx(2 * 3600 + 360)
    # 1:90-99 (to the ledger's end), 2:0-9, 2:20-99, 3:10-44; acknowledgements of missing entries do not count.
    assert (first.holes, first.hole_entries) == (4, 10 + 10 + 80 + 35)
    assert by_name["done"].oldest_age_s is None


def test_a_cursor_beyond_the_end_of_closed_ledgers_is_ahead(spark: SparkSession) -> None:
    closed = three(spark).where("ledger < 3")
    rows = backlog.backlog(
        closed, cursors(spark, ("end", 2, 99), ("past", 2, 100), ("later", 3, 0)), acked(spark), NOON_S
    )
    assert {row.cursor: row.ahead for row in rows.collect()} == {"end": False, "past": True, "later": True}


def test_holes_have_their_position_and_age(spark: SparkSession) -> None:
    holes = backlog.holes(three(spark), cursors(spark, ("s", 2, 9)), acked(spark, (2, 20, 29), (2, 40, 49)), NOON_S)
    assert found(holes, "ledger", "first", "last", "entries", "age_s") == [
        (2, 10, 19, 10, pytest.approx(2 * 3600 - 360)),
        (2, 30, 39, 10, pytest.approx(2 * 3600 - 3 * 360)),
    ]


def test_an_empty_topic_has_no_backlog(spark: SparkSession) -> None:
    empty = ledgers(spark, {"ledger": 5, "entries": 0, "bytes": 0, "state": "open", "opened_at": NOON})
    rows = backlog.backlog(empty, cursors(spark, ("s", 5, -1), ("t", -1, -1)), acked(spark), NOON_S)
    assert [(row.backlog, row.ahead, row.oldest_age_s) for row in rows.collect()] == [(0, False, None)] * 2


def test_the_ingest_rate_counts_the_part_within_the_window(spark: SparkSession) -> None:
    # The last 90 minutes: half of ledger 2 and all of 3.
    rates = one(backlog.ingest(three(spark), NOON_S, 5400))
    assert rates["entries_per_s"] == pytest.approx(100 / 5400)
    assert rates["stored_bytes_per_s"] == pytest.approx(3 * 1000 / 5400)
    # A topic younger than the window: over its own time.
    assert one(backlog.ingest(three(spark), NOON_S, 86400))["entries_per_s"] == pytest.approx(250 / (3 * 3600))


def observations(spark: SparkSession, *seen: tuple[float, int]) -> DataFrame:
    rows = [(TOPIC, -1, "s", NOON - timedelta(seconds=ago), value) for ago, value in seen]
    return spark.createDataFrame(
        rows, "topic string, partition int, cursor string, observed_at timestamp, backlog long"
    )


@pytest.mark.parametrize(
    ("seen", "per_s", "drains_in_s"),
    [
        ([(100, 500), (0, 300)], -2.0, 150.0),
        ([(100, 300), (0, 300)], 0.0, None),
        ([(100, 100), (0, 300)], 2.0, None),
        ([(0, 300)], None, None),
        ([(5, 100), (0, 300)], None, None),
        ([(90000, 10_000), (100, 500), (50, 400), (0, 300)], -2.0, 150.0),
    ],
)
def test_a_backlog_drains_when_it_shrinks(
    spark: SparkSession, seen: list[tuple[float, int]], per_s: float | None, drains_in_s: float | None
) -> None:
    past = backlog.trend(observations(spark, *seen), ["topic", "partition", "cursor"], "backlog", NOON_S, 3600)
    now = spark.createDataFrame([(TOPIC, -1, "s", 300)], "topic string, partition int, cursor string, backlog long")
    row = one(backlog.drains(now, past, NOON_S))
    assert row["per_s"] == (None if per_s is None else pytest.approx(per_s, abs=1e-9))
    assert row["drains_in_s"] == (None if drains_in_s is None else pytest.approx(drains_in_s))
    assert (row["drained_at"] is None) == (drains_in_s is None)


def test_a_disk_fills_by_its_trend_or_by_the_ingest_rate(spark: SparkSession) -> None:
    bookies = table(
        spark,
        columns.BOOKIES,
        [
            {"bookie": "a", "free_bytes": 1000, "total_bytes": 5000},
            {"bookie": "b", "free_bytes": 1000, "total_bytes": 5000},
            {"bookie": "c", "free_bytes": 1000, "total_bytes": 5000},
            {"bookie": "d", "state": "away"},
        ],
    )
    past = spark.createDataFrame(
        [("a", 2, 10.0), ("b", 2, -1.0), ("c", 1, None)], "bookie string, observations long, per_s double"
    )
    rows: dict[str, Any] = {row.bookie: row for row in backlog.fills(bookies, past, F.lit(4.0), NOON_S).collect()}
    assert {name: row.fills_in_s for name, row in rows.items()} == {"a": 100.0, "b": None, "c": 250.0, "d": None}
    assert [rows[name].from_ingest for name in "abc"] == [False, False, True]
    assert rows["a"].used_share == pytest.approx(0.8)
