"""Publishes the findings of an analysis: tables, a report, and numbers for machines. Decides nothing.

    tables         by Spark's tasks, see `output`
    report.html    one file without dependencies
    summary.json   the summary of the run
    metrics.prom   Prometheus text

A repeated run replaces its own files. Tables are written first and the files of the newest run last, so that
everything they refer to exists.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from quire_bookie.exposition.families import Families
from quire_bookie.exposition.rendering import classic_text
from quire_jobs.analytics.output import Output
from quire_jobs.analytics.report.page import Page, render
from quire_jobs.job import Problem, Progress, Summary

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

METRIC_SUBJECTS_MAX: Final = 100
"""Number of topics, keys or bookies with their own metrics: the first of each table."""


@dataclass(frozen=True, slots=True)
class Gauge:
    """One number of a run. `labels`: identify its subject."""

    name: str
    text: str
    value: float | int | None
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Findings:
    """All results of an analysis."""

    tables: Mapping[str, "DataFrame"]
    page: Page
    counts: Mapping[str, int | float] = field(default_factory=dict)
    gauges: Sequence[Gauge] = ()
    problems: Sequence[Problem] = ()
    notes: Sequence[str] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    done: int = 1


def publish(output: Output, findings: Findings, progress: Progress) -> Summary:
    """Write everything and return the summary of the run. Errors as `Output.replace`; QuireJobError."""
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
    """Return Prometheus text, without gauges that have no value. `..._made_seconds` shows the age of the file."""
    prefix = f"quire_analytics_{kind.replace('-', '_')}"
    families = Families()
    families.add(f"{prefix}_made_seconds", "gauge", "Time of the analysis, in seconds since 1970.", now_s, {})
    for one in gauges:
        if one.value is not None:
            families.add(f"{prefix}_{one.name}", "gauge", one.text, float(one.value), one.labels)
    return classic_text(families)


def of_rows(rows: Sequence[Mapping[str, Any]], label: str, column: str, name: str, text: str) -> list[Gauge]:
    """Return one gauge per row, for the first rows. `label`: name of the label and of the column with the subject."""
    return [Gauge(name, text, row[column], {label: str(row[label])}) for row in rows[:METRIC_SUBJECTS_MAX]]
