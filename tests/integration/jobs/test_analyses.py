"""Whole analyses of a running cluster: results compared with the published data, in all outputs."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pulsar")
pytest.importorskip("pyspark")

import pulsar
import pyarrow.parquet as pq
from pulsar.schema import Integer, JsonSchema, Record, String
from pyspark.sql import SparkSession

from quire_jobs.analytics import audit
from quire_jobs.analytics.output import Output
from quire_jobs.analytics.parameters import AnalysisParameters
from quire_jobs.errors import NotFoundError, QuireJobError
from quire_jobs.job import JobParameters, Outcome, Summary, parse_parameters
from quire_jobs.main.kinds import load_kind
from quire_jobs.tables import TableFormat, iceberg_table, open_table
from quire_jobs.tables.data_files import read_files
from tests.integration.jobs.conftest import Cluster
from tests.support.s3_server import S3Server, require_s3
from tests.unit.jobs.analytics.quiet_progress import QuietProgress

NAME = "public/default/analysed"
TOPIC = f"persistent://{NAME}"
SKEWED, TYPED = "public/default/skewed", "public/default/typed"
ORPHAN = "0f1e2d3c-4b5a-4978-8695-a4b3c2d1e0f0-ledger-1"
MESSAGES, PAYLOAD = 450, 1000
REPORTS = "reports"


@dataclass(frozen=True)
class Analyses:
    """Runs kinds of jobs on the cluster. `bucket`: the folder to which the topic was offloaded."""

    spark: SparkSession
    cluster: Cluster
    output: Path
    bucket: Path
    began: datetime

    def parameters(self, kind: str, **given: Any) -> JobParameters:
        """Return parameters of a run named after its kind."""
        usual: dict[str, Any] = {"metadata": self.cluster.metadata, "runId": f"{kind}-1"}
        usual |= {} if kind == "offload" else {"output": f"file://{self.output}"}
        usual |= {} if kind in ("offload", "audit") else {"topics": [NAME]}
        found: JobParameters = parse_parameters(load_kind(kind).parameters, usual | given)
        return found

    def run(self, kind: str, **given: Any) -> Summary:
        """Run the kind once."""
        return load_kind(kind).run(self.spark, self.parameters(kind, **given), QuietProgress())

    def rows(self, kind: str, table: str, **given: Any) -> list[dict[str, Any]]:
        """Return the rows of a table by its log; in a folder, check that a plain listing finds the same rows."""
        parameters = self.parameters(kind, **given)
        assert isinstance(parameters, AnalysisParameters)
        target = Output(kind, parameters).table(table)
        opened = open_table(target)
        schema = opened.schema()
        assert schema is not None
        found: list[dict[str, Any]] = []
        for batch in read_files(opened.files(), schema, opened.store):
            found += batch.to_pylist()
        if target.format is TableFormat.PARQUET and target.name.startswith("file:"):
            listed = pq.read_table(f"{target.name.removeprefix('file://')}/data").to_pylist() if found else []
            assert sorted(map(repr, listed)) == sorted(map(repr, found))
        return found

    def text(self, kind: str, name: str) -> str:
        """Return a file of the newest run."""
        return (self.output / kind / name).read_text()


@pytest.fixture(scope="module")
def analyses(
    spark: SparkSession,
    cluster: Cluster,
    client: Any,
    publish: Callable[..., None],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Analyses]:
    """450 messages in three ledgers, the first two offloaded; of the first ten all but the third are acknowledged."""
    folder = tmp_path_factory.mktemp("analyses")
    (folder / "bucket").mkdir()
    began = datetime.now(UTC)
    consumer = client.subscribe(TOPIC, "billing", pulsar.ConsumerType.Shared)
    keys = [f"k{number % 5}" for number in range(MESSAGES)]
    publish(TOPIC, [b"x" * PAYLOAD] * MESSAGES, keys, batching_enabled=False)
    for number in range(10):
        message = consumer.receive(timeout_millis=60_000)
        if number != 2:
            consumer.acknowledge(message)
    consumer.close()
    # Unload the topic, so that bookies know the last entries of the pausing writer.
    cluster.process.request("PUT", f"/admin/v2/persistent/{NAME}/unload")
    made = Analyses(spark, cluster, folder / "out", folder / "bucket", began)
    offloaded = made.run("offload", target=f"file://{made.bucket}", http=cluster.process.http, topics=[TOPIC])
    assert offloaded.outcome is Outcome.SUCCEEDED and offloaded.counts["ledgers_offloaded"] == 2, offloaded
    yield made


@pytest.fixture(scope="module")
def s3(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A bucket whose keys are only in the environment of this process and of Spark's Python processes."""
    server = S3Server(require_s3(), tmp_path_factory.mktemp("s3"))
    server.start()
    server.make_bucket(REPORTS)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, server.environment[name])
            patch.setitem(spark.sparkContext.environment, name, server.environment[name])
        yield server
    server.stop()


