"""The kind `throughput`: how much was published, when, and in messages of which size."""

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import Field

from quire_jobs.analytics import message_subject
from quire_jobs.analytics.message_subject import subject
from quire_jobs.analytics.output import Output, open_output
from quire_jobs.analytics.parameters import MessageParameters
from quire_jobs.analytics.publishing import Findings, Gauge, of_rows, publish
from quire_jobs.analytics.report.bars import Bar, bars, heat_map, histogram
from quire_jobs.analytics.report.charts import Series, stacked_over_time
from quire_jobs.analytics.report.markup import shortened
from quire_jobs.analytics.report.page import Advice, Cell, Level, Page, Section, Table, Tile
from quire_jobs.analytics.report.units import (
    byte_rate_text,
    bytes_text,
    count_text,
    duration_text,
    factor_text,
    percent_text,
    rate_text,
    time_text,
)
from quire_jobs.job import Progress, Summary
from quire_jobs.quantities import Duration

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from quire_jobs.analytics.reading import Messages

KIND = "throughput"
_SPIKE = 10.0
_SPIKE_PER_S = 10.0
"""A lower peak is no load for any consumer or quota."""
_QUIET_SHARE = 0.1
_SMALL_BYTES = 256
_SMALL_PER_S = 1000.0
_BATCHED = 10.0
"""Messages in an entry above which larger batches save little."""
_LARGE_BYTES = 1 << 20
_SERIES = 7
_ADVICE_MAX = 15
Row = Mapping[str, Any]


class Parameters(MessageParameters):
    """Show how much is published when: rates, sizes and peaks by topic and hour."""

    clock_tolerance: Duration = Field(
        default=3600.0,
        description="Treat a publish time further than this outside its ledger's time as a wrong clock, e.g. 1h.",
    )


def run(spark: "SparkSession", parameters: Parameters, progress: Progress) -> Summary:
    """Run the analysis; see `quire_jobs.job`."""
    from quire_jobs.analytics.reading import read_messages

    output = open_output(KIND, parameters)
    names = ("topic", "partition", "ledger", "batch_index", "publish_time", "size")
    with read_messages(spark, KIND, parameters, names) as messages:
        return analyse(spark, output, parameters, messages, progress)


def analyse(
    spark: "SparkSession", output: Output, parameters: Parameters, messages: "Messages", progress: Progress
) -> Summary:
    """Return the summary of the analysis, after writing its tables and report."""
    from pyspark.sql import functions as F

    from quire_jobs.analytics.figures import throughput as figures

    progress.begin("reading messages", None, "messages")
    # A late run of a slot finds messages published after the slot: their clocks are not wrong.
    latest_s = max(parameters.now_s, time.time())
    skewed = figures.with_skew(messages.rows, _spans(spark, parameters), latest_s)
    minutes = figures.by_minute(skewed, parameters.clock_tolerance).persist()
    try:
        hours = figures.by_hour(minutes).orderBy("topic", "hour_s")
        topics = figures.by_topic(minutes).orderBy(F.desc("bytes"), "topic")
        topic_rows = [row.asDict() for row in topics.collect()]
        progress.advance(sum(row["messages"] for row in topic_rows))
        busiest = [row["topic"] for row in topic_rows[: parameters.top]]
        hour_rows = [row.asDict() for row in hours.where(F.col("topic").isin(busiest)).orderBy("hour_s").collect()]
        day_rows = [row.asDict() for row in figures.by_hour_of_day(hours).where(F.col("topic").isin(busiest)).collect()]
        sizes = figures.sizes(minutes).orderBy("size_from")
        size_rows = [row.asDict() for row in sizes.collect()]
        tables = {"topics": topics.drop("peak_minute_s"), "hours": hours.drop("hour_s"), "sizes": sizes}
        notes = message_subject.notes(parameters, messages.unmatched, empty=not topic_rows)
        findings = Findings(
            tables,
            page(parameters, topic_rows, hour_rows, day_rows, size_rows, notes),
            counts(topic_rows),
            gauges(topic_rows),
            notes=notes,
            details={"busiest": busiest},
        )
        return publish(output, findings, progress)
    finally:
        minutes.unpersist()


