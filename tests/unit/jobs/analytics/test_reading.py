"""Whole runs where there is nothing to read yet."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from quire_jobs.analytics import reading
from quire_jobs.job import Outcome, parse_parameters
from quire_jobs.main.kinds import load_kind
from tests.unit.jobs.analytics.quiet_progress import QuietProgress


@pytest.mark.parametrize("name", ["keys", "schema-drift"])
def test_a_namespace_without_topics_is_no_fault(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(reading, "_unmatched", lambda parameters: parameters.topics)
    kind = load_kind(name)
    given: dict[str, Any] = {"topics": ["shop/orders/*"], "metadata": "etcd://e:2379", "last": "1h"}
    parameters = parse_parameters(kind.parameters, given | {"output": f"file://{tmp_path}/out"})
    summary = kind.run(spark, parameters, QuietProgress())
    assert summary.outcome is Outcome.SUCCEEDED
    assert summary.notes == ["no topic matches shop/orders/* yet"]
    report = (tmp_path / "out" / name / "report.html").read_text()
    assert "No topic matches shop/orders/* yet." in report and "✓" not in report, "nothing is said to be fine"