def test_throughput_equals_the_published_messages(analyses: Analyses) -> None:
    summary = analyses.run("throughput")
    assert summary.outcome is Outcome.SUCCEEDED, summary
    expected = {"topics": 1, "messages": MESSAGES, "size_bytes": MESSAGES * PAYLOAD, "without_usable_time": 0}
    assert summary.counts == expected
    (row,) = analyses.rows("throughput", "topics")
    assert (row["topic"], row["messages"], row["bytes"]) == (TOPIC, MESSAGES, MESSAGES * PAYLOAD)
    assert {row[name] for name in ("size_mean", "size_p50", "size_p95", "size_p99", "size_max")} == {PAYLOAD}
    began = analyses.began.replace(second=0, microsecond=0)
    assert began <= row["first_minute"] <= row["peak_minute"] <= row["last_minute"] <= datetime.now(UTC)
    minutes = (row["last_minute"] - row["first_minute"]).total_seconds() / 60 + 1
    assert row["messages_per_s"] == pytest.approx(MESSAGES / (60 * minutes))
    hours = analyses.rows("throughput", "hours")
    assert sum(each["messages"] for each in hours) == MESSAGES
    assert sum(each["bytes_per_s"] * 3600 for each in hours) == pytest.approx(MESSAGES * PAYLOAD)
    sizes = analyses.rows("throughput", "sizes")
    assert sizes == [{"size_from": 512, "size_below": 1024, "messages": MESSAGES}]
    # The same results for programs, monitoring and users.
    assert summary.outputs[0] == f"file://{analyses.output}/throughput/throughput-1/report.html"
    assert json.loads(analyses.text("throughput", "summary.json"))["counts"] == summary.counts
    assert f"quire_analytics_throughput_messages {MESSAGES}.0\n" in analyses.text("throughput", "metrics.prom")
    report = analyses.text("throughput", "report.html")
    assert "<svg" in report and "analysed" in report
    assert report == analyses.text("throughput", "throughput-1/report.html")


def test_keys_are_counted_over_partitions(analyses: Analyses, publish: Callable[..., None]) -> None:
    analyses.cluster.process.request("PUT", f"/admin/v2/persistent/{SKEWED}/partitions", 2)
    keys = ["a"] * 30 + ["b"] * 15 + ["c"] * 5
    publish(SKEWED, [b"12345678"] * len(keys), keys)
    publish(SKEWED, [b"keyless"] * 10)
    http = analyses.cluster.process.http  # it knows the newest entries, and keeps the data during the read
    summary = analyses.run("keys", topics=[SKEWED], hotShare=0.2, http=http)
    path = f"/admin/v2/persistent/{SKEWED}-partition-0/subscriptions"
    assert analyses.cluster.process.request("GET", path) == [], "a remaining cursor would keep the topic's data forever"
    assert summary.counts == {"topics": 1, "messages": 60, "without_key": 10, "keys": 3, "hot_keys": 2}
    (row,) = analyses.rows("keys", "topics")
    assert (row["messages"], row["keys"], row["keys_once"], row["keys_in_several_partitions"]) == (60, 3, 0, 0)
    assert row["hottest_share"] == pytest.approx(0.6) and row["consumers_useful"] == 1
    assert row["keys_for_half"] == 1
    assert row["gini"] == pytest.approx(1 / 3)  # twice the area below (1/3, 0.6), (2/3, 0.9), (1, 1), less one
    hot = [(each["rank"], each["key"], each["messages"], each["bytes"]) for each in analyses.rows("keys", "hot_keys")]
    assert hot == [(1, "a", 30, 240), (2, "b", 15, 120), (3, "c", 5, 40)]
    partitions = analyses.rows("keys", "partitions")
    assert {each["partition"] for each in partitions} <= {0, 1}
    assert sum(each["messages"] for each in partitions) == 60 and sum(each["keys"] for each in partitions) == 3
    curve = analyses.rows("keys", "curves")
    assert [(each["keys_so_far"], each["messages_each"]) for each in curve] == [(1, 30), (2, 15), (3, 5)]
    assert "k0" not in analyses.text("keys", "metrics.prom") and 'key="' not in analyses.text("keys", "metrics.prom")


