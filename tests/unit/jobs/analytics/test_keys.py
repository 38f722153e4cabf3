"""Runs over a part of a table, and over topics that are not there yet."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from quire_jobs.analytics import keys, reading
from quire_jobs.job import Outcome, parse_parameters
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


def test_a_namespace_without_topics_is_no_fault(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_unmatched", lambda parameters: parameters.topics)
    given: dict[str, Any] = {
        "topics": ["shop/orders/*"],
        "metadata": "etcd://e:2379",
        "output": f"file://{tmp_path}/out",
    }
    summary = keys.run(spark, parse_parameters(keys.Parameters, given | {"last": "1h"}), QuietProgress())
    assert summary.outcome is Outcome.SUCCEEDED
    assert summary.notes == ["no topic matches shop/orders/* yet"]
    assert "No topic matches shop/orders/* yet." in (tmp_path / "out/keys/report.html").read_text()
