"""What Spark's tasks ask of bookies for an audit: what each holds, and a thorough look at some ledgers. Only asks.

A task asks one bookie, or reads some ledgers, and hands its rows on page by page: neither it nor the driver holds what
all bookies say. Its cluster is the one that the tasks of its process share.
"""

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from quire_bookie.model import BookieId
from quire_jobs.analytics import columns
from quire_jobs.analytics.bookie_tables import read_damages, read_said
from quire_jobs.analytics.reading import task_ways
from quire_jobs.source.loop_thread import shared_loop

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

TASKS_EACH: Final = 4
"""Looks of a core at ledgers one after the other: the last ones to end leave others less idle."""
Rows = list[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class TaskAddress:
    """The cluster, as a task opens it. Without credentials."""

    metadata: str
    config: str
    connection_idle_s: float = 20.0
    connection_age_max_s: float = 300.0


@dataclass(frozen=True, slots=True)
class Said:
    """What bookies said, each of them once. `held`, `silent`: columns of these names. `end` gives its memory back."""

    held: "DataFrame"
    silent: "DataFrame"
    rows: "DataFrame"

    def end(self) -> None:
        """Nobody needs it any more."""
        self.rows.unpersist()


def ask_holdings(spark: "SparkSession", where: TaskAddress, bookies: Sequence[BookieId]) -> Said:
    """Ask every bookie, now. What a bookie said counts when it answered to its end.

    Spark asks a bookie again when it loses what a task brought. By then other ledgers may be there than the metadata
    had that it is compared with, so that a bookie that was asked twice counts as silent. Errors of Spark.
    """
    from pyspark.sql import functions as F

    def ask(number: int) -> AsyncGenerator[Rows, None]:
        return _ask(where, bookies[number])

    rows = in_tasks(spark, len(bookies), ask, columns.SAID).persist()
    ends = rows.where("ledger IS NULL")
    told_now = [(row.bookie, row.asked, row.reason) for row in ends.collect()]
    key = ["bookie", "asked"]
    answered = spark.createDataFrame([row[:2] for row in told_now if row[2] is None], "bookie string, asked long")
    silent = spark.createDataFrame([(row[0], row[2]) for row in told_now if row[2] is not None], columns.SILENT)
    again = answered.join(ends.where("reason IS NULL").select(*key), key, "left_anti").select(
        "bookie", F.lit("Spark lost what it said, and asked it once more at another time; run it again").alias("reason")
    )
    held = rows.where("ledger IS NOT NULL").join(F.broadcast(answered), key)
    return Said(held.select(*columns.HELD.names), silent.unionByName(again), rows)


def look_into(spark: "SparkSession", where: TaskAddress, ledgers: Sequence[int], reads_per_s: float) -> "DataFrame":
    """The columns LOOKED. `reads_per_s`: of all tasks together. Errors of Spark."""
    slots = max(1, min(spark.sparkContext.defaultParallelism, len(ledgers)))
    tasks = min(len(ledgers), slots * TASKS_EACH)

    def look(number: int) -> AsyncGenerator[Rows, None]:
        return _look(where, ledgers[number::tasks], reads_per_s / slots)

    return in_tasks(spark, tasks, look, columns.LOOKED)


def in_tasks(
    spark: "SparkSession", tasks: int, work: Callable[[int], AsyncGenerator[Rows, None]], schema: "StructType"
) -> "DataFrame":
    """The rows of `work(0)`, `work(1)` and so on, each of them in a task of its own, when Spark needs them."""

    def rows_of(numbers: Iterable[int]) -> Iterator[tuple[Any, ...]]:
        for number in numbers:
            for rows in shared_loop().iterate(partial(work, number)):
                yield from rows

    # Spark hands Arrow batches to functions only where pandas is, which nothing else here needs.
    found = spark.sparkContext.parallelize(range(tasks), max(tasks, 1)).mapPartitions(rows_of)
    return spark.createDataFrame(found, schema, verifySchema=False)


# ---- in a task
async def _ask(where: TaskAddress, bookie: BookieId) -> AsyncGenerator[Rows, None]:
    asked = uuid4().int >> 65  # fits a long
    async with task_ways(where) as ways:
        async for rows in read_said(ways.questions, bookie, asked):
            yield rows


async def _look(where: TaskAddress, ledgers: Sequence[int], reads_per_s: float) -> AsyncGenerator[Rows, None]:
    async with task_ways(where) as ways:
        async for rows in read_damages(ways.access, ledgers, reads_per_s):
            yield rows
