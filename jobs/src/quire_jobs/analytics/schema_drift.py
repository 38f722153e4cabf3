"""The kind `schema-drift`: schema versions in use, changes between them, and producers that lag behind."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import Field

from quire_jobs.analytics import message_subject
from quire_jobs.analytics.message_subject import subject
from quire_jobs.analytics.output import Output, open_output
from quire_jobs.analytics.parameters import MessageParameters
from quire_jobs.analytics.publishing import Findings, Gauge, publish
from quire_jobs.analytics.report.bars import ROWS_MAX, Span, spans
from quire_jobs.analytics.report.markup import shortened
from quire_jobs.analytics.report.page import Advice, Cell, Level, Page, Section, Table, Tile
from quire_jobs.analytics.report.units import count_text, duration_text, percent_text, time_text
from quire_jobs.analytics.schema_changes import Breaks, DefinitionError, changes
from quire_jobs.job import Problem, Progress, Summary
from quire_jobs.quantities import Duration

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from quire_jobs.analytics.reading import Messages

KIND = "schema-drift"
_STATES = ("current", "old", "unknown", "without schema")
_COMPARED = {"AVRO", "JSON", "PROTOBUF"}
Row = Mapping[str, Any]


class Parameters(MessageParameters):
    """Show which schema versions are written, what changed between them, and which producers lag behind."""

    grace: Duration = Field(
        default=3600.0,
        ge=0,
        description="Report a producer that writes an old version this long after a newer one is in use, e.g. 1h.",
    )


def run(spark: "SparkSession", parameters: Parameters, progress: Progress) -> Summary:
    """Run the analysis; see `quire_jobs.job`."""
    from quire_jobs.analytics.reading import read_messages

    output = open_output(KIND, parameters)
    names = ("topic", "producer", "schema_version", "publish_time", "size")
    with read_messages(spark, KIND, parameters, names) as messages:
        return analyse(spark, output, parameters, messages, progress)


def analyse(
    spark: "SparkSession", output: Output, parameters: Parameters, messages: "Messages", progress: Progress
) -> Summary:
    """Return the summary of the analysis, after writing its tables and report."""
    from quire_jobs.analytics import columns
    from quire_jobs.analytics.figures import schema_drift as figures
    from quire_jobs.analytics.reading import frame

    progress.begin("reading messages", None, "messages")
    used = figures.usage(messages.rows).persist()
    try:
        topics = [row["topic"] for row in used.select("topic").distinct().collect()]
        definitions, unknown = _definitions(parameters, topics)
        rows = _differences(definitions)
        versions = figures.by_version(used, frame(spark, definitions, columns.DEFINITIONS)).orderBy("topic", "version")
        lagging = figures.laggards(used, parameters.grace).orderBy("topic", "producer")
        version_rows = [row.asDict() for row in versions.collect()]
        lagging_rows = [row.asDict() for row in lagging.limit(200).collect()]
        progress.advance(sum(row["messages"] for row in version_rows))
        schema = "topic string, version long, field string, what string, before string, after string, breaks string"
        problems = [Problem(subject=topic, reason=why, retry_helps=True) for topic, why in unknown.items()]
        notes = message_subject.notes(parameters, messages.unmatched, empty=not topics)
        findings = Findings(
            {
                "versions": versions.drop("first_s", "last_s"),
                "changes": frame(spark, rows, schema).orderBy("topic", "version", "field"),
                "laggards": lagging,
            },
            page(parameters, version_rows, rows, lagging_rows, notes),
            totals(version_rows, rows, lagging_rows),
            gauges(version_rows),
            problems,
            notes,
            done=len(topics),
        )
        return publish(output, findings, progress)
    finally:
        used.unpersist()


def _definitions(parameters: Parameters, topics: Sequence[str]) -> tuple[list[tuple[Any, ...]], dict[str, str]]:
    """Return the registered definitions and unreadable topics; nothing without a cluster or without messages."""
    if not parameters.metadata or not topics:
        return [], {}
    from quire_jobs.analytics.reading import ask_cluster
    from quire_jobs.analytics.schema_tables import read_definitions

    return ask_cluster(parameters, lambda clients: read_definitions(clients.cluster, topics))


def _differences(definitions: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return topic, version, field, what, before, after, breaks of each version, compared with the previous one."""
    found: list[tuple[Any, ...]] = []
    previous: dict[str, tuple[Any, ...]] = {}
    for row in sorted(definitions, key=lambda each: (each[0], each[1])):
        topic, version, kind, definition, _ = row
        before = previous.get(topic)
        previous[topic] = row
        if before is None:
            continue
        if before[2] != kind:
            found.append((topic, version, "", "type of schema changed", before[2], kind, Breaks.BOTH.value))
        elif kind in _COMPARED:
            try:
                differing = changes(before[3], definition)
            except DefinitionError as error:
                found.append((topic, version, "", f"cannot be compared: {error}", "", "", Breaks.NONE.value))
                continue
            found += [
                (topic, version, one.path, one.what, one.before, one.after, one.breaks.value) for one in differing
            ]
    return found


