"""Runs that find nothing to read, and the cursor that retains the entries during a run."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from quire_jobs.analytics import reading
from quire_jobs.analytics.parameters import MessageParameters
from quire_jobs.analytics.reading import cursor_owner
from quire_jobs.errors import DataLossError, QuireJobError, retry_helps
from quire_jobs.job import Outcome, parse_parameters
from quire_jobs.main.kinds import load_kind
from quire_jobs.source.subjects import Subjects
from tests.unit.jobs.analytics.quiet_progress import QuietProgress


@pytest.mark.parametrize("name", ["keys", "schema-drift"])
def test_a_namespace_without_topics_is_not_an_error(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(reading, "_named", lambda parameters: Subjects({}, parameters.topics))
    kind = load_kind(name)
    given: dict[str, Any] = {"topics": ["shop/orders/*"], "metadata": "etcd://e:2379", "last": "1h"}
    parameters = parse_parameters(kind.parameters, given | {"output": f"file://{tmp_path}/out"})
    summary = kind.run(spark, parameters, QuietProgress())
    assert summary.outcome is Outcome.SUCCEEDED
    assert summary.notes == ["no topic matches shop/orders/* yet"]
    report = (tmp_path / "out" / name / "report.html").read_text()
    assert "No topic matches shop/orders/* yet." in report and "✓" not in report, (
        "the report must not show a check mark"
    )


def test_a_run_whose_messages_were_trimmed_is_retryable(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_named", lambda parameters: Subjects({}, parameters.topics))
    given: dict[str, Any] = {"topics": ["shop/orders/*"], "metadata": "etcd://e:2379", "output": "file:///reports"}
    parameters = parse_parameters(MessageParameters, given)
    with (
        pytest.raises(QuireJobError, match="ledger 7 is gone; the next run lists the ledgers again") as raised,
        reading.read_messages(spark, "keys", parameters, ("topic",)),
    ):
        raise DataLossError("ledger 7 is gone")
    assert retry_helps(raised.value)


def owner_of(kind: str = "keys", **given: Any) -> str:
    """Return the cursor owner of a run with `last`, after its bounds were read, as they are before a cursor is made."""
    usual = {"topics": ["shop/orders/*"], "metadata": "etcd://e:2379", "last": "1h", "output": "file:///reports"}
    parameters = parse_parameters(MessageParameters, usual | given)
    assert parameters.bounds[0] is not None
    return cursor_owner(kind, parameters)


def test_runs_and_slots_of_a_job_share_a_cursor_and_jobs_with_other_bounds_do_not() -> None:
    slots = [datetime(2026, 11, 23, hour, tzinfo=UTC).isoformat() for hour in (1, 2)]
    assert len({owner_of(), *(owner_of(asOf=slot, runId=f"keys-{slot}") for slot in slots)}) == 1
    bounded: dict[str, Any] = {"last": None, "startTime": slots[0], "endTime": slots[1]}
    others = [owner_of(last="24h"), owner_of(topics=["shop/orders/a"]), owner_of("throughput"), owner_of(**bounded)]
    assert len({owner_of(), *others}) == 5
