"""The kind `keys`: the distribution of messages over keys and partitions."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import Field

from quire_jobs.analytics import message_subject
from quire_jobs.analytics.message_subject import subject
from quire_jobs.analytics.output import Output, open_output
from quire_jobs.analytics.parameters import MessageParameters
from quire_jobs.analytics.publishing import Findings, Gauge, of_rows, publish
from quire_jobs.analytics.report.bars import Bar, bars
from quire_jobs.analytics.report.charts import Axis, Series, curves
from quire_jobs.analytics.report.frame import COLOURS
from quire_jobs.analytics.report.markup import shortened
from quire_jobs.analytics.report.page import Advice, Cell, Level, Page, Section, Table, Tile
from quire_jobs.analytics.report.units import bytes_text, count_text, factor_text, percent_text
from quire_jobs.job import Progress, Summary

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from quire_jobs.analytics.reading import Messages

KIND = "keys"
_UNEVEN = 2.0
_MESSAGES_MIN = 100
"""Fewer messages show no distribution."""
_ROUTED_MIN = 10_000
"""Messages of a partition from which its load counts: producers send whole batches to one partition after the other."""
_CURVE_POINTS_MAX = 400
Row = Mapping[str, Any]


class Parameters(MessageParameters):
    """Show the distribution of messages over keys: skew, hot keys, cardinality, load of partitions."""

    hot_share: float = Field(
        default=0.1,
        gt=0,
        le=1,
        description="Report a key as hot if it has more than this share of its topic's messages.",
    )


def run(spark: "SparkSession", parameters: Parameters, progress: Progress) -> Summary:
    """Run the analysis; see `quire_jobs.job`."""
    from quire_jobs.analytics.reading import read_messages

    output = open_output(KIND, parameters)
    with read_messages(spark, KIND, parameters, ("topic", "partition", "key", "size")) as messages:
        return analyse(output, parameters, messages, progress)


def analyse(output: Output, parameters: Parameters, messages: "Messages", progress: Progress) -> Summary:
    """Return the summary of the analysis, after writing its tables and report."""
    from pyspark.sql import functions as F

    from quire_jobs.analytics.figures import keys as figures

    progress.begin("reading messages", None, "messages")
    counts = figures.by_key(messages.rows).persist()
    try:
        topics = figures.by_topic(counts).orderBy(F.desc("messages"), "topic")
        topic_rows = [row.asDict() for row in topics.collect()]
        progress.advance(sum(row["messages"] for row in topic_rows))
        chosen = [row["topic"] for row in topic_rows if row["keys"]][: parameters.top]
        hot = figures.hot_keys(counts, parameters.top).orderBy("topic", "rank")
        hot_rows = [
            row.asDict()
            for row in hot.where(F.col("topic").isin(chosen))
            .orderBy(F.desc("share"), "topic", "key")
            .limit(200)
            .collect()
        ]
        curve = figures.lorenz(figures.frequencies(counts)).orderBy("topic", "keys_share")
        curve_rows = [row.asDict() for row in curve.where(F.col("topic").isin(chosen[:COLOURS])).collect()]
        partitions = figures.by_partition(counts).orderBy("topic", "partition")
        partition_rows = [row.asDict() for row in partitions.where(F.col("topic").isin(chosen)).collect()]
        notes = message_subject.notes(parameters, messages.unmatched, empty=not topic_rows)
        findings = Findings(
            {"topics": topics, "hot_keys": hot, "partitions": partitions, "curves": curve},
            page(parameters, topic_rows, hot_rows, curve_rows, partition_rows, notes),
            totals(topic_rows, hot_rows, parameters.hot_share),
            gauges(topic_rows),
            notes=notes,
        )
        return publish(output, findings, progress)
    finally:
        counts.unpersist()


def totals(topics: Sequence[Row], hot: Sequence[Row], hot_share: float) -> dict[str, int | float]:
    """Return the numbers of the summary."""
    return {
        "topics": len(topics),
        "messages": sum(row["messages"] for row in topics),
        "without_key": sum(row["without_key"] for row in topics),
        "keys": sum(row["keys"] for row in topics),
        "hot_keys": sum(row["share"] > hot_share for row in hot),
    }


def gauges(topics: Sequence[Row]) -> list[Gauge]:
    """Return metrics by topic. Keys are not labels: there are too many, and they may be confidential."""
    found = []
    for column, text in (
        ("keys", "Number of keys."),
        ("hottest_share", "Share of the hottest key in the keyed messages."),
        ("gini", "Gini coefficient of messages over keys: 0 for an even spread, near 1 for a single key."),
        ("without_key", "Messages without a key."),
    ):
        found += of_rows(topics, "topic", column, f"topic_{column}", text)
    return found


def page(
    parameters: Parameters,
    topics: Sequence[Row],
    hot: Sequence[Row],
    curve: Sequence[Row],
    partitions: Sequence[Row],
    notes: Sequence[str] = (),
) -> Page:
    """Return the report. `notes`: notes of the run."""
    total = totals(topics, hot, parameters.hot_share)
    first = hot[0] if hot else None
    return Page(
        "Keys",
        subject(parameters),
        parameters.now_s,
        message_subject.advice(notes) + (advice(topics, hot, partitions, parameters.hot_share) if topics else []),
        [
            Tile("Messages", count_text(total["messages"]), f"in {count_text(total['topics'])} topics"),
            Tile("Keys", count_text(total["keys"]), "counted in each topic"),
            Tile(
                "Hottest key",
                percent_text(None if first is None else first["share"]),
                "" if first is None else f"{shortened(first['key'], 40)} in {shortened(first['topic'], 60)}",
            ),
            Tile(
                "Without a key", percent_text(total["without_key"] / total["messages"] if total["messages"] else None)
            ),
        ],
        [
            _skew_section(curve, topics),
            _hot_section(parameters, hot),
            _partition_section(partitions),
        ],
        [
            "Keys are counted exactly. A message without a key is in no share; an empty key counts like any other.",
            "Useful consumers: above this number of consumers on a Key_Shared subscription, the consumer of the "
            "hottest key has more than its even share, and more consumers do not help it.",
        ],
    )


def _skew_section(curve: Sequence[Row], topics: Sequence[Row]) -> Section:
    names = list(dict.fromkeys(row["topic"] for row in curve))
    return Section(
        "Skew",
        "Share of the messages that the busiest keys have. A straight diagonal is an even spread; the steeper a line "
        "rises, the fewer keys have most messages.",
        curves(
            [Series(name, [(0.0, 0.0), *_thinned([row for row in curve if row["topic"] == name])]) for name in names],
            Axis("busiest keys, share of all keys", percent_text),
            Axis("share of messages", percent_text),
            label="Share of messages of the busiest keys",
        ),
        _table(topics),
    )


def _hot_section(parameters: Parameters, hot: Sequence[Row]) -> Section:
    return Section(
        "Hot keys",
        "Messages of the busiest keys in the largest topics.",
        bars(
            [
                Bar(
                    _key(row),
                    [row["messages"]],
                    f"{row['topic']}, {percent_text(row['share'])}",
                )
                for row in sorted(hot, key=lambda each: -each["messages"])[: parameters.top]
            ],
            count_text,
            label="Messages by key",
        ),
        Table(
            ("Key", "Topic", "Messages", "Share", "Payload", "Partitions"),
            [
                (
                    _key(row),
                    row["topic"],
                    Cell(count_text(row["messages"])),
                    Cell(percent_text(row["share"])),
                    Cell(bytes_text(row["bytes"])),
                    Cell(count_text(row["partitions"])),
                )
                for row in hot
            ],
            folded=True,
        ),
    )


def _partition_section(partitions: Sequence[Row]) -> Section:
    return Section(
        "Partitions",
        "1 × is an even share of the topic's messages.",
        bars(
            [
                Bar(_partition(row), [row["load"]])
                for row in sorted(partitions, key=lambda each: -each["load"])
                if row["partition"] is not None and row["partition"] >= 0
            ],
            factor_text,
            label="Load by partition",
        ),
    )


def _thinned(points: Sequence[Row]) -> list[tuple[float, float]]:
    every = max(1, len(points) // _CURVE_POINTS_MAX)
    kept = [point for at, point in enumerate(points) if at % every == 0 or at == len(points) - 1]
    return [(point["keys_share"], point["messages_share"]) for point in kept]


def _key(row: Row) -> str:
    return row["key"] or "(empty key)"


def _partition(row: Row) -> str:
    return f"{row['topic']}-partition-{row['partition']}"


def _table(topics: Sequence[Row]) -> Table:
    return Table(
        ("Topic", "Messages", "Keys", "Hottest", "Half in", "Gini", "Useful consumers", "Without key"),
        [
            (
                row["topic"],
                Cell(count_text(row["messages"])),
                Cell(count_text(row["keys"])),
                Cell(percent_text(row["hottest_share"])),
                Cell("–" if row["keys_for_half"] is None else f"{count_text(row['keys_for_half'])} keys"),
                Cell("–" if row["gini"] is None else f"{row['gini']:.2f}"),
                Cell(count_text(row["consumers_useful"])),
                Cell(count_text(row["without_key"])),
            )
            for row in topics
        ],
    )


def advice(topics: Sequence[Row], hot: Sequence[Row], partitions: Sequence[Row], hot_share: float) -> list[Advice]:
    """Return advice for conspicuous topics."""
    by_topic = {row["topic"]: row for row in topics}
    found = [
        Advice(
            Level.ACT,
            f"{shortened(_key(row), 60)} has {percent_text(row['share'])} of {shortened(row['topic'])}.",
            f"More than {max(1, int(1 / row['share']))} consumers that share keys do not help. Split the key (a suffix "
            "with a few values), or publish its messages to a separate topic.",
        )
        for row in hot
        if _is_hot(row, by_topic[row["topic"]], hot_share)
    ][:10]
    for row in topics:
        name = shortened(row["topic"])
        keyed = row["messages"] - row["without_key"]
        if row["keys"] and row["keys"] * hot_share < 1 and keyed >= _MESSAGES_MIN:
            found.append(
                Advice(
                    Level.WATCH,
                    f"The {count_text(keyed)} messages with a key in {name} have {count_text(row['keys'])} keys.",
                    f"At most {count_text(row['keys'])} consumers that share keys get messages. If more are needed, "
                    "choose a key with more values.",
                )
            )
        if row["keys_in_several_partitions"]:
            found.append(
                Advice(
                    Level.WATCH,
                    f"{count_text(row['keys_in_several_partitions'])} keys of {name} are in more than one partition.",
                    "Their order is not guaranteed: partitions were added, or producers route differently.",
                )
            )
        if row["keys"] and row["without_key"] and row["without_key"] < row["messages"]:
            found.append(
                Advice(
                    Level.WATCH,
                    f"{count_text(row['without_key'])} of {count_text(row['messages'])} messages in {name} have no key."
                    "",
                    "Compaction and ordering by key ignore them: find the producer that sets no key.",
                )
            )
    worst = max(partitions, key=lambda each: each["load"], default=None)
    if (
        worst is not None
        and worst["load"] >= _UNEVEN
        and worst["messages"] >= _ROUTED_MIN
        and worst["partition"] is not None
        and worst["partition"] >= 0
    ):
        found.append(
            Advice(
                Level.WATCH,
                f"{shortened(_partition(worst))} has {factor_text(worst['load'])} its even share of messages.",
                "Choose keys with more values, or route keyless messages round robin.",
            )
        )
    return found or [
        Advice(Level.GOOD, "No key and no partition has much more than its share.", "No action is needed.")
    ]


def _is_hot(key: Row, topic: Row, hot_share: float) -> bool:
    """Return whether the key has much more than its even share; with few keys each of them has a large one."""
    keyed = topic["messages"] - topic["without_key"]
    return bool(key["share"] > max(hot_share, _UNEVEN / topic["keys"]) and keyed >= _MESSAGES_MIN)
