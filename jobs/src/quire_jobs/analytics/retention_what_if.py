"""The kind `retention-what-if`: the effect of other retentions, now and in the long run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import Field, TypeAdapter, ValidationError, field_validator

from quire_jobs.analytics.output import Output, open_output
from quire_jobs.analytics.parameters import MetadataParameters
from quire_jobs.analytics.publishing import METRIC_SUBJECTS_MAX, Findings, Gauge, publish
from quire_jobs.analytics.report.bars import Bar, bars
from quire_jobs.analytics.report.charts import Axis, Series, curves
from quire_jobs.analytics.report.frame import COLOURS
from quire_jobs.analytics.report.markup import shortened
from quire_jobs.analytics.report.page import Advice, Cell, Level, Page, Section, Table, Tile
from quire_jobs.analytics.report.units import byte_rate_text, bytes_text, count_text, duration_text, percent_text
from quire_jobs.job import Problem, Progress, Summary
from quire_jobs.quantities import Duration, Size

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KIND = "retention-what-if"
UNLIMITED = -1
_HELD_SHARE = 0.2
_FREED_SHARE = 0.01
_HELD_S = 3600.0
"""Messages of the last hour may wait for an acknowledgement."""
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Option:
    """A retention. -1: no limit; 0: keeps nothing once it is acknowledged."""

    name: str
    retention_s: float
    retention_bytes: int


def parse_option(text: str) -> Option:
    """Return the option for `7d`, `7d/100Gi`, `inf/100Gi` or `0`. ValueError."""
    time, slash, size = text.strip().partition("/")
    try:
        seconds = UNLIMITED if time == "inf" else TypeAdapter(Duration).validate_python(time)
        bytes_ = UNLIMITED
        if slash and size != "inf":
            bytes_ = TypeAdapter(Size).validate_python(size)
        elif not slash and seconds == 0:
            bytes_ = 0
    except ValidationError as error:
        reason = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise ValueError(f"{text!r}: {reason}; give a time or time/size, e.g. 7d or inf/100Gi") from error
    return Option(text.strip(), seconds, bytes_)


class Parameters(MetadataParameters):
    """Show what other retentions would keep and free, by topic."""

    options: tuple[str, ...] = Field(
        default=("0", "1h", "1d", "3d", "7d", "30d"),
        min_length=1,
        max_length=20,
        description="Retentions to compare: time or time/size, e.g. 7d, inf/100Gi; 0 keeps no acknowledged data.",
    )
    window: Duration = Field(default=86400.0, gt=0, description="Compute rates over this last period, e.g. 1d.")

    @field_validator("options")
    @classmethod
    def _are_retentions(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for one in value:
            parse_option(one)
        if len(set(value)) != len(value):
            raise ValueError("a retention is given twice; give each once")
        return value


def run(spark: "SparkSession", parameters: Parameters, progress: Progress) -> Summary:
    """Run the analysis; see `quire_jobs.job`."""
    from quire_jobs.analytics import columns
    from quire_jobs.analytics.reading import ask_cluster, frame

    output = open_output(KIND, parameters)
    progress.begin("reading metadata", None, "ledgers")
    read = ask_cluster(parameters, lambda clients: clients.tables(parameters.topics))
    progress.advance(len(read.ledgers))
    ledgers = frame(spark, read.ledgers, columns.LEDGERS)
    cursors = frame(spark, read.cursors, columns.CURSORS)
    problems = [Problem(subject=subject, reason=why, retry_helps=True) for subject, why in read.unreadable.items()]
    return analyse(spark, output, parameters, ledgers, cursors, problems, progress)


def analyse(
    spark: "SparkSession",
    output: Output,
    parameters: Parameters,
    ledgers: "DataFrame",
    cursors: "DataFrame",
    problems: Sequence[Problem],
    progress: Progress,
) -> Summary:
    """Return the summary of the analysis, after writing its tables and report."""
    from pyspark.sql import functions as F

    from quire_broker.managed_ledger.cursors.registry import BROKER_CURSORS
    from quire_jobs.analytics.figures import retention as figures
    from quire_jobs.analytics.figures.backlog import ingest
    from quire_jobs.analytics.reading import frame

    options = [parse_option(one) for one in parameters.options]
    rows = [(one.name, float(one.retention_s), int(one.retention_bytes)) for one in options]
    tried = frame(spark, rows, "option string, retention_s double, retention_bytes long")
    slow = figures.slowest(cursors, BROKER_CURSORS)
    evaluated = figures.evaluated(ledgers, slow, tried, parameters.now_s).persist()
    try:
        kept = figures.kept(evaluated)
        rates = ingest(ledgers, parameters.now_s, parameters.window)
        result = kept.join(figures.steady(rates, tried), ["option", "topic"], "left").join(
            rates.select("topic", "bytes_per_s"), "topic", "left"
        )
        result = result.orderBy("option", F.desc("bytes_freed"), "topic").persist()
        topic_rows = [row.asDict() for row in result.collect()]
        findings = Findings(
            {"topics": result, "ledgers": evaluated.orderBy("option", "topic", "partition", "ledger")},
            page(parameters, options, topic_rows),
            totals(options, topic_rows),
            gauges(topic_rows),
            problems,
            done=len(topic_rows),
        )
        return publish(output, findings, progress)
    finally:
        evaluated.unpersist()


def _sums(options: Sequence[Option], rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return sums over all topics by option, in the given order; `steady_bytes` is None if a topic grows without
    limit."""
    found = []
    for option in options:
        members = [row for row in rows if row["option"] == option.name]
        steady = [row["steady_bytes"] for row in members]
        names = ("bytes", "bytes_kept", "bytes_freed", "stored_bytes_freed", "bytes_held_by_cursors", "ledgers_kept")
        sums: dict[str, Any] = {name: sum(row[name] for row in members) for name in names}
        sums["steady_bytes"] = None if any(one is None for one in steady) else sum(steady)
        found.append({"option": option.name} | sums)
    return found


