"""Versions in use and producers that lag, computed by hand."""

from typing import Any

from pyspark.sql import SparkSession

from quire_jobs.analytics import columns
from quire_jobs.analytics.figures import schema_drift
from tests.unit.jobs.analytics.conftest import at
from tests.unit.jobs.analytics.small_tables import TOPIC, found, messages, table


def number(version: int) -> bytes:
    return version.to_bytes(8, "big")


def test_versions_are_distinguished_and_laggards_found(spark: SparkSession) -> None:
    rows: list[dict[str, Any]] = [
        {"producer": "new", "schema_version": number(1), "publish_time": at("2026-11-22 10:00")},
        {"producer": "new", "schema_version": number(2), "publish_time": at("2026-11-22 11:00")},
        {"producer": "old", "schema_version": number(1), "publish_time": at("2026-11-22 13:30")},
        {"producer": "slow", "schema_version": number(1), "publish_time": at("2026-11-22 11:30")},
        {"producer": "bare", "schema_version": None, "publish_time": at("2026-11-22 11:30")},
        {"producer": "odd", "schema_version": b"\xab", "publish_time": at("2026-11-22 11:30")},
        {"producer": "gone", "schema_version": number(0), "publish_time": at("2026-11-22 09:30")},
    ]
    used = schema_drift.usage(messages(spark, *rows)).persist()
    known = table(spark, columns.DEFINITIONS, [{"version": version} for version in (1, 2)], topic=TOPIC, type="AVRO")
    versions = schema_drift.by_version(used, known)
    assert found(versions, "state", "version", "foreign", "messages", "producers") == [
        ("current", 2, None, 1, 1),
        ("old", 1, None, 3, 3),
        ("unknown", 0, None, 1, 1),
        ("unknown", None, "AB", 1, 1),
        ("without schema", None, None, 1, 1),
    ]
    lagging = schema_drift.laggards(used)
    assert found(lagging, "producer", "version", "newest_version", "behind_s") == [("old", 1, 2, 9000.0)]


def test_an_empty_topic_has_only_registered_versions(spark: SparkSession) -> None:
    used = schema_drift.usage(messages(spark))
    known = table(spark, columns.DEFINITIONS, [{"version": 0, "type": "JSON"}], topic=TOPIC)
    assert found(schema_drift.by_version(used, known), "topic", "version", "state", "messages") == [
        (TOPIC, 0, "unused", 0)
    ]
    assert schema_drift.laggards(used).collect() == []
