"""Skew of small topics, computed by hand."""

import pytest
from pyspark.sql import DataFrame, SparkSession

from quire_jobs.analytics.figures import keys
from tests.unit.jobs.analytics.small_tables import TOPIC, found, messages, one


def counts(spark: SparkSession, amounts: dict[str | None, int], **usual: object) -> DataFrame:
    rows = [{"key": key} | usual for key, count in amounts.items() for _ in range(count)]
    return keys.by_key(messages(spark, *rows))


def test_the_hottest_keys_come_first_with_their_share(spark: SparkSession) -> None:
    hot = keys.hot_keys(counts(spark, {"a": 6, "b": 3, "c": 1, None: 5}), top=2)
    assert found(hot, "rank", "key", "messages", "bytes", "share") == [
        (1, "a", 6, 600, pytest.approx(0.6)),
        (2, "b", 3, 300, pytest.approx(0.3)),
    ]


def test_a_topic_is_summed_with_its_keys_and_without(spark: SparkSession) -> None:
    topic = one(keys.by_topic(counts(spark, {"a": 6, "b": 3, "c": 1, None: 5})))
    assert (topic["messages"], topic["without_key"], topic["keys"], topic["keys_once"]) == (15, 5, 3, 1)
    assert topic["hottest_share"] == pytest.approx(0.6)
    assert topic["consumers_useful"] == 1
    assert topic["keys_for_half"] == 1
    # The curve from the busiest: (1/3, .6), (2/3, .9), (1, 1): twice its area is .2 + .5 + 1.9 / 3, minus 1.
    assert topic["gini"] == pytest.approx((0.6 + 1.5 + 1.9) / 3 - 1)


def test_equal_keys_have_no_skew(spark: SparkSession) -> None:
    topic = one(keys.by_topic(counts(spark, dict.fromkeys("abcd", 5))))
    assert topic["gini"] == pytest.approx(0)
    assert (topic["keys_for_half"], topic["consumers_useful"]) == (2, 4)


def test_a_topic_without_keys_has_none(spark: SparkSession) -> None:
    topic = one(keys.by_topic(counts(spark, {None: 4})))
    assert (topic["messages"], topic["without_key"], topic["keys"]) == (4, 4, 0)
    assert (topic["hottest_share"], topic["gini"], topic["consumers_useful"]) == (None, None, None)
    assert keys.hot_keys(counts(spark, {None: 4}), 10).collect() == []


def test_an_empty_key_is_a_key(spark: SparkSession) -> None:
    topic = one(keys.by_topic(counts(spark, {"": 2, None: 1})))
    assert (topic["keys"], topic["without_key"]) == (1, 1)


def test_a_topic_with_one_message(spark: SparkSession) -> None:
    topic = one(keys.by_topic(counts(spark, {"only": 1})))
    assert (topic["hottest_share"], topic["gini"], topic["keys_for_half"], topic["keys_once"]) == (1, 0, 1, 1)


def test_an_empty_topic_has_no_rows(spark: SparkSession) -> None:
    empty = counts(spark, {})
    for frame in (keys.by_topic(empty), keys.by_partition(empty), keys.frequencies(empty)):
        assert frame.collect() == []


def test_partitions_have_their_load_and_keys_in_several_partitions_are_counted(spark: SparkSession) -> None:
    first = messages(spark, *({"key": key, "partition": 0} for key in "aab"))
    second = messages(spark, {"key": "a", "partition": 1})
    table = keys.by_key(first.unionByName(second))
    assert found(keys.by_partition(table), "topic", "partition", "messages", "keys", "load") == [
        (TOPIC, 0, 3, 2, pytest.approx(1.5)),
        (TOPIC, 1, 1, 1, pytest.approx(0.5)),
    ]
    assert one(keys.by_topic(table))["keys_in_several_partitions"] == 1


def test_frequencies_count_keys_by_number_of_messages(spark: SparkSession) -> None:
    table = counts(spark, {"a": 2, "b": 2, "c": 7})
    assert found(keys.frequencies(table), "messages", "keys") == [(2, 2), (7, 1)]
