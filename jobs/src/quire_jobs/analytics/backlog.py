"""The kind `backlog`: unacknowledged entries of cursors, their holes, and when cursors drain or disks fill.

Each run adds its observations to `<output>/backlog/observations`; forecasts use the observations of several runs. An
observation has the time at which it was made: a late run of a schedule's slot observes the cluster's present state, not
its state at the slot's time.
"""

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import Field

from quire_jobs.analytics.output import Output, open_output
from quire_jobs.analytics.parameters import MetadataParameters
from quire_jobs.analytics.publishing import METRIC_SUBJECTS_MAX, Findings, Gauge, publish
from quire_jobs.analytics.report.bars import Bar, bars, histogram
from quire_jobs.analytics.report.charts import Axis, Series, curves
from quire_jobs.analytics.report.frame import COLOURS
from quire_jobs.analytics.report.markup import shortened
from quire_jobs.analytics.report.page import Advice, Cell, Level, Page, Section, Table, Tile
from quire_jobs.analytics.report.units import (
    byte_rate_text,
    bytes_text,
    count_text,
    duration_text,
    percent_text,
    rate_text,
    time_text,
)
from quire_jobs.job import Problem, Progress, Summary
from quire_jobs.quantities import Duration

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KIND = "backlog"
_AGES_S = (60, 600, 3600, 6 * 3600, 86400, 7 * 86400, 30 * 86400)
HOLES_BY = ("topic", "partition", "cursor", "ledger", "first")
Row = Mapping[str, Any]


class Parameters(MetadataParameters):
    """Show unacknowledged entries of cursors: backlog, ageing holes, when it drains or the disks fill."""

    window: Duration = Field(
        default=86400.0,
        gt=0,
        description="Compute rates and trends over this last period, e.g. 6h, with earlier runs within it.",
    )
    old: Duration = Field(
        default=3600.0, gt=0, description="Report holes and unacknowledged entries that are older than this, e.g. 30m."
    )
    disk_warning: Duration = Field(
        default=7 * 86400.0, gt=0, description="Report disks that will be full sooner than this, e.g. 7d."
    )


def run(spark: "SparkSession", parameters: Parameters, progress: Progress) -> Summary:
    """Run the analysis; see `quire_jobs.job`."""
    from quire_jobs.analytics import columns
    from quire_jobs.analytics.bookie_tables import read_bookies
    from quire_jobs.analytics.metadata_tables import MetadataTables
    from quire_jobs.analytics.reading import ClusterClients, ask_cluster, frame

    async def ask(clients: ClusterClients) -> tuple[MetadataTables, list[tuple[Any, ...]]]:
        # Read all topics, even if few are shown: all of them fill the disks.
        return await clients.tables(), await read_bookies(clients.access)

    output = open_output(KIND, parameters)
    progress.begin("reading metadata", None, "ledgers")
    read, bookies = ask_cluster(parameters, ask)
    progress.advance(len(read.ledgers))
    seen = BacklogTables(
        frame(spark, read.ledgers, columns.LEDGERS),
        frame(spark, read.cursors, columns.CURSORS),
        frame(spark, read.acked, columns.ACKED),
        frame(spark, bookies, columns.BOOKIES),
        time.time(),
    )
    problems = [Problem(subject=subject, reason=why, retry_helps=True) for subject, why in read.unreadable.items()]
    return analyse(spark, output, parameters, seen, problems, progress)


class BacklogTables:
    """The tables that the analysis uses. `at_s`: when they were read, in seconds since 1970."""

    def __init__(
        self, ledgers: "DataFrame", cursors: "DataFrame", acked: "DataFrame", bookies: "DataFrame", at_s: float
    ) -> None:
        self.ledgers = ledgers
        self.cursors = cursors
        self.acked = acked
        self.bookies = bookies
        self.at_s = at_s