def totals(options: Sequence[Option], rows: Sequence[Row]) -> dict[str, int | float]:
    """Return the numbers of the summary."""
    sums = _sums(options, rows)
    return {
        "topics": len({row["topic"] for row in rows}),
        "size_bytes": sums[0]["bytes"],
        "most_freed_bytes": max(one["bytes_freed"] for one in sums),
        "held_by_cursors_bytes": max(one["bytes_held_by_cursors"] for one in sums),
    }


def gauges(rows: Sequence[Row]) -> list[Gauge]:
    """Return metrics by option and topic."""
    found = []
    topics = list(dict.fromkeys(row["topic"] for row in rows))[:METRIC_SUBJECTS_MAX]
    for column, text in (
        ("bytes_kept", "Payload that the retention keeps."),
        ("bytes_freed", "Payload that it frees."),
    ):
        found += [
            Gauge(f"topic_{column}", text, row[column], {"topic": row["topic"], "option": row["option"]})
            for row in rows
            if row["topic"] in topics
        ]
    return found


def page(parameters: Parameters, options: Sequence[Option], rows: Sequence[Row]) -> Page:
    """Return the report."""
    sums = _sums(options, rows)
    total = totals(options, rows)
    rate = sum({row["topic"]: row["bytes_per_s"] or 0.0 for row in rows}.values())
    return Page(
        "Retention: what if",
        ", ".join(parameters.topics) or "all topics",
        parameters.now_s,
        advice(sums, rows),
        [
            Tile("Payload now", bytes_text(total["size_bytes"]), f"in {count_text(total['topics'])} topics"),
            Tile("Published", byte_rate_text(rate), f"mean of the last {duration_text(parameters.window)}"),
            Tile("Could be freed", bytes_text(total["most_freed_bytes"]), "by the shortest of these retentions"),
            Tile("Kept only by cursors", bytes_text(total["held_by_cursors_bytes"]), "no retention frees it"),
        ],
        [
            Section(
                "What each retention keeps now",
                "Payload of all topics. Acknowledging or deleting subscriptions would free data that only cursors keep."
                "",
                bars(
                    [
                        Bar(
                            one["option"],
                            [
                                one["bytes_kept"] - one["bytes_held_by_cursors"],
                                one["bytes_held_by_cursors"],
                                one["bytes_freed"],
                            ],
                        )
                        for one in sums
                    ],
                    bytes_text,
                    label="Payload kept and freed by retention",
                    parts=("kept by the retention", "kept only by cursors", "freed"),
                ),
                Table(
                    ("Retention", "Kept", "Freed", "Freed on disks", "Kept by cursors", "In the long run"),
                    [
                        (
                            one["option"],
                            Cell(bytes_text(one["bytes_kept"])),
                            Cell(bytes_text(one["bytes_freed"])),
                            Cell(bytes_text(one["stored_bytes_freed"])),
                            Cell(bytes_text(one["bytes_held_by_cursors"])),
                            Cell(
                                "grows without limit"
                                if one["steady_bytes"] is None
                                else bytes_text(one["steady_bytes"])
                            ),
                        )
                        for one in sums
                    ],
                ),
            ),
            _curve(options, rows),
            _topic_section(rows),
        ],
        [
            "The rules are the brokers': whole ledgers are deleted, from the oldest, once every cursor has passed them "
            "and one of the two limits no longer keeps them; the newest stays. Without a subscription nothing is "
            "deleted unless a limit is set.",
            f"In the long run: the rate of the last {duration_text(parameters.window)} times the retention time, or "
            "the retention size; as if every cursor kept up.",
        ],
    )