def totals(
    versions: Sequence[Row], differences: Sequence[tuple[Any, ...]], lagging: Sequence[Row]
) -> dict[str, int | float]:
    """Return the numbers of the summary."""
    return {
        "topics": len({row["topic"] for row in versions}),
        "versions": sum(row["version"] is not None for row in versions),
        "messages": sum(row["messages"] for row in versions),
        "messages_of_old_versions": sum(row["messages"] for row in versions if row["state"] == "old"),
        "messages_of_unknown_versions": sum(row["messages"] for row in versions if row["state"] == "unknown"),
        "messages_without_schema": sum(row["messages"] for row in versions if row["state"] == "without schema"),
        "changes": len(differences),
        "breaking_changes": sum(one[6] != Breaks.NONE.value for one in differences),
        "producers_behind": len(lagging),
    }


def gauges(versions: Sequence[Row]) -> list[Gauge]:
    """Return metrics by topic and state of the version."""
    found: dict[tuple[str, str], int] = {}
    for row in versions:
        if row["state"] in _STATES:
            key = (row["topic"], row["state"])
            found[key] = found.get(key, 0) + row["messages"]
    return [
        Gauge("messages", "Messages by the state of their schema version.", value, {"topic": topic, "state": state})
        for (topic, state), value in sorted(found.items())
    ]


def _version(row: Row) -> str:
    if row["version"] is not None:
        return f"v{row['version']}"
    return f"foreign {row['foreign']}" if row["foreign"] else "no schema"


def page(
    parameters: Parameters,
    versions: Sequence[Row],
    differences: Sequence[tuple[Any, ...]],
    lagging: Sequence[Row],
    notes: Sequence[str] = (),
) -> Page:
    """Return the report. `notes`: notes of the run."""
    total = totals(versions, differences, lagging)
    return Page(
        "Schema drift",
        subject(parameters),
        parameters.now_s,
        message_subject.advice(notes) + (advice(versions, differences, lagging) if versions else []),
        [
            Tile("Versions", count_text(total["versions"]), f"in {count_text(total['topics'])} topics"),
            Tile("Of old versions", count_text(total["messages_of_old_versions"]), "messages"),
            Tile("Breaking changes", count_text(total["breaking_changes"]), f"of {count_text(total['changes'])}"),
            Tile("Producers behind", count_text(total["producers_behind"])),
        ],
        [_use_section(versions), _change_section(differences), _lag_section(lagging)],
        [
            "A version is the one in a message, not the topic's newest. Definitions come from the brokers' registry; "
            "for a table instead of a cluster they are unknown.",
            "Breaks: old readers cannot read new messages, or new readers cannot read old ones, by Avro's resolution "
            "rules.",
        ],
    )


