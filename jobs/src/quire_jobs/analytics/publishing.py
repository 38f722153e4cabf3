"""What an analysis found, and how it is left behind: tables, a report, numbers for machines. Decides nothing.

    <output>/<kind>/<run>/tables/<name>/   Parquet, zstd
    <output>/<kind>/<run>/report.html      one file, needs nothing else
    <output>/<kind>/<run>/summary.json     the summary of the run
    <output>/<kind>/<run>/metrics.prom     Prometheus text
    <output>/<kind>/{report.html, summary.json, metrics.prom}   the same of the newest run

Spark writes the tables, so the small files take the same way, by the Hadoop file system of the output's URL: one set of
credentials. A run that is repeated replaces its own files, which are the same; the newest ones are written last.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from quire_bookie.metrics import Reading
from quire_bookie.metrics import render as render_metrics
from quire_jobs.analytics.parameters import AnalysisParameters
from quire_jobs.analytics.report.page import Page, render
from quire_jobs.errors import JobOptionsError
from quire_jobs.job import Problem, Progress, Summary

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

METRIC_SUBJECTS_MAX: Final = 100
"""Topics, keys or bookies that have metrics of their own: the first of each table."""
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


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


def publish(
    spark: "SparkSession", kind: str, parameters: AnalysisParameters, findings: Findings, progress: Progress
) -> Summary:
    """Write everything; the summary of the run. JobOptionsError: the output cannot be written."""
    run = safe_name(parameters.run_id) or datetime.fromtimestamp(parameters.now_s, UTC).strftime("%Y%m%dT%H%M%SZ")
    folder = f"{hadoop_url(parameters.output)}/{kind}"
    tables = {name: f"{folder}/{run}/tables/{name}" for name in findings.tables}
    progress.begin("writing tables", len(tables), "tables")
    with _told(parameters.output):
        for name, url in tables.items():
            findings.tables[name].coalesce(1).write.mode("overwrite").option("compression", "zstd").parquet(url)
            progress.advance(1)
        summary = Summary(
            kind=kind,
            run_id=parameters.run_id,
            counts=dict(findings.counts),
            outputs=[f"{folder}/{run}/report.html", *tables.values()],
            problems=list(findings.problems),
            notes=list(findings.notes),
            details=dict(findings.details),
            done=findings.done,
        )
        files = {
            "report.html": render(findings.page),
            "summary.json": json.dumps(summary.model_dump(mode="json"), ensure_ascii=False, indent=2) + "\n",
            "metrics.prom": metrics_text(kind, findings.gauges, parameters.now_s),
        }
        for place in (f"{folder}/{run}", folder):
            for name, text in files.items():
                write_text(spark, f"{place}/{name}", text)
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


def safe_name(text: str) -> str:
    """As a name of a folder: a colon, for one, means something else to Hadoop."""
    return _UNSAFE.sub("-", text).strip("-.")


def hadoop_url(url: str) -> str:
    """The URL as Hadoop's file systems know it."""
    return f"s3a://{url.removeprefix('s3://')}" if url.startswith("s3://") else url


def write_text(spark: "SparkSession", url: str, text: str) -> None:
    """Write a small file whole, replacing one of this name."""
    jvm: Any = spark.sparkContext._jvm  # Spark has no public way to a single file
    configuration: Any = spark.sparkContext._jsc
    path = jvm.org.apache.hadoop.fs.Path(url)
    stream = path.getFileSystem(configuration.hadoopConfiguration()).create(path, True)
    try:
        stream.write(bytearray(text.encode()))
    finally:
        stream.close()


@contextmanager
def _told(output: str) -> Iterator[None]:
    """What Hadoop says of an output that cannot be written, as an error for a person."""
    from py4j.protocol import Py4JJavaError

    try:
        yield
    except Py4JJavaError as error:
        reason = str(error.java_exception).partition("\n")[0][:300]
        raise JobOptionsError(f"output = {output!r} cannot be written: {reason}") from error
