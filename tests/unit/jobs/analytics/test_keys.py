"""Runs over a part of a table."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from quire_jobs.analytics import keys
from quire_jobs.job import parse_parameters
from quire_jobs.tables import TableTarget, once_per_run, read_frame, write_frame
from tests.unit.jobs.analytics.conftest import at
from tests.unit.jobs.analytics.quiet_progress import QuietProgress
from tests.unit.jobs.analytics.small_tables import messages

AS_OF = "2026-11-22T12:00:00Z"


@pytest.mark.parametrize("ours", [False, True])
def test_the_last_hours_of_a_table_are_those_before_the_slot(spark: SparkSession, tmp_path: Path, ours: bool) -> None:
    times = ("2026-11-22 09:59:59", "2026-11-22 10:00", "2026-11-22 11:59:59", "2026-11-22 12:00")
    rows = messages(spark, *({"publish_time": at(time), "key": time} for time in times))
    url = f"file://{tmp_path}/messages"
    if ours:
        write_frame(rows, TableTarget.parse("parquet", url), once_per_run("a"))
    else:
        rows.write.parquet(url)
    given = {"messages": url, "output": f"file://{tmp_path}/out", "asOf": AS_OF, "last": "2h", "runId": "r"}
    summary = keys.run(spark, parse_parameters(keys.Parameters, given), QuietProgress())
    assert summary.counts["messages"] == 2 and summary.notes == []
    hot = TableTarget.parse("parquet", f"file://{tmp_path}/out/keys/r/tables/hot_keys")
    assert sorted(row.key for row in read_frame(spark, hot).collect()) == list(times[1:3])
