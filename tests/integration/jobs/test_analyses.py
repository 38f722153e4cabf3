"""Whole analyses of a running cluster: what metadata, bookies and a bucket say, down to tables, summary and report."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pulsar")
pytest.importorskip("pyspark")

import pulsar
from pyspark.sql import SparkSession

from quire_jobs.analytics import audit
from quire_jobs.job import JobParameters, Outcome, Summary, parse_parameters
from quire_jobs.main.kinds import load_kind
from tests.integration.jobs.conftest import Cluster
from tests.unit.jobs.analytics.quiet_progress import QuietProgress

NAME = "public/default/analysed"
TOPIC = f"persistent://{NAME}"
ORPHAN = "0f1e2d3c-4b5a-4978-8695-a4b3c2d1e0f0-ledger-1"
PAYLOAD = 1000


@dataclass(frozen=True)
class Analyses:
    """Runs kinds of jobs against the cluster. `bucket`: the folder that the topic was offloaded into."""

    spark: SparkSession
    cluster: Cluster
    output: Path
    bucket: Path

    def run(self, kind: str, **given: Any) -> Summary:
        """One run, and that its files are there."""
        chosen = load_kind(kind)
        given = {"metadata": self.cluster.metadata, "runId": f"{kind}-1"} | given
        if kind != "offload":
            given |= {"output": f"file://{self.output}"}
        parameters: JobParameters = parse_parameters(chosen.parameters, given)
        summary = chosen.run(self.spark, parameters, QuietProgress())
        if kind != "offload":
            folder = self.output / kind / f"{kind}-1"
            assert json.loads((folder / "summary.json").read_text())["counts"] == summary.counts
            assert "<h1>" in (folder / "report.html").read_text()
            assert (folder / "metrics.prom").read_text().startswith("# HELP")
            for url in summary.outputs[1:]:
                self.spark.read.parquet(url).count()
        return summary

    def rows(self, kind: str, table: str) -> list[dict[str, Any]]:
        """Of a table of the run."""
        url = f"file://{self.output}/{kind}/{kind}-1/tables/{table}"
        return [row.asDict() for row in self.spark.read.parquet(url).collect()]


@pytest.fixture(scope="module")
def analyses(
    spark: SparkSession,
    cluster: Cluster,
    client: Any,
    publish: Callable[..., None],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Analyses]:
    """450 messages in three ledgers, the first two offloaded; of the first ten all but the third acknowledged."""
    folder = tmp_path_factory.mktemp("analyses")
    (folder / "bucket").mkdir()
    consumer = client.subscribe(TOPIC, "billing", pulsar.ConsumerType.Shared)
    keys = [f"k{number % 5}" for number in range(450)]
    publish(TOPIC, [b"x" * PAYLOAD] * 450, keys, batching_enabled=False)
    for number in range(10):
        message = consumer.receive(timeout_millis=60_000)
        if number != 2:
            consumer.acknowledge(message)
    consumer.close()
    # Now all is in the store: bookies hear of the last entries of a pausing writer late.
    cluster.process.request("PUT", f"/admin/v2/persistent/{NAME}/unload")
    made = Analyses(spark, cluster, folder / "out", folder / "bucket")
    offloaded = made.run("offload", target=f"file://{made.bucket}", http=cluster.process.http, topics=[TOPIC])
    assert offloaded.outcome is Outcome.SUCCEEDED and offloaded.counts["ledgers_offloaded"] == 2, offloaded
    yield made


def test_an_audit_finds_what_is_wrong_and_nothing_else(analyses: Analyses) -> None:
    found = analyses.run("audit", deepLedgers=2)
    # The bookies of a standalone have no HTTP port: they are unknown, and nothing is said of their replicas.
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
    objects = {row["kind"]: row["subject"] for row in analyses.rows("audit", "findings") if "object" in row["kind"]}
    assert objects == {"missing object": index.name, "orphan object": ORPHAN}
    assert audit.REMEDIES["missing object"] in (analyses.output / "audit/report.html").read_text()


def test_the_backlog_is_what_the_cursor_has_left_with_its_hole(analyses: Analyses) -> None:
    summary = analyses.run("backlog", topics=[NAME])
    assert summary.problems == []
    assert summary.counts["bookies"] == 3
    (row,) = [row for row in analyses.rows("backlog", "cursors") if row["cursor"] == "billing"]
    assert (row["topic"], row["holes"], row["hole_entries"], row["ahead"]) == (TOPIC, 1, 1, False)
    assert row["unreadable"] is None
    assert row["backlog"] == 441 and row["backlog_bytes"] >= 441 * PAYLOAD
    disks = analyses.rows("backlog", "bookies")
    assert len(disks) == 3 and all(0 < disk["free_bytes"] < disk["total_bytes"] for disk in disks)
    assert len(analyses.spark.read.parquet(f"file://{analyses.output}/backlog/observations/cursors").collect()) == 1


def test_costs_are_of_both_tiers(analyses: Analyses) -> None:
    summary = analyses.run("cost", topics=[NAME], priceBookies=0.1, priceObjectStore=0.02)
    assert summary.outcome is Outcome.SUCCEEDED
    rows = {row["tier"]: row for row in analyses.rows("cost", "topics")}
    assert rows["object-store"]["entries"] == 400 and rows["object-store"]["ledgers"] == 2
    assert rows["object-store"]["stored_bytes"] >= 400 * PAYLOAD
    assert rows["bookies"]["ledgers"] >= 3 and rows["bookies"]["stored_bytes"] > rows["object-store"]["stored_bytes"]
    assert rows["bookies"]["tenant"] == "public" and rows["bookies"]["cost_per_month"] > 0


def test_a_shorter_retention_frees_nothing_that_the_cursor_holds(analyses: Analyses) -> None:
    summary = analyses.run("retention-what-if", topics=[NAME], options=["0", "inf"])
    assert summary.outcome is Outcome.SUCCEEDED
    rows = {row["option"]: row for row in analyses.rows("retention-what-if", "topics")}
    assert rows["0"]["bytes_freed"] == 0 and rows["0"]["ledgers_kept"] >= 3
    assert rows["0"]["bytes_held_by_cursors"] >= 400 * PAYLOAD
    assert rows["inf"]["bytes_held_by_cursors"] == 0
