"""Late runs of a schedule: their observations have the time at which they were made."""

import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from quire_jobs.analytics import backlog, columns
from quire_jobs.analytics.output import Output, open_output
from quire_jobs.job import Outcome, parse_parameters
from tests.unit.jobs.analytics.quiet_progress import QuietProgress
from tests.unit.jobs.analytics.small_tables import NOON, NOON_S, TOPIC, ledgers, one, table

HOUR_S = 3600.0


def run(spark: SparkSession, folder: Path, name: str, at_s: float, entries: int) -> Output:
    """Run noon's slot at the time `at_s`, with a cursor that has this many unacknowledged entries."""
    given = {"output": f"file://{folder}", "metadata": "etcd://e:2379", "asOf": NOON.isoformat(), "runId": name}
    parameters = parse_parameters(backlog.Parameters, given | {"window": "6h"})
    cursor = {"topic": TOPIC, "partition": -1, "cursor": "s", "mark_ledger": 1, "mark_entry": -1}
    seen = backlog.BacklogTables(
        ledgers(spark, {"ledger": 1, "entries": entries, "opened_at": NOON, "closed_at": NOON}),
        table(spark, columns.CURSORS, [cursor]),
        table(spark, columns.ACKED, []),
        table(spark, columns.BOOKIES, [{"bookie": "b", "state": "writable", "free_bytes": 9, "total_bytes": 10}]),
        at_s,
    )
    output = open_output(backlog.KIND, parameters)
    summary = backlog.analyse(spark, output, parameters, seen, [], QuietProgress())
    assert summary.outcome is Outcome.SUCCEEDED, summary
    return output


def test_observations_of_late_runs_are_compared_by_their_own_time(spark: SparkSession, tmp_path: Path) -> None:
    run(spark, tmp_path, "long-ago", NOON_S - HOUR_S, 900)  # outside the window of the later runs
    run(spark, tmp_path, "first", NOON_S + 10 * HOUR_S, 100)
    output = run(spark, tmp_path, "second", NOON_S + 11 * HOUR_S, 60)
    row = one(spark.read.parquet(f"{output.url}/second/tables/cursors/data"))
    assert row["observations"] == 2
    assert row["per_s"] == pytest.approx(-40 / HOUR_S), "both are runs of noon's slot, an hour apart"
    assert row["drains_in_s"] == pytest.approx(1.5 * HOUR_S)
    assert row["drained_at"].timestamp() == pytest.approx(NOON_S + 12.5 * HOUR_S)


def test_an_observation_has_the_present_time_and_not_that_of_the_slot(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from quire_jobs.analytics import reading
    from quire_jobs.analytics.metadata_tables import MetadataTables

    monkeypatch.setattr(reading, "ask_cluster", lambda *_: (MetadataTables(), [("b", "writable", 9, 10, None)]))
    given = {"output": f"file://{tmp_path}", "metadata": "etcd://e:2379", "asOf": NOON.isoformat(), "runId": "late"}
    parameters = parse_parameters(backlog.Parameters, given)
    before_s = time.time()
    backlog.run(spark, parameters, QuietProgress())
    past = Output(backlog.KIND, parameters).observed(spark, "bookies")
    assert past is not None
    assert before_s <= one(past)["observed_at"].timestamp() <= time.time()