def _spans(spark: "SparkSession", parameters: Parameters) -> "DataFrame | None":
    """Return when each ledger was written, by the cluster's clocks; None without a cluster."""
    if not parameters.metadata:
        return None
    from quire_jobs.analytics import columns
    from quire_jobs.analytics.figures.throughput import writing_spans
    from quire_jobs.analytics.reading import ask_cluster, frame

    tables = ask_cluster(parameters, lambda clients: clients.tables())
    return writing_spans(frame(spark, tables.ledgers, columns.LEDGERS))


def counts(topics: Sequence[Row]) -> dict[str, int | float]:
    """Return the numbers of the summary."""
    return {
        "topics": len(topics),
        "messages": sum(row["messages"] for row in topics),
        "size_bytes": sum(row["bytes"] for row in topics),
        "without_usable_time": sum(row["without_usable_time"] for row in topics),
    }


def gauges(topics: Sequence[Row]) -> list[Gauge]:
    """Return metrics, largest topics first."""
    found = [Gauge(name, f"{name} of all topics.", value) for name, value in counts(topics).items()]
    for column, text in (
        ("messages_per_s", "Mean rate of messages, from the first to the last."),
        ("bytes_per_s", "Mean rate of payload bytes, from the first message to the last."),
        ("peak_messages_per_s", "Rate of messages in the busiest minute."),
        ("peak_bytes_per_s", "Rate of payload bytes in the minute with the most bytes."),
        ("size_p99", "Size in bytes that 99 % of messages do not exceed."),
    ):
        found += of_rows(topics, "topic", column, f"topic_{column}", text)
    return found


def page(
    parameters: Parameters,
    topics: Sequence[Row],
    hours: Sequence[Row],
    days: Sequence[Row],
    sizes: Sequence[Row],
    notes: Sequence[str] = (),
) -> Page:
    """Return the report. `notes`: notes of the run."""
    total = counts(topics)
    peak = max(topics, key=lambda row: row["peak_bytes_per_s"] or 0, default=None)
    shown = [row["topic"] for row in topics[: min(_SERIES, parameters.top)]]
    return Page(
        "Throughput",
        subject(parameters),
        parameters.now_s,
        message_subject.advice(notes) + (advice(topics, parameters.clock_tolerance) if topics else []),
        [
            Tile("Messages", count_text(total["messages"]), f"in {count_text(total['topics'])} topics"),
            Tile("Payload", bytes_text(total["size_bytes"])),
            Tile(
                "Busiest minute",
                byte_rate_text(None if peak is None else peak["peak_bytes_per_s"]),
                "" if peak is None else f"{shortened(peak['topic'], 60)}, {time_text(peak['peak_minute_s'])}",
            ),
            Tile("Without usable time", count_text(total["without_usable_time"]), "counted, but in no rate"),
        ],
        [
            Section(
                "Published over time",
                "Payload bytes per second, mean of each hour; the largest topics, stacked.",
                stacked_over_time(
                    [
                        Series(name, [(row["hour_s"], row["bytes_per_s"]) for row in hours if row["topic"] == name])
                        for name in shown
                    ],
                    byte_rate_text,
                    step_s=3600,
                    label="Payload bytes per second by hour and topic",
                    binary=True,
                ),
            ),
            Section(
                "Hours of the day",
                "Messages per second, mean over all days, in UTC. Dark columns are the busiest hours.",
                _heat(parameters, topics, days),
            ),
            Section(
                "Topics",
                "Peak: the busiest minute. Active: share of minutes with at least one message, from the first to the "
                "last.",
                bars(
                    [Bar(row["topic"], [row["bytes"]]) for row in topics[: parameters.top]],
                    bytes_text,
                    label="Payload bytes by topic",
                ),
                _table(topics),
            ),
            _size_section(sizes),
        ],
        [
            "Times are those that producers set in messages, in UTC. A time further than "
            f"{duration_text(parameters.clock_tolerance)} outside the period in which the message's ledger was written "
            "counts as a wrong clock: the message is counted, but in no rate and no hour.",
            "Sizes are those of payloads after decompression; quantiles are estimated within 1 % of rank (KLL "
            "sketches).",
        ],
    )