def test_a_schedule_reads_its_last_hours_and_succeeds_without_messages(analyses: Analyses) -> None:
    missing = "public/default/missing-*"
    hour = analyses.run("keys", topics=[NAME, missing], last="1h", runId="hour")
    assert hour.outcome is Outcome.SUCCEEDED and hour.counts["messages"] == MESSAGES
    assert hour.notes == [f"no topic matches {missing} yet"]
    before = analyses.run("keys", last="1h", asOf=(analyses.began - timedelta(days=1)).isoformat(), runId="before")
    assert before.outcome is Outcome.SUCCEEDED and before.counts["messages"] == 0
    assert len(before.notes) == 1 and before.notes[0].startswith(f"no message in {NAME}, published from")
    none = analyses.run("keys", topics=[missing], last="1h", runId="none", http=analyses.cluster.process.http)
    assert none.outcome is Outcome.SUCCEEDED and none.notes == [f"no topic matches {missing} yet"]
    assert analyses.rows("keys", "topics", runId="none") == []
    with pytest.raises(NotFoundError, match="there is no topic persistent://public/default/missing"):
        analyses.run("keys", topics=["public/default/missing"])


def order(*, note: bool) -> Any:
    """Return a record class in its first or second version."""
    fields: dict[str, Any] = {"id": Integer(required=True)}
    fields |= {"note": String(required_default=True)} if note else {}
    return type("Order", (Record,), fields)


def test_schema_drift_finds_versions_changes_and_laggards(analyses: Analyses, client: Any) -> None:
    first, second = order(note=False), order(note=True)

    def producer(name: str, record: Any) -> Any:
        given = {"schema": JsonSchema(record), "producer_name": name, "batching_enabled": False}
        return client.create_producer(f"persistent://{TYPED}", **given)

    old = producer("old", first)
    for number in range(4):
        old.send(first(id=number))
    new = producer("new", second)
    for number in range(6):
        new.send(second(id=number, note="n"))
    old.send(first(id=9))
    old.close()
    new.close()
    summary = analyses.run("schema-drift", topics=[TYPED], grace=0, http=analyses.cluster.process.http)
    assert summary.outcome is Outcome.SUCCEEDED, summary
    versions = analyses.rows("schema-drift", "versions")
    assert [(each["version"], each["type"], each["state"], each["messages"]) for each in versions] == [
        (0, "JSON", "old", 5),
        (1, "JSON", "current", 6),
    ]
    assert [each["share"] for each in versions] == [pytest.approx(5 / 11), pytest.approx(6 / 11)]
    assert all(analyses.began <= each["registered_at"] <= datetime.now(UTC) for each in versions)
    (change,) = analyses.rows("schema-drift", "changes")
    assert (change["version"], change["field"], change["what"], change["breaks"]) == (1, "note", "added", "nobody")
    (late,) = analyses.rows("schema-drift", "laggards")
    assert (late["producer"], late["version"], late["newest_version"], late["messages"]) == ("old", 0, 1, 5)
    assert late["behind_s"] > 0
    assert (summary.counts["messages_of_old_versions"], summary.counts["breaking_changes"]) == (5, 0)