def analyse(
    spark: "SparkSession",
    output: Output,
    parameters: Parameters,
    seen: BacklogTables,
    problems: Sequence[Problem],
    progress: Progress,
) -> Summary:
    """Return the summary of the analysis, after writing its tables and report."""
    from pyspark.sql import functions as F

    from quire_jobs.analytics.figures import backlog as figures
    from quire_jobs.analytics.figures.times import seconds

    now_s, window_s = parameters.now_s, parameters.window
    chosen = F.lit(True) if not parameters.topics else F.col("topic").rlike(_pattern(parameters.topics))
    rates = figures.ingest(seen.ledgers, now_s, window_s).persist()
    backlogs = figures.backlog(seen.ledgers, seen.cursors.where(chosen), seen.acked.where(chosen), now_s).persist()
    holes = figures.holes(seen.ledgers, seen.cursors.where(chosen), seen.acked.where(chosen), now_s).persist()
    kept = [rates, backlogs, holes]
    try:
        observed = [one.persist() for one in _observe(spark, output, seen.at_s, backlogs, seen.bookies)]
        kept += observed
        past_cursors, past_bookies = observed
        cursor_trends = figures.trend(past_cursors, ["topic", "partition", "cursor"], "backlog", seen.at_s, window_s)
        bookie_trends = figures.trend(past_bookies, ["bookie"], "used_bytes", seen.at_s, window_s)
        known = seen.bookies.where("total_bytes IS NOT NULL").count()
        stored_per_s = rates.agg(F.sum("stored_bytes_per_s")).collect()[0][0] or 0.0
        per_bookie = F.lit(stored_per_s / known if known else 0.0)
        drains = figures.drains(backlogs, cursor_trends, seen.at_s).join(rates, "topic", "left")
        drains = drains.orderBy(F.desc("backlog_bytes"), "topic", "partition", "cursor").persist()
        fills = figures.fills(seen.bookies, bookie_trends, per_bookie, seen.at_s)
        fills = fills.orderBy("fills_in_s", "bookie").persist()
        kept += [drains, fills]
        cursor_rows = [row.asDict() for row in drains.collect()]
        bookie_rows = [row.asDict() for row in fills.collect()]
        hole_rows = [row.asDict() for row in holes.orderBy(F.desc("age_s")).limit(200).collect()]
        at = seconds(F.col("observed_at"))
        past = past_cursors.where(at >= F.lit(seen.at_s - window_s)).withColumn("at_s", at).orderBy("at_s")
        past_rows = [row.asDict() for row in past.limit(20_000).collect()]
        findings = Findings(
            {"cursors": drains, "holes": holes.orderBy(*HOLES_BY), "bookies": fills, "rates": rates.orderBy("topic")},
            page(parameters, cursor_rows, bookie_rows, hole_rows, past_rows),
            totals(cursor_rows, bookie_rows),
            gauges(cursor_rows, bookie_rows),
            problems,
            done=len(cursor_rows) + len(bookie_rows),
        )
        return publish(output, findings, progress)
    finally:
        for frame in kept:
            frame.unpersist()


def _pattern(topics: Sequence[str]) -> str:
    """Return the patterns as one Java regular expression for whole topic names."""
    import re

    pieces = []
    for one in topics:
        name = one.removeprefix("persistent://")
        pieces.append("".join({"*": ".*", "?": "."}.get(letter, re.escape(letter)) for letter in name))
    return f"^persistent://({'|'.join(pieces)})$"


def _observe(
    spark: "SparkSession", output: Output, at_s: float, backlogs: "DataFrame", bookies: "DataFrame"
) -> list["DataFrame"]:
    """Store this run's observations; return those of all runs, of cursors and of bookies."""
    from datetime import UTC, datetime

    from pyspark.sql import functions as F

    seen = (F.lit(datetime.fromtimestamp(at_s, UTC)).alias("observed_at"), F.lit(output.run).alias("run"))
    cursors = backlogs.select(*seen, "topic", "partition", "cursor", "backlog", "backlog_bytes")
    used = (F.col("total_bytes") - F.col("free_bytes")).alias("used_bytes")
    disks = bookies.where("total_bytes IS NOT NULL").select(*seen, "bookie", used)
    found = []
    for name, current in (("cursors", cursors), ("bookies", disks)):
        past = output.observed(spark, name)
        output.observe(name, current)
        # For a repeated run the table has the observations of its first attempt; use the present ones once instead.
        others = None if past is None else past.where(F.col("run") != output.run).select(*current.columns)
        found.append(current if others is None else others.unionByName(current))
    return found


def totals(cursors: Sequence[Row], bookies: Sequence[Row]) -> dict[str, int | float]:
    """Return the numbers of the summary."""
    return {
        "cursors": len(cursors),
        "backlog_entries": sum(row["backlog"] for row in cursors),
        "backlog_bytes": sum(row["backlog_bytes"] for row in cursors),
        "holes": sum(row["holes"] for row in cursors),
        "cursors_ahead": sum(bool(row["ahead"]) for row in cursors),
        "cursors_growing": sum((row["per_s"] or 0) > 0 for row in cursors),
        "bookies": len(bookies),
    }


