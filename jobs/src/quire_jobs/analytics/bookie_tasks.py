"""The requests to bookies in Spark's tasks for an audit: ledgers of a bookie, thorough checks of ledgers. Read-only.

A task asks one bookie, or reads some ledgers, and passes its rows on page by page, so that neither it nor the driver
holds the ledgers of all bookies in memory. The tasks of a process share one open cluster.
"""

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from quire_bookie.model import BookieId
from quire_jobs.analytics import columns
from quire_jobs.analytics.bookie_tables import read_damages, read_responses
from quire_jobs.analytics.reading import frame, task_clients
from quire_jobs.source.loop_thread import shared_loop

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

TASKS_EACH: Final = 4
"""Tasks per core for checking ledgers: with several, cores are less idle while the last tasks run."""
Rows = list[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class TaskAddress:
    """The address of the cluster for a task. Contains no credentials."""

    metadata: str
    config: str
    connection_idle_s: float = 20.0
    connection_age_max_s: float = 300.0


@dataclass(frozen=True, slots=True)
class BookieResponses:
    """The bookies' responses, each bookie once. `held`, `silent`: columns of these names. `end` releases the memory."""

    held: "DataFrame"
    silent: "DataFrame"
    rows: "DataFrame"

    def end(self) -> None:
        """Release the cached rows."""
        self.rows.unpersist()


def ask_bookies(spark: "SparkSession", where: TaskAddress, bookies: Sequence[BookieId]) -> BookieResponses:
    """Ask every bookie now. A bookie's response counts if it is complete.

    Spark asks a bookie again if it loses the result of a task. By then the bookie may have other ledgers than the
    metadata with which it is compared, so a bookie that was asked twice counts as silent. Errors of Spark.
    """
    from pyspark.sql import functions as F

    def ask(number: int) -> AsyncGenerator[Rows, None]:
        return _ask(where, bookies[number])

    rows = in_tasks(spark, len(bookies), ask, columns.RESPONSES).persist()
    ends = rows.where("ledger IS NULL")
    final_rows = [(row.bookie, row.asked, row.reason) for row in ends.collect()]
    key = ["bookie", "asked"]
    answered = frame(spark, [row[:2] for row in final_rows if row[2] is None], "bookie string, asked long")
    silent = frame(spark, [(row[0], row[2]) for row in final_rows if row[2] is not None], columns.SILENT)
    again = answered.join(ends.where("reason IS NULL").select(*key), key, "left_anti").select(
        "bookie",
        F.lit("Spark lost its response and asked it again at a later time; run the audit again").alias("reason"),
    )
    held = rows.where("ledger IS NOT NULL").join(F.broadcast(answered), key)
    return BookieResponses(held.select(*columns.HELD.names), silent.unionByName(again), rows)


def check_replicas(
    spark: "SparkSession", where: TaskAddress, ledgers: Sequence[int], reads_per_s: float
) -> "DataFrame":
    """Return the columns CHECKED. `reads_per_s`: of all tasks together. Errors of Spark."""
    slots = max(1, min(spark.sparkContext.defaultParallelism, len(ledgers)))
    tasks = min(len(ledgers), slots * TASKS_EACH)

    def look(number: int) -> AsyncGenerator[Rows, None]:
        return _look(where, ledgers[number::tasks], reads_per_s / slots)

    return in_tasks(spark, tasks, look, columns.CHECKED)


def in_tasks(
    spark: "SparkSession", tasks: int, work: Callable[[int], AsyncGenerator[Rows, None]], schema: "StructType"
) -> "DataFrame":
    """Return the rows of `work(0)`, `work(1)` and so on, each in its own task, when Spark needs them."""

    def rows_of(numbers: Iterable[int]) -> Iterator[tuple[Any, ...]]:
        for number in numbers:
            for rows in shared_loop().iterate(partial(work, number)):
                yield from rows

    # Spark passes Arrow batches to functions only with pandas, which no other part of this package needs.
    found = spark.sparkContext.parallelize(range(tasks), max(tasks, 1)).mapPartitions(rows_of)
    return spark.createDataFrame(found, schema, verifySchema=False)


# ---- in a task
async def _ask(where: TaskAddress, bookie: BookieId) -> AsyncGenerator[Rows, None]:
    asked = uuid4().int >> 65  # fits a long
    async with task_clients(where) as clients:
        async for rows in read_responses(clients.questions, bookie, asked):
            yield rows


async def _look(where: TaskAddress, ledgers: Sequence[int], reads_per_s: float) -> AsyncGenerator[Rows, None]:
    async with task_clients(where) as clients:
        async for rows in read_damages(clients.access, ledgers, reads_per_s):
            yield rows