def test_an_audit_finds_exactly_the_missing_and_orphaned_objects(analyses: Analyses) -> None:
    found = analyses.run("audit", deepLedgers=2)
    # The bookies of a standalone have no HTTP port: they are unknown, and no finding concerns their replicas.
    assert found.outcome is Outcome.PARTLY and found.counts["bookies_silent"] == 3
    assert all("has no HTTP port" in problem.reason for problem in found.problems)
    assert (found.counts["ledgers_read_through"], found.counts["objects"]) == (2, 4)
    assert (found.counts["findings_lost"], found.counts["findings_at_risk"]) == (0, 0), found.details

    index = min(path for path in analyses.bucket.iterdir() if path.name.endswith("-index"))
    kept = index.read_bytes()
    index.unlink()
    (analyses.bucket / ORPHAN).write_bytes(b"left behind")
    try:
        wrong = analyses.run("audit", bookies=False)
    finally:
        index.write_bytes(kept)
        (analyses.bucket / ORPHAN).unlink()
    assert wrong.outcome is Outcome.SUCCEEDED and wrong.counts["findings_at_risk"] == 1
    # The same run again: its first attempt's findings are replaced.
    objects = {row["kind"]: row["subject"] for row in analyses.rows("audit", "findings") if "object" in row["kind"]}
    assert objects == {"missing object": index.name, "orphan object": ORPHAN}
    assert audit.REMEDIES["missing object"] in analyses.text("audit", "report.html")


def test_the_backlog_contains_the_cursor_s_entries_and_hole(analyses: Analyses) -> None:
    for run in ("first", "second"):
        summary = analyses.run("backlog", runId=run)
        assert summary.problems == []
    assert summary.counts["bookies"] == 3
    (row,) = [row for row in analyses.rows("backlog", "cursors", runId=run) if row["cursor"] == "billing"]
    assert (row["topic"], row["holes"], row["hole_entries"], row["ahead"]) == (TOPIC, 1, 1, False)
    assert row["unreadable"] is None
    assert row["backlog"] == MESSAGES - 9 and row["backlog_bytes"] >= (MESSAGES - 9) * PAYLOAD
    assert row["observations"] == 2, "one of each run"
    (hole,) = analyses.rows("backlog", "holes", runId=run)
    assert (hole["cursor"], hole["first"], hole["last"], hole["entries"]) == ("billing", 2, 2, 1)
    disks = analyses.rows("backlog", "bookies", runId=run)
    assert len(disks) == 3 and all(0 < disk["free_bytes"] < disk["total_bytes"] for disk in disks)


def test_costs_are_of_both_tiers(analyses: Analyses) -> None:
    summary = analyses.run("cost", priceBookies=0.1, priceObjectStore=0.02)
    assert summary.outcome is Outcome.SUCCEEDED
    rows = {row["tier"]: row for row in analyses.rows("cost", "topics")}
    bucket, bookies = rows["object-store"], rows["bookies"]
    assert (bucket["entries"], bucket["ledgers"], bookies["entries"]) == (400, 2, MESSAGES)
    assert bucket["stored_bytes"] == bucket["bytes"] >= 400 * PAYLOAD
    assert bookies["bytes"] >= MESSAGES * PAYLOAD and bookies["stored_bytes"] % bookies["bytes"] == 0
    for row, price in ((bucket, 0.02), (bookies, 0.1)):
        assert row["cost_per_month"] == pytest.approx(row["stored_bytes"] / 2**30 * price)
    (tenant,) = analyses.rows("cost", "tenants")
    assert (tenant["tenant"], tenant["stored_bytes"]) == ("public", bucket["stored_bytes"] + bookies["stored_bytes"])
    (twice,) = analyses.rows("cost", "twice_stored")
    assert (twice["ledgers"], twice["bytes"]) == (2, bucket["bytes"])


