"""Adds the messages of offloaded ledgers to a table: each ledger once, despite crashes. On the driver, with Spark.

The table itself records its content: its commits carry ranges of ledgers (`tables.marks`), and a ledger that is
offloaded and in none of these ranges is due. So the next run completes the work of a run that died, adds ledgers that
were offloaded before the table existed, and of two simultaneous runs one finds that the other was first. Ledgers are
closed, so each attempt reads the same entries.

Rows are read through the data source, from the objects that brokers serve, under a cursor that keeps the ledgers from
being trimmed meanwhile. The due ledgers are listed again under that cursor: a ledger trimmed before it would yield no
rows, and would be recorded as present in the table. A message in chunks belongs to the ledger of its last chunk.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from quire_bookie.limits import MIB
from quire_broker.managed_ledger.nodes.ledger_list import LedgerRecord
from quire_broker.names import TopicName
from quire_jobs.errors import DataLossError, QuireJobError, retry_helps
from quire_jobs.job import Problem, Progress
from quire_jobs.source import held, register
from quire_jobs.tables import Layout, TableTarget, compact, open_table, write_frame
from quire_jobs.tables.marks import LedgerRange, covered, decode_ranges, ledgers_key

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COMMIT_BYTES = 8192 * MIB
"""Size of the ledgers in one commit: the work that a crash may repeat."""
_LISTED_ANEW = "the next run lists the ledgers again and continues with the remaining ones"
ORDER = ("topic", "partition", "ledger", "entry", "batch_index")


@dataclass(frozen=True, slots=True)
class Due:
    """Consecutive ledgers of a topic that one commit adds to the table."""

    topic: TopicName
    mark: LedgerRange
    ledgers: int
    size_bytes: int


@dataclass(slots=True)
class TableOutcome:
    """Result of a run for the table. `repeated`: ledgers that another run wrote meanwhile."""

    ledgers: int = 0
    rows: int = 0
    size_bytes: int = 0
    files: int = 0
    repeated: int = 0
    files_merged: int = 0
    problems: list[Problem] = field(default_factory=list)


def message_layout(buckets: int, file_bytes: int) -> Layout:
    """Return the layout: by hour of publishing and bucket of the key, sorted by topic and position."""
    return Layout("publish_time", "key", buckets, ORDER, file_bytes)


def due(
    topic: TopicName, records: Sequence[LedgerRecord], marks: Mapping[str, str], ids: frozenset[int], commit_bytes: int
) -> list[Due]:
    """Return ledgers that are offloaded but not in the table, in runs of the topic's list. `ids`: only these, if
    any."""
    name = topic.ledger_name
    ranges = decode_ranges(marks.get(ledgers_key(name)))
    found: list[Due] = []
    run: list[LedgerRecord] = []

    def end() -> None:
        if any(record.entries for record in run):
            first, last = run[0].ledger_id, run[-1].ledger_id
            at = [record.ledger_id for record in records].index(first)
            mark = LedgerRange(name, first, last, records[at - 1].ledger_id if at else None)
            found.append(Due(topic, mark, len(run), sum(record.size_bytes for record in run)))
        run.clear()

    for record in records:
        wanted = record.offloaded or (record.closed_ms and not record.entries)
        if not wanted or (ids and record.ledger_id not in ids) or covered(ranges, record.ledger_id):
            end()
            continue
        if run and sum(each.size_bytes for each in run) + record.size_bytes > commit_bytes:
            end()
        run.append(record)
    end()
    return found


def bounds_of(each: Due) -> dict[str, str]:
    """Return the ledgers as options of the source.

    The read begins at a position: if a ledger was trimmed despite the cursor, it fails with DataLossError. A read from
    a ledger on would silently begin at the remaining entries.
    """
    return {"startPosition": f"{each.mark.first}:0", "endLedger": str(each.mark.last)}


def add_messages(
    spark: "SparkSession",
    where: Mapping[str, str],
    job: str,
    topics: Sequence[TopicName],
    listed: Callable[[Sequence[TopicName]], Mapping[TopicName, Sequence[LedgerRecord]]],
    target: TableTarget,
    layout: Layout,
    progress: Progress,
    *,
    ids: frozenset[int] = frozenset(),
    compacted: bool = True,
    commit_bytes: int = COMMIT_BYTES,
) -> TableOutcome:
    """Add all offloaded messages that the table lacks. Raises JobOptionsError.

    `where`: options of the source for the cluster. `listed`: returns the present ledgers of topics from the metadata. A
    topic that cannot be read becomes a problem of the outcome; the other topics are still added.
    """
    register(spark)
    marks = open_table(target).marks()
    runs = {topic: due(topic, records, marks, ids, commit_bytes) for topic, records in listed(topics).items()}
    outcome = TableOutcome()
    progress.begin("table", sum(each.size_bytes for found in runs.values() for each in found), "bytes")
    for topic, found in runs.items():
        if not found:
            continue
        try:
            with held({**where, "topic": str(topic), "jobId": job}) as options:
                for each in due(topic, listed([topic])[topic], marks, ids, commit_bytes):
                    _add(spark, options, each, target, layout, outcome)
                    progress.advance(each.size_bytes)
        except QuireJobError as error:
            outcome.problems.append(_problem(f"table rows of {topic}", error))
    if compacted and not outcome.problems:
        try:
            outcome.files_merged = compact(spark, target, layout=layout).merged
        except QuireJobError as error:  # the rows are in the table, in small files
            outcome.problems.append(_problem(f"small files of {target.shown}", error))
    return outcome


def _problem(subject: str, error: QuireJobError) -> Problem:
    reason = str(error)
    if isinstance(error, DataLossError):
        facts, _, advice = reason.rpartition("; ")
        if "failOnDataLoss" in advice:  # this job does not have these options of the source
            reason = facts
        return Problem(subject=subject, reason=f"{reason}; {_LISTED_ANEW}", retry_helps=True)
    return Problem(subject=subject, reason=reason, retry_helps=retry_helps(error))


def _add(
    spark: "SparkSession",
    options: Mapping[str, str],
    each: Due,
    target: TableTarget,
    layout: Layout,
    outcome: TableOutcome,
) -> None:
    frame = spark.read.format("quire").options(**options, **bounds_of(each)).load()
    written = write_frame(frame, target, each.mark, layout=layout)
    if written.repeated:
        outcome.repeated += each.ledgers
        return
    outcome.ledgers += each.ledgers
    outcome.rows += written.rows
    outcome.size_bytes += written.size_bytes
    outcome.files += written.files