def _size_section(sizes: Sequence[Row]) -> Section:
    return Section(
        "Message sizes",
        "Number of messages by size of payload, in powers of two.",
        histogram(
            [(bytes_text(row["size_from"]), row["messages"]) for row in sizes],
            count_text,
            label="Messages by size",
            title="from this size to the next",
        ),
    )


def _heat(parameters: Parameters, topics: Sequence[Row], days: Sequence[Row]) -> Any:
    names = [row["topic"] for row in topics[: parameters.top]]
    rates = {(row["topic"], row["hour_of_day"]): row["messages_per_s"] for row in days}
    values = [[rates.get((name, hour), 0.0) for hour in range(24)] for name in names]
    hours = [f"{hour:02d}" for hour in range(24)]
    return heat_map(names, hours, values, rate_text, label="Messages per second by topic and hour of the day")


def _table(topics: Sequence[Row]) -> Table:
    return Table(
        (
            "Topic",
            "Messages",
            "Entries",
            "Payload",
            "Mean rate",
            "Peak rate",
            "Peak at",
            "Active",
            "Median size",
            "p99 size",
        ),
        [
            (
                row["topic"],
                Cell(count_text(row["messages"])),
                Cell(count_text(row["entries"])),
                Cell(bytes_text(row["bytes"])),
                Cell(rate_text(row["messages_per_s"])),
                Cell(rate_text(row["peak_messages_per_s"])),
                Cell(time_text(row["peak_minute_s"])),
                Cell(percent_text(row["active_share"])),
                Cell(bytes_text(row["size_p50"])),
                Cell(bytes_text(row["size_p99"])),
            )
            for row in topics
        ],
    )


def advice(topics: Sequence[Row], tolerance_s: float) -> list[Advice]:
    """Return advice for conspicuous topics."""
    found: list[Advice] = []
    for row in topics:
        name = shortened(row["topic"])
        mean, peak = row["messages_per_s"] or 0.0, row["peak_messages_per_s"] or 0.0
        if mean > 0 and peak >= max(_SPIKE * mean, _SPIKE_PER_S) and row["active_share"] > _QUIET_SHARE:
            found.append(
                Advice(
                    Level.WATCH,
                    f"{name} peaks at {rate_text(peak)}, {factor_text(peak / mean)} its mean.",
                    "Size consumers and quotas for the peak, or spread the producers' schedules.",
                )
            )
        batched = row["messages"] / max(row["entries"], 1)
        if (row["size_p50"] or 0) < _SMALL_BYTES and batched < _BATCHED and mean / max(batched, 1.0) >= _SMALL_PER_S:
            found.append(
                Advice(
                    Level.WATCH,
                    f"Half of the messages of {name} are smaller than {bytes_text(_SMALL_BYTES)}, at {rate_text(mean)} "
                    f"and {batched:.1f} messages in an entry.",
                    "Let its producers batch: fewer, larger entries cost brokers and bookies less.",
                )
            )
        if (row["size_max"] or 0) >= _LARGE_BYTES and (row["size_p50"] or 0) < _LARGE_BYTES / 8:
            found.append(
                Advice(
                    Level.WATCH,
                    f"{name} has messages of up to {bytes_text(row['size_max'])}; half have at most "
                    f"{bytes_text(row['size_p50'])}.",
                    "Keep large objects in object storage and send their address, or use a separate topic for them.",
                )
            )
        if row["without_usable_time"]:
            found.append(_clock(row, tolerance_s))
    return found[:_ADVICE_MAX] or [Advice(Level.GOOD, "Rates, sizes and clocks look even.", "No action is needed.")]


def _clock(row: Row, tolerance_s: float) -> Advice:
    skew = row["largest_skew_s"] or 0.0
    how = f"; the furthest is {duration_text(abs(skew))} {'ahead' if skew > 0 else 'behind'}" if skew else ""
    return Advice(
        Level.ACT,
        f"{count_text(row['without_usable_time'])} messages of {shortened(row['topic'])} have no time, or one that is "
        f"wrong by more than {duration_text(tolerance_s)}{how}.",
        "Check the clocks of its producers (NTP): retention, delays and reading by time depend on them.",
    )