def _curve(options: Sequence[Option], rows: Sequence[Row]) -> Section:
    by_time = sorted((one for one in options if one.retention_s > 0), key=lambda one: one.retention_s)
    largest = sorted({row["topic"]: row["bytes"] for row in rows}.items(), key=lambda one: (-one[1], one[0]))[:COLOURS]
    kept = {(row["topic"], row["option"]): row["bytes_kept"] for row in rows}
    return Section(
        "Space by retention time",
        "Payload kept now, by retention time; the largest topics.",
        curves(
            [
                Series(topic, [(one.retention_s, kept.get((topic, one.name), 0)) for one in by_time])
                for topic, _ in largest
            ],
            Axis("retention", duration_text, log=True),
            Axis("payload kept", bytes_text, binary=True),
            label="Kept payload by retention time",
            points=True,
        ),
    )


def _topic_section(rows: Sequence[Row]) -> Section:
    return Section(
        "By topic",
        "",
        table=Table(
            ("Topic", "Retention", "Now", "Kept", "Freed", "Kept by cursors", "In the long run"),
            [
                (
                    row["topic"],
                    row["option"],
                    Cell(bytes_text(row["bytes"])),
                    Cell(bytes_text(row["bytes_kept"])),
                    Cell(bytes_text(row["bytes_freed"])),
                    Cell(bytes_text(row["bytes_held_by_cursors"])),
                    Cell("grows without limit" if row["steady_bytes"] is None else bytes_text(row["steady_bytes"])),
                )
                for row in rows
            ],
            folded=True,
        ),
    )


def advice(sums: Sequence[Row], rows: Sequence[Row]) -> list[Advice]:
    """Return advice for conspicuous topics."""
    if not rows:
        return [Advice(Level.WATCH, "No topic has a ledger.", "Check the names of the topics.")]
    found = []
    best = max(sums, key=lambda one: one["bytes_freed"])
    if best["bytes_freed"] > _FREED_SHARE * best["bytes"]:
        share = percent_text(best["bytes_freed"] / best["bytes"])
        found.append(
            Advice(
                Level.WATCH,
                f"A retention of {best['option']} would free {bytes_text(best['bytes_freed'])}, {share} of all.",
                "Compare the options below. Set one in the namespace's policy only if no client reads older messages: "
                "trimming deletes them permanently.",
            )
        )
    long = {one["option"] for one in sums if parse_option(one["option"]).retention_s >= _HELD_S}
    waiting = (row for row in rows if row["option"] in long)
    held = max(waiting, key=lambda row: row["bytes_held_by_cursors"], default=None)
    if held is not None and held["bytes"] and held["bytes_held_by_cursors"] > _HELD_SHARE * held["bytes"]:
        found.append(
            Advice(
                Level.ACT,
                f"{bytes_text(held['bytes_held_by_cursors'])} of {shortened(held['topic'])}, older than "
                f"{held['option']}, are kept by a cursor.",
                "No retention frees them: see the report `backlog`; acknowledge or expire messages, or delete the "
                "subscription.",
            )
        )
    return found or [Advice(Level.GOOD, "None of these retentions frees anything now.", "No action is needed.")]
