"""What an analysis found, and how it is left behind: tables, a report, numbers for machines. Decides nothing.

    tables         by Spark's tasks, see `output`
    report.html    one file, needs nothing else
    summary.json   the summary of the run
    metrics.prom   Prometheus text

A run that is repeated replaces its own files. Tables first, the files of the newest run last: what they say is there.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from quire_bookie.metrics import Reading
from quire_bookie.metrics import render as render_metrics
from quire_jobs.analytics.output import Output
from quire_jobs.analytics.report.page import Page, render
from quire_jobs.job import Problem, Progress, Summary

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

METRIC_SUBJECTS_MAX: Final = 100
"""Topics, keys or bookies that have metrics of their own: the first of each table."""


@dataclass(frozen=True, slots=True)
class Gauge:
    """One number of a run. `labels`: by the subject's name."""

    name: str
    text: str
    value: float | int | None
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Findings:
    """All that an analysis found."""

    tables: Mapping[str, "DataFrame"]
    page: Page
    counts: Mapping[str, int | float] = field(default_factory=dict)
    gauges: Sequence[Gauge] = ()
    problems: Sequence[Problem] = ()
    notes: Sequence[str] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    done: int = 1


def publish(output: Output, findings: Findings, progress: Progress) -> Summary:
    """Write everything; the summary of the run. Errors as `Output.replace`; QuireJobError."""
    progress.begin("writing tables", len(findings.tables), "tables")
    written = []
    for name, frame in findings.tables.items():
        written.append(output.replace(name, frame))
        progress.advance(1)
    summary = Summary(
        kind=output.kind,
        run_id=output.parameters.run_id,
        counts=dict(findings.counts),
        outputs=[f"{output.url}/{output.run}/report.html", *written],
        problems=list(findings.problems),
        notes=list(findings.notes),
        details=dict(findings.details),
        done=findings.done,
    )
    output.put(
        {
            "report.html": render(findings.page),
            "summary.json": json.dumps(summary.model_dump(mode="json"), ensure_ascii=False, indent=2) + "\n",
            "metrics.prom": metrics_text(output.kind, findings.gauges, output.parameters.now_s),
        }
    )
    return summary


def metrics_text(kind: str, gauges: Sequence[Gauge], now_s: float) -> str:
    """Prometheus text; what has no value is left out. `..._made_seconds` tells an old file from a new one."""
    prefix = f"quire_analytics_{kind.replace('-', '_')}"
    readings = [Reading(f"{prefix}_made_seconds", "gauge", "When the analysis was made, since 1970.", now_s)]
    readings += [
        Reading(f"{prefix}_{one.name}", "gauge", one.text, float(one.value), one.labels)
        for one in gauges
        if one.value is not None
    ]
    return render_metrics(readings)


def of_rows(rows: Sequence[Mapping[str, Any]], label: str, column: str, name: str, text: str) -> list[Gauge]:
    """A gauge a row, of the first rows; `label` names both the label and the column with the subject."""
    return [Gauge(name, text, row[column], {label: str(row[label])}) for row in rows[:METRIC_SUBJECTS_MAX]]
