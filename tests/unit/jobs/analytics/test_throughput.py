"""A whole analysis of a Parquet table: tables, summary, metrics, report; and hostile names."""

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from quire_jobs.analytics import throughput
from quire_jobs.errors import JobOptionsError
from quire_jobs.job import Outcome, parse_parameters
from quire_jobs.tables import Layout, TableTarget, once_per_run, read_frame, write_frame
from tests.unit.jobs.analytics.conftest import at
from tests.unit.jobs.analytics.quiet_progress import QuietProgress
from tests.unit.jobs.analytics.small_tables import messages

EVIL = 'persistent://acme/shop/<script>alert("x")</script>\u202e&\x00'


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> str:
    rows: list[dict[str, Any]] = [
        {"topic": topic, "publish_time": at(f"2026-11-22 1{hour}:05:00"), "size": 100 * (hour + 1)}
        for topic in (EVIL, "persistent://acme/shop/orders")
        for hour in range(2)
    ]
    url = f"file://{tmp_path}/messages"
    messages(spark, *rows).write.parquet(url)
    return url


def parameters(**given: Any) -> throughput.Parameters:
    return parse_parameters(throughput.Parameters, {"asOf": "2026-11-22T12:00:00Z"} | given)


def test_a_run_writes_tables_summary_metrics_and_report(spark: SparkSession, table: str, tmp_path: Path) -> None:
    progress = QuietProgress()
    given = parameters(messages=table, output=f"file://{tmp_path}/out", runId="throughput-1-2026-11-22T12:00:00Z")
    summary = throughput.run(spark, given, progress)
    assert summary.outcome is Outcome.SUCCEEDED
    assert summary.counts == {"topics": 2, "messages": 4, "size_bytes": 600, "without_usable_time": 0}
    run = tmp_path / "out/throughput/throughput-1-2026-11-22T12-00-00Z"
    hours = spark.read.parquet(f"file://{run}/tables/hours/data")
    assert sorted(row.bytes for row in hours.collect()) == [100, 100, 200, 200]
    assert {"topic", "hour", "messages_per_s", "peak_messages_per_s", "size_p99"} <= set(hours.columns)
    assert json.loads((run / "summary.json").read_text())["counts"] == summary.counts
    for name in ("report.html", "summary.json", "metrics.prom"):
        assert (run / name).read_text() == (tmp_path / "out/throughput" / name).read_text()
    assert re.search(r'^quire_analytics_throughput_topic_size_p99{topic=".*orders"} 200.0$', metrics(run), re.MULTILINE)
    assert progress.units == 4 + 3


def metrics(run: Path) -> str:
    return (run / "metrics.prom").read_text()


def test_names_are_escaped_in_the_report(spark: SparkSession, table: str, tmp_path: Path) -> None:
    throughput.run(spark, parameters(messages=table, output=f"file://{tmp_path}/out"), QuietProgress())
    page = (tmp_path / "out/throughput/report.html").read_text()
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "\u202e" not in page and "\x00" not in page
    assert "\\u{202e}" in page


def test_the_same_run_again_ends_in_the_same_state(spark: SparkSession, table: str, tmp_path: Path) -> None:
    given = parameters(messages=table, output=f"file://{tmp_path}/out", runId="r1")
    first = throughput.run(spark, given, QuietProgress())
    before = (tmp_path / "out/throughput/r1/report.html").read_text()
    assert throughput.run(spark, given, QuietProgress()) == first
    assert (tmp_path / "out/throughput/r1/report.html").read_text() == before
    assert spark.read.parquet(f"file://{tmp_path}/out/throughput/r1/tables/topics/data").count() == 2


def test_a_table_of_the_jobs_is_read_by_its_log(spark: SparkSession, tmp_path: Path) -> None:
    rows = [{"publish_time": at("2026-11-22 10:00"), "size": 10}] * 3
    target = TableTarget.parse("parquet", f"file://{tmp_path}/ours")
    write_frame(messages(spark, *rows), target, once_per_run("a"), layout=Layout("publish_time", "key", 2))
    for path in (tmp_path / "ours/data").rglob("*.parquet"):
        (path.parent / "left-by-a-crash.parquet").write_bytes(path.read_bytes())
    given = parameters(messages=target.name, output=f"file://{tmp_path}/out")
    assert throughput.run(spark, given, QuietProgress()).counts["messages"] == 3


def test_messages_outside_the_time_range_are_left_out(spark: SparkSession, table: str, tmp_path: Path) -> None:
    given = parameters(messages=table, output=f"file://{tmp_path}/out", startTime="2026-11-22T11:00:00Z")
    assert throughput.run(spark, given, QuietProgress()).counts["messages"] == 2


def test_messages_after_the_slot_of_a_late_run_have_no_wrong_clocks(spark: SparkSession, tmp_path: Path) -> None:
    now = datetime.now(UTC)
    rows = [{"publish_time": now - timedelta(hours=hours)} for hours in (20, 1)] + [
        {"publish_time": now + timedelta(hours=5)}
    ]
    messages(spark, *rows).write.parquet(f"file://{tmp_path}/messages")
    slot = (now - timedelta(hours=10)).isoformat()
    given = parameters(messages=f"file://{tmp_path}/messages", output=f"file://{tmp_path}/out", asOf=slot)
    assert throughput.run(spark, given, QuietProgress()).counts["without_usable_time"] == 1, (
        "only the message in the future"
    )


def test_a_run_without_messages_succeeds_with_a_note(spark: SparkSession, table: str, tmp_path: Path) -> None:
    given = parameters(messages=table, output=f"file://{tmp_path}/out", startTime="2027-01-01T00:00:00Z", runId="r")
    summary = throughput.run(spark, given, QuietProgress())
    assert summary.outcome is Outcome.SUCCEEDED and summary.counts["messages"] == 0
    (note,) = summary.notes
    assert note.startswith(f"no message in {table}, published from 2027-01-01")
    assert "No message in file:" in (tmp_path / "out/throughput/report.html").read_text()
    assert json.loads((tmp_path / "out/throughput/summary.json").read_text())["notes"] == [note]
    for name in ("topics", "hours", "sizes"):
        target = TableTarget.parse("parquet", f"file://{tmp_path}/out/throughput/r/tables/{name}")
        assert read_frame(spark, target).count() == 0, "a table with columns and without rows"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"messages": "file:///nowhere"}, "messages = 'file:///nowhere'"),
        ({"messages": "lake.shop"}, "not an Iceberg table; give catalog.namespace.table"),
        ({"messages": "file:///nowhere", "output": "nowhere"}, "output = 'nowhere': not a supported location"),
        ({}, "give either topics"),
        ({"topics": ["a"]}, "metadata is missing"),
        (
            {"messages": "file:///x", "startTime": "2026-01-02", "endTime": "2026-01-01"},
            "is not before endTime",
        ),
        ({"messages": "file:///x", "asOf": "soon"}, "not a time"),
        ({"messages": "file:///x", "clockTolerance": "a while"}, "expected a number"),
    ],
)
def test_bad_parameters_are_named(spark: SparkSession, tmp_path: Path, given: dict[str, Any], said: str) -> None:
    given = {"output": f"file://{tmp_path}/out"} | given
    with pytest.raises(JobOptionsError, match=re.escape(said)):
        throughput.run(spark, parse_parameters(throughput.Parameters, given), QuietProgress())


def test_an_output_that_cannot_be_written_is_named(spark: SparkSession, table: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    given = parameters(messages=table, output=f"file://{tmp_path}/file/out")
    with pytest.raises(JobOptionsError, match="cannot be written"):
        throughput.run(spark, given, QuietProgress())