def gauges(cursors: Sequence[Row], bookies: Sequence[Row]) -> list[Gauge]:
    """Return metrics by cursor, largest backlogs first, and by bookie."""
    found = []
    for column, text in (
        ("backlog", "Entries that the cursor has not acknowledged."),
        ("backlog_bytes", "Their payload in bytes, estimated."),
        ("holes", "Runs of unacknowledged entries below an acknowledged one."),
        ("oldest_age_s", "Estimated age of the oldest unacknowledged entry."),
        ("drains_in_s", "Seconds until the backlog is empty, at the present rate."),
    ):
        for row in cursors[:METRIC_SUBJECTS_MAX]:
            labels = {"topic": row["topic"], "partition": str(row["partition"]), "cursor": row["cursor"]}
            found.append(Gauge(f"cursor_{column}", text, row[column], labels))
    for column, text in (("used_share", "Share of the disks in use."), ("fills_in_s", "Seconds until they are full.")):
        found += [Gauge(f"bookie_{column}", text, row[column], {"bookie": row["bookie"]}) for row in bookies]
    return found


def _name(row: Row) -> str:
    return f"{row['cursor']} of {_whole_topic(row)}"


def _whole_topic(row: Row) -> str:
    part = f"-partition-{row['partition']}" if row["partition"] is not None and row["partition"] >= 0 else ""
    return f"{row['topic']}{part}"


def page(
    parameters: Parameters,
    cursors: Sequence[Row],
    bookies: Sequence[Row],
    holes: Sequence[Row],
    past: Sequence[Row],
) -> Page:
    """Return the report."""
    total = totals(cursors, bookies)
    soonest = min((row["fills_in_s"] for row in bookies if row["fills_in_s"] is not None), default=None)
    oldest = max((row["oldest_age_s"] for row in cursors if row["oldest_age_s"] is not None), default=None)
    return Page(
        "Backlog",
        ", ".join(parameters.topics) or "all topics",
        parameters.now_s,
        advice(parameters, cursors, bookies),
        [
            Tile("Backlog", bytes_text(total["backlog_bytes"]), f"{count_text(total['backlog_entries'])} entries"),
            Tile("Oldest entry", duration_text(oldest), "not acknowledged"),
            Tile("Holes", count_text(total["holes"]), f"of {count_text(total['cursors'])} cursors"),
            Tile("First disk full in", duration_text(soonest), "at the present rate"),
        ],
        [
            _cursor_section(parameters, cursors),
            _past_section(cursors, past),
            _hole_section(holes),
            _disk_section(bookies),
        ],
        [
            "Read from metadata and, for open ledgers, from bookies without affecting the writer: the newest entries "
            "of an idle topic, and the last acknowledgements of a cursor, may not be counted yet.",
            "Ages are estimates, which assume that each ledger was written at a constant rate.",
            f"Trends are lines through the observations of the runs of the last {duration_text(parameters.window)}. A "
            "disk with a single observation is forecast from the published data, as if nothing were ever deleted.",
        ],
    )


def _cursor_section(parameters: Parameters, cursors: Sequence[Row]) -> Section:
    return Section(
        "Cursors",
        "Unacknowledged payload of each cursor. Rows without a forecast do not shrink, or were observed once.",
        bars(
            [Bar(_name(row), [row["backlog_bytes"]]) for row in cursors if row["backlog"]][: parameters.top],
            bytes_text,
            label="Backlog by cursor",
        ),
        Table(
            ("Cursor", "Topic", "Entries", "Payload", "Oldest", "Published", "Change", "Drained", "Holes", "Ahead"),
            [
                (
                    row["cursor"],
                    _whole_topic(row),
                    Cell(count_text(row["backlog"])),
                    Cell(bytes_text(row["backlog_bytes"])),
                    Cell(duration_text(row["oldest_age_s"])),
                    Cell(rate_text(row["entries_per_s"])),
                    Cell(_signed(row["per_s"])),
                    Cell("now" if not row["backlog"] else duration_text(row["drains_in_s"])),
                    Cell(count_text(row["holes"])),
                    "yes" if row["ahead"] else "",
                )
                for row in cursors
            ],
        ),
    )


def _signed(per_s: float | None) -> str:
    return rate_text(per_s) if per_s is None or per_s <= 0 else f"+{rate_text(per_s)}"


def _past_section(cursors: Sequence[Row], past: Sequence[Row]) -> Section:
    series = []
    for row in cursors[:COLOURS]:
        key = (row["topic"], row["partition"], row["cursor"])
        points = [
            (one["at_s"], one["backlog"]) for one in past if (one["topic"], one["partition"], one["cursor"]) == key
        ]
        series.append(Series(_name(row), points))
    return Section(
        "Backlog over time",
        "Entries of backlog; one point per run of this analysis.",
        curves(
            series,
            Axis("UTC", time_text, time=True),
            Axis("entries", count_text),
            label="Backlog over time",
            points=True,
        ),
    )


