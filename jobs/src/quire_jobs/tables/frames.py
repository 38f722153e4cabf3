"""DataFrames into tables and out of them, streams into tables. On the driver; files are written by Spark's tasks.

A task names its files by itself, so Spark may repeat it. Whatever happens before the commit leaves files that no reader
looks for; after it the mark is in the table, and the same work again is seen to be done before anything is read.
"""

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from quire_bookie.env.clock import SystemClock
from quire_jobs.errors import JobOptionsError, NotFoundError, named_in
from quire_jobs.tables.layout import Layout
from quire_jobs.tables.marks import Mark, once_per_batch
from quire_jobs.tables.table import open_table
from quire_jobs.tables.target import TableTarget

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from quire_jobs.tables.data_files import DataFile

_QUERY_ID = "sql.streaming.queryId"
_LAYOUT = Layout()


@dataclass(frozen=True, slots=True)
class Written:
    """What a write did. `repeated`: the table had it already, so nothing was read or written."""

    repeated: bool
    rows: int = 0
    files: int = 0
    size_bytes: int = 0
    snapshot: str = ""


def write_frame(
    frame: "DataFrame", target: TableTarget, mark: Mark, *, layout: Layout = _LAYOUT, replace: bool = False
) -> Written:
    """Add the rows to the table, or put them in the place of all that are there; once for what `mark` stands for.

    JobOptionsError: the columns do not fit, or the table cannot be used. QuireJobError, also what a task that read the
    rows or wrote them raised of it, e.g. SourceUnavailableError, DataLossError.
    """
    began_ms = SystemClock().now_ms()
    table = open_table(target)
    if mark.merged(table.marks().get(mark.key), began_ms) is None:
        return Written(repeated=True)
    arranged = layout.arrange(frame)
    schema = columns_of(arranged)
    table.prepare(schema, layout)
    files = _write(arranged, schema, layout, target)
    snapshot = table.commit(files, schema, mark, began_ms=began_ms, replace=replace)
    if snapshot is None:
        return Written(repeated=True)
    return Written(
        False, sum(file.rows for file in files), len(files), sum(file.size_bytes for file in files), snapshot
    )


def read_frame(spark: "SparkSession", target: TableTarget) -> "DataFrame":
    """The rows of the newest snapshot. NotFoundError: no table. An Iceberg engine reads more than this, and quicker."""
    table = open_table(target)
    if table.schema() is None:
        raise NotFoundError(f"there is no table {table.shown}")
    from quire_jobs.source.known_sources import make_known
    from quire_jobs.tables.task_files import NAME, TableFiles, target_options

    make_known(spark, TableFiles)
    return spark.read.format(NAME).options(**target_options(target)).load()


def foreach_batch(
    target: TableTarget, *, layout: Layout = _LAYOUT, query: str = ""
) -> "Callable[[DataFrame, int], None]":
    """For `writeStream.foreachBatch(...)`: each micro-batch is in the table once, by the query's id and its batch id.

    The id is in the checkpoint, so a query that goes on from it is the same query. `query`: another name for it.
    """

    def write(frame: "DataFrame", batch_id: int) -> None:
        name = query or frame.sparkSession.sparkContext.getLocalProperty(_QUERY_ID)
        if not name:
            raise JobOptionsError("this Spark does not tell the id of a query: give foreach_batch a name, query=...")
        write_frame(frame, target, once_per_batch(name, batch_id), layout=layout)

    return write


def columns_of(frame: "DataFrame") -> "pa.Schema":
    """The columns as tables have them: times in UTC, integers of 32 bits and more, nothing that has to be there."""
    import pyarrow as pa

    from quire_jobs.spark_columns import arrow_columns

    try:
        return pa.schema([_column(field) for field in arrow_columns(frame.schema)])
    except (TypeError, ValueError) as error:
        raise JobOptionsError(f"a column cannot be written into a table: {error}") from error


def _column(field: "pa.Field") -> "pa.Field":
    return field.with_type(_kind(field.type)).with_nullable(True).remove_metadata()


def _kind(kind: "pa.DataType") -> "pa.DataType":
    import pyarrow as pa

    if pa.types.is_int8(kind) or pa.types.is_int16(kind):
        return pa.int32()
    if pa.types.is_list(kind):
        return pa.list_(_column(kind.value_field))
    if pa.types.is_struct(kind):
        return pa.struct([_column(field) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_kind(kind.key_type), _column(kind.item_field))
    return kind


def _write(frame: "DataFrame", schema: "pa.Schema", layout: Layout, target: TableTarget) -> "list[DataFile]":
    """Have Spark write the files; what its tasks wrote that it then did not need is left to a sweep."""
    from pyspark.errors import PySparkException

    from quire_jobs.source.known_sources import make_known
    from quire_jobs.tables.data_files import DataFile
    from quire_jobs.tables.task_files import NAME, TableFiles, write_options

    session = frame.sparkSession
    make_known(session, TableFiles)  # here: a micro-batch comes in a thread of its own
    with tempfile.TemporaryDirectory(prefix="quire-table-") as folder:
        report = Path(folder) / "files.json"
        options = write_options(target, layout, schema, str(report))
        try:
            frame.write.format(NAME).options(**options).mode("append").save()
        except PySparkException as error:
            told = named_in(str(error))
            if told is None:
                raise
            raise told from error
        return [DataFile(**each) for each in json.loads(report.read_text(encoding="utf-8"))]