def _use_section(versions: Sequence[Row]) -> Section:
    drawn = [row for row in versions if row["first_s"] is not None][: 4 * ROWS_MAX]
    return Section(
        "Versions in use",
        "From the first to the last message of each version. Overlapping lines are producers with different versions.",
        spans(
            [
                Span(
                    f"{shortened(row['topic'], 60)} {_version(row)}",
                    f"{count_text(row['messages'])} messages",
                    row["first_s"],
                    row["last_s"],
                    _STATES.index(row["state"]),
                )
                for row in drawn
            ],
            label="Versions of schemas over time",
            parts=_STATES,
        ),
        Table(
            ("Topic", "Version", "State", "Type", "Messages", "Share", "Producers", "First", "Last"),
            [
                (
                    row["topic"],
                    _version(row),
                    row["state"],
                    row["type"] or "",
                    Cell(count_text(row["messages"])),
                    Cell(percent_text(row["share"])),
                    Cell(count_text(row["producers"])),
                    Cell(time_text(row["first_s"])),
                    Cell(time_text(row["last_s"])),
                )
                for row in versions
            ],
        ),
    )


def _change_section(differences: Sequence[tuple[Any, ...]]) -> Section:
    return Section(
        "Changes",
        "Field by field, each version compared with the previous one.",
        table=Table(
            ("Topic", "Version", "Field", "Change", "Before", "After", "Breaks"),
            [(topic, f"v{version}", *rest) for topic, version, *rest in differences],
        ),
    )


def _lag_section(lagging: Sequence[Row]) -> Section:
    return Section(
        "Producers that lag behind",
        "They wrote an old version although a newer one was in use.",
        table=Table(
            ("Producer", "Topic", "Writes", "Newest", "Messages", "Behind"),
            [
                (
                    row["producer"] or "",
                    row["topic"],
                    f"v{row['version']}",
                    f"v{row['newest_version']}",
                    Cell(count_text(row["messages"])),
                    Cell(duration_text(row["behind_s"])),
                )
                for row in lagging
            ],
        ),
    )


def advice(versions: Sequence[Row], differences: Sequence[tuple[Any, ...]], lagging: Sequence[Row]) -> list[Advice]:
    """Return advice for conspicuous topics and producers."""
    found = [
        Advice(
            Level.ACT,
            f"{shortened(topic)} v{version}: {shortened(path, 60) or 'schema'} {what}; this breaks {breaks}.",
            "Give new fields a default, only widen types, and enable the namespace's compatibility check.",
        )
        for topic, version, path, what, _, _, breaks in differences
        if breaks != Breaks.NONE.value
    ][:10]
    found += [
        Advice(
            Level.WATCH,
            f"Producer {shortened(row['producer'] or '', 60)} of {shortened(row['topic'])} still wrote "
            f"v{row['version']} {duration_text(row['behind_s'])} after v{row['newest_version']} appeared.",
            "Redeploy it: then readers no longer need to support the old version.",
        )
        for row in lagging
    ][:10]
    mixed = {row["topic"] for row in versions if row["version"] is not None and row["messages"]}
    for row in versions:
        if row["state"] == "unknown":
            found.append(
                Advice(
                    Level.WATCH,
                    f"{count_text(row['messages'])} messages of {shortened(row['topic'])} have {_version(row)}, which "
                    "is not in the registry.",
                    "Without its definition they cannot be decoded: do not delete schemas of topics with data.",
                )
            )
        if row["state"] == "without schema" and row["topic"] in mixed:
            found.append(
                Advice(
                    Level.WATCH,
                    f"{count_text(row['messages'])} messages of {shortened(row['topic'])} have no schema; others do.",
                    "Require schemas in the namespace (schemaValidationEnforced), and fix that producer.",
                )
            )
    return found or [
        Advice(Level.GOOD, "No version breaks another, and no producer lags behind.", "No action is needed.")
    ]