def _hole_section(holes: Sequence[Row]) -> Section:
    counts = [0] * (len(_AGES_S) + 1)
    for row in holes:
        counts[sum((row["age_s"] or 0) >= bound for bound in _AGES_S)] += 1
    names = [f"< {duration_text(bound)}" for bound in _AGES_S] + [f"≥ {duration_text(_AGES_S[-1])}"]
    return Section(
        "Holes by age",
        "A hole is a run of unacknowledged entries below an acknowledged one: messages that a consumer received and "
        "did not acknowledge. Old holes keep whole ledgers from being deleted.",
        histogram(list(zip(names, counts, strict=True)), count_text, label="Holes by age"),
        Table(
            ("Cursor", "Topic", "Ledger", "First", "Last", "Age"),
            [
                (
                    row["cursor"],
                    row["topic"],
                    Cell(str(row["ledger"])),
                    Cell(str(row["first"])),
                    Cell(str(row["last"])),
                    Cell(duration_text(row["age_s"])),
                )
                for row in holes
            ],
            folded=True,
        ),
    )


def _disk_section(bookies: Sequence[Row]) -> Section:
    return Section(
        "Disks of bookies",
        "",
        bars(
            [
                Bar(f"{row['bookie']} ({row['state']})", [row["used_bytes"], row["free_bytes"]])
                for row in bookies
                if row["total_bytes"]
            ],
            bytes_text,
            label="Space of bookies",
            parts=("used", "free"),
        ),
        Table(
            ("Bookie", "State", "Used", "Share", "Grows by", "Full in", "Remark"),
            [
                (
                    row["bookie"],
                    row["state"],
                    Cell(bytes_text(row["used_bytes"])),
                    Cell(percent_text(row["used_share"])),
                    Cell(byte_rate_text(row["per_s"])),
                    Cell(duration_text(row["fills_in_s"])),
                    row["reason"] or ("from published data" if row["from_ingest"] else ""),
                )
                for row in bookies
            ],
        ),
    )


def advice(parameters: Parameters, cursors: Sequence[Row], bookies: Sequence[Row]) -> list[Advice]:
    """Return advice for conspicuous cursors and bookies."""
    found = []
    for row in bookies:
        if row["fills_in_s"] is not None and row["fills_in_s"] < parameters.disk_warning:
            found.append(_fills(row))
        if row["reason"]:
            found.append(
                Advice(Level.WATCH, f"The space of bookie {shortened(row['bookie'], 60)} is unknown.", row["reason"])
            )
    for row in cursors:
        found += _cursor_advice(parameters, row)
    return found[:30] or [Advice(Level.GOOD, "Every cursor keeps up, and no disk fills soon.", "No action is needed.")]


def _fills(row: Row) -> Advice:
    """Return advice for a disk that fills soon. A forecast from published data alone ignores what is deleted."""
    name, left = shortened(row["bookie"], 60), duration_text(row["fills_in_s"])
    if row["from_ingest"]:
        return Advice(
            Level.WATCH,
            f"Bookie {name} would be full in {left} if nothing were deleted.",
            "Run this analysis again in some minutes: it then knows how much the disk really grows.",
        )
    return Advice(
        Level.ACT,
        f"Bookie {name} is full in {left}.",
        "Add bookies or disks, shorten retention, or offload; and reduce the backlogs below.",
    )


def _cursor_advice(parameters: Parameters, row: Row) -> list[Advice]:
    name, found = shortened(_name(row)), []
    if row["ahead"]:
        found.append(
            Advice(
                Level.ACT,
                f"{name} is ahead of the last known entry ({row['mark_ledger']}:{row['mark_entry']}).",
                "Compare it with the internal stats of the topic, which its broker answers. If they agree, consumers "
                "would skip new messages up to there: look for ledgers that a restore of metadata did not bring back "
                "(quire topic lost), before you reset the cursor to the last message.",
            )
        )
    if row["backlog"] and (row["per_s"] or 0) > 0 and (row["oldest_age_s"] or 0) > parameters.old:
        found.append(
            Advice(
                Level.ACT,
                f"The backlog of {name} grows by {rate_text(row['per_s'])}; its oldest entry is "
                f"{duration_text(row['oldest_age_s'])} old.",
                "Add consumers, or delete the subscription if it is unused: its topic is never trimmed.",
            )
        )
    if row["oldest_hole_age_s"] is not None and row["oldest_hole_age_s"] > parameters.old:
        found.append(
            Advice(
                Level.WATCH,
                f"{name} has {count_text(row['holes'])} holes; the oldest is "
                f"{duration_text(row['oldest_hole_age_s'])} old.",
                "Look for messages that a consumer cannot process; a dead letter topic removes them from the backlog.",
            )
        )
    if row["unreadable"]:
        found.append(Advice(Level.WATCH, f"The position of {name} may be older than shown.", row["unreadable"]))
    return found
