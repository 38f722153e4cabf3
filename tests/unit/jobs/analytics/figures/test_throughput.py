"""Rates, peaks and sizes of small topics, computed by hand."""

import math

import pytest
from pyspark.sql import DataFrame, SparkSession

from quire_jobs.analytics.figures import throughput
from tests.unit.jobs.analytics.conftest import at
from tests.unit.jobs.analytics.small_tables import NOON_S, TOPIC, found, ledgers, messages, one

HOUR_S = 3600.0


def minutes_of(frame: DataFrame, spans: DataFrame | None = None) -> DataFrame:
    return throughput.by_minute(throughput.with_skew(frame, spans, NOON_S), HOUR_S)


@pytest.fixture(scope="module")
def morning(spark: SparkSession) -> DataFrame:
    """Five messages in two hours, three of them in one minute."""
    return minutes_of(
        messages(
            spark,
            {"publish_time": at("2026-11-22 10:00:05"), "size": 100},
            {"publish_time": at("2026-11-22 10:30:00"), "size": 200},
            {"publish_time": at("2026-11-22 10:30:20"), "size": 300},
            {"publish_time": at("2026-11-22 10:30:59.999"), "size": 400},
            {"publish_time": at("2026-11-22 11:59:30"), "size": 1000},
        )
    ).persist()


def test_an_hour_has_its_mean_and_its_busiest_minute(morning: DataFrame) -> None:
    hours = {row.hour_s % 86400 // 3600: row for row in throughput.by_hour(morning).collect()}
    assert sorted(hours) == [10, 11]
    assert (hours[10].messages, hours[10].bytes) == (4, 1000)
    assert hours[10].messages_per_s == pytest.approx(4 / 3600)
    assert hours[10].peak_messages_per_s == pytest.approx(3 / 60)
    assert hours[10].peak_bytes_per_s == pytest.approx(900 / 60)
    assert (hours[10].size_mean, hours[10].size_p50, hours[10].size_p99, hours[10].size_max) == (250, 200, 400, 400)
    assert (hours[11].messages, hours[11].size_p50) == (1, 1000)


def test_a_topic_has_its_rate_over_the_time_from_first_to_last_minute(morning: DataFrame) -> None:
    topic = one(throughput.by_topic(morning))
    seconds = 2 * 3600  # 10:00 up to the end of 11:59
    assert topic["topic"] == TOPIC
    assert topic["messages_per_s"] == pytest.approx(5 / seconds)
    assert topic["bytes_per_s"] == pytest.approx(2000 / seconds)
    assert topic["peak_minute_s"] == at("2026-11-22 10:30").timestamp()
    assert topic["active_share"] == pytest.approx(3 / 120)
    assert topic["without_usable_time"] == 0
    assert topic["largest_skew_s"] == 0


def test_hours_of_the_day_are_means_over_all_days(spark: SparkSession) -> None:
    rows = [{"publish_time": at(f"2026-11-{day} 09:10")} for day in (20, 20, 21)]
    hours = throughput.by_hour(minutes_of(messages(spark, *rows)))
    assert found(throughput.by_hour_of_day(hours), "hour_of_day", "messages_per_s") == [(9, pytest.approx(3 / 7200))]


def test_sizes_are_counted_in_powers_of_two(spark: SparkSession) -> None:
    rows = [{"publish_time": at("2026-11-22 09:10"), "size": size} for size in (0, 1, 2, 3, 4, 1024, None)]
    counted = throughput.sizes(minutes_of(messages(spark, *rows)))
    assert sorted(map(tuple, counted.collect())) == [(0, 1, 2), (1, 2, 1), (2, 4, 2), (4, 8, 1), (1024, 2048, 1)]


def test_an_entry_is_counted_once_for_all_messages_of_its_batch(spark: SparkSession) -> None:
    batches = [{"publish_time": at("2026-11-22 09:10"), "batch_index": index} for index in (0, 1, 2, 0, 1, -1, None)]
    topic = one(throughput.by_topic(minutes_of(messages(spark, *batches))))
    assert (topic["messages"], topic["entries"]) == (7, 4)


def test_an_empty_topic_has_no_rows(spark: SparkSession) -> None:
    minutes = minutes_of(messages(spark))
    for frame in (throughput.by_topic(minutes), throughput.by_hour(minutes), throughput.sizes(minutes)):
        assert frame.collect() == []


def test_one_message_has_the_rate_of_its_minute(spark: SparkSession) -> None:
    topic = one(throughput.by_topic(minutes_of(messages(spark, {"publish_time": at("2026-11-22 10:00:05")}))))
    assert topic["messages_per_s"] == pytest.approx(1 / 60)
    assert topic["active_share"] == 1
    assert (topic["size_p50"], topic["size_p99"]) == (100, 100)


def test_a_message_with_a_wrong_clock_is_counted_but_in_no_rate(spark: SparkSession) -> None:
    frame = messages(
        spark,
        {"publish_time": at("2026-11-22 10:00")},
        {"publish_time": at("2099-01-01 00:00")},
        {"publish_time": at("1970-01-01 00:00")},
        {"publish_time": None},
    )
    written = ledgers(spark, {"ledger": 7, "opened_at": at("2026-11-22 09:00"), "closed_at": at("2026-11-22 11:00")})
    topic = one(throughput.by_topic(minutes_of(frame, throughput.writing_spans(written))))
    assert (topic["messages"], topic["without_usable_time"]) == (4, 3)
    assert topic["messages_per_s"] == pytest.approx(1 / 60)
    assert topic["largest_skew_s"] == at("2099-01-01 00:00").timestamp() - at("2026-11-22 11:00").timestamp()
    # Without ledgers only the future is known to be wrong.
    assert one(throughput.by_topic(minutes_of(frame)))["without_usable_time"] == 2


def test_a_clock_error_within_the_tolerance_is_accepted(spark: SparkSession) -> None:
    frame = messages(spark, {"publish_time": at("2026-11-22 11:59:59")}, {"publish_time": at("2026-11-22 12:59:59")})
    topic = one(throughput.by_topic(minutes_of(frame)))
    assert topic["without_usable_time"] == 0
    assert topic["largest_skew_s"] == pytest.approx(3599)


def test_only_wrong_clocks_leave_a_topic_without_rates(spark: SparkSession) -> None:
    topic = one(throughput.by_topic(minutes_of(messages(spark, {"publish_time": at("2199-01-01 00:00")}))))
    assert (topic["messages"], topic["messages_per_s"], topic["peak_minute"]) == (1, None, None)
    assert math.isfinite(topic["largest_skew_s"])