def test_a_shorter_retention_frees_nothing_that_the_cursor_keeps(analyses: Analyses) -> None:
    summary = analyses.run("retention-what-if", options=["0", "inf"])
    assert summary.outcome is Outcome.SUCCEEDED
    rows = {row["option"]: row for row in analyses.rows("retention-what-if", "topics")}
    assert rows["0"]["bytes_freed"] == 0 and rows["0"]["ledgers_kept"] >= 3
    assert rows["0"]["bytes_held_by_cursors"] >= 400 * PAYLOAD
    assert rows["inf"]["bytes_held_by_cursors"] == 0
    ledgers = [row for row in analyses.rows("retention-what-if", "ledgers") if row["option"] == "0"]
    assert [row["entries"] for row in ledgers][:2] == [200, 200]
    assert sum(row["bytes"] for row in ledgers) == rows["0"]["bytes"] and not any(row["goes"] for row in ledgers)


def test_results_in_a_bucket(analyses: Analyses, s3: S3Server) -> None:
    where = {"output": f"s3://{REPORTS}/daily", "endpoint": s3.endpoint, "region": "us-east-1"}
    for _ in range(2):  # the second run replaces the first
        summary = analyses.run("cost", **where)
    assert summary.outcome is Outcome.SUCCEEDED, summary
    rows = {row["tier"]: row["entries"] for row in analyses.rows("cost", "topics", **where)}
    assert rows == {"bookies": MESSAGES, "object-store": 400}
    folder = s3.buckets / REPORTS / "daily/cost"
    assert len(list((folder / "cost-1/tables/topics/data").iterdir())) == 1
    for place in (folder, folder / "cost-1"):
        assert json.loads((place / "summary.json").read_text())["counts"] == summary.counts
        assert "<h1>" in (place / "report.html").read_text()
        assert (place / "metrics.prom").read_text().startswith("# HELP")
    assert f"s3://{REPORTS}/daily/cost/cost-1/tables/topics" in summary.outputs


def test_rejected_credentials_are_reported_before_anything_is_read(
    analyses: Analyses, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "only-of-this-test")
    where = {"output": f"s3://{REPORTS}/refused", "endpoint": s3.endpoint}
    for kind in ("throughput", "keys", "schema-drift", "backlog", "cost", "retention-what-if", "audit"):
        progress = QuietProgress()
        with pytest.raises(QuireJobError) as raised:
            load_kind(kind).run(analyses.spark, analyses.parameters(kind, **where), progress)
        assert "credentials are not accepted" in str(raised.value) and f"s3://{REPORTS}/refused" in str(raised.value)
        assert "only-of-this-test" not in str(raised.value) and s3.access_key not in str(raised.value)
        assert progress.stages == []


def test_results_in_an_iceberg_catalog(
    analyses: Analyses, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"TYPE": "sql", "URI": f"sqlite:///{tmp_path}/catalog.db", "WAREHOUSE": f"file://{tmp_path}/files"}
    for name, value in given.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__ANALYSES__{name}", value)
        monkeypatch.setitem(spark.sparkContext.environment, f"PYICEBERG_CATALOG__ANALYSES__{name}", value)
    where = {"format": "iceberg", "tables": "analyses.quire", "options": ["0"]}
    for run in ("one", "two"):
        summary = analyses.run("retention-what-if", runId=run, **where)
    assert summary.outputs[1:] == [f"iceberg:analyses.quire.retention_what_if_{name}" for name in ("topics", "ledgers")]
    catalog = iceberg_table._catalog("analyses")
    table = catalog.load_table(("quire", "retention_what_if_ledgers"))
    rows = table.scan().to_arrow().to_pylist()  # by PyIceberg itself
    assert [row["entries"] for row in rows][:2] == [200, 200]
    assert all(row["closed_at"] > analyses.began for row in rows[:2])
    (topic,) = catalog.load_table(("quire", "retention_what_if_topics")).scan().to_arrow().to_pylist()
    assert (topic["topic"], topic["bytes"]) == (TOPIC, sum(row["bytes"] for row in rows))
    marks = [str(one.summary["quire.mark-value"]) for one in table.snapshots() if one.summary is not None]
    assert {mark.split()[0] for mark in marks} == {"one", "two"}, "the rows of the first run are a snapshot"
    assert (analyses.output / "retention-what-if/two/report.html").exists()
    assert not (analyses.output / "retention-what-if/two/tables").exists()
