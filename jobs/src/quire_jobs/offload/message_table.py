"""The messages of offloaded ledgers as rows of a table: each ledger once, whatever crashed. On the driver, with Spark.

What is in the table says the table itself: its commits carry ranges of ledgers (`tables.marks`), and a ledger that is
offloaded and in none of them is due. So a run that died in between is made up for by the next one, ledgers that were
offloaded before there was a table come into it as well, and of two runs at once one sees that the other was first.
Ledgers are closed, so what is read for a ledger is the same in each attempt.

Rows are read through the data source, from the objects that brokers will serve, under a cursor that keeps the ledgers
from being trimmed meanwhile. What is due is looked at once more under that cursor: a ledger that retention took before
would be read as nothing, and be noted as one that is in the table. A message in chunks belongs to the ledger of its
last one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from quire_bookie.limits import MIB
from quire_broker.managed_ledger.ledger_list import LedgerRecord
from quire_broker.topic.topic_names import TopicName
from quire_jobs.errors import DataLossError, QuireJobError, retry_helps
from quire_jobs.job import Problem, Progress
from quire_jobs.source import held, register
from quire_jobs.tables import Layout, TableTarget, compact, open_table, write_frame
from quire_jobs.tables.marks import LedgerRange, covered, decode_ranges, ledgers_key

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COMMIT_BYTES = 8192 * MIB
"""Of ledgers in one commit: what a crash may have to be done again."""
_LISTED_ANEW = "the next run lists the ledgers anew and goes on with what is left"
ORDER = ("topic", "partition", "ledger", "entry", "batch_index")


@dataclass(frozen=True, slots=True)
class Due:
    """Consecutive ledgers of a topic that come into the table by one commit."""

    topic: TopicName
    mark: LedgerRange
    ledgers: int
    size_bytes: int


@dataclass(slots=True)
class TableOutcome:
    """What became of the table in a run. `repeated`: ledgers that somebody else wrote meanwhile."""

    ledgers: int = 0
    rows: int = 0
    size_bytes: int = 0
    files: int = 0
    repeated: int = 0
    files_merged: int = 0
    problems: list[Problem] = field(default_factory=list)


def message_layout(buckets: int, file_bytes: int) -> Layout:
    """By hour of publishing and bucket of the key, in the order of the topics."""
    return Layout("publish_time", "key", buckets, ORDER, file_bytes)


def due(
    topic: TopicName, records: Sequence[LedgerRecord], marks: Mapping[str, str], ids: frozenset[int], commit_bytes: int
) -> list[Due]:
    """The ledgers that are offloaded and not in the table, in runs of the topic's list. `ids`: only these, if any."""
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
    """As options of the source.

    It begins at a position: a ledger that somebody trimmed in spite of the cursor ends the read with DataLossError
    then, whereas a read from a ledger on would begin at what is left.
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
    """Bring the table up to what is offloaded. JobOptionsError.

    `where`: options of the source for the cluster. `listed`: the ledgers of topics as the metadata have them when it is
    called. A topic that cannot be read is a problem of the outcome; the others go on.
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
        except QuireJobError as error:  # the rows are there, in small files
            outcome.problems.append(_problem(f"small files of {target.shown}", error))
    return outcome


def _problem(subject: str, error: QuireJobError) -> Problem:
    reason = str(error)
    if isinstance(error, DataLossError):
        facts, _, advice = reason.rpartition("; ")
        if "failOnDataLoss" in advice:  # options of the source, which this job does not have
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
