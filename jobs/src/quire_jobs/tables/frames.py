"""Writes DataFrames and streams to tables, and reads tables. On the driver; Spark's tasks write the files.

Each task names its own files, so Spark may repeat it. A failure before the commit leaves files that no reader opens.
The driver itself writes a few rows, if the caller expects so: Python processes for tasks take seconds to start. After
the commit the table contains the mark, and a repetition of the work is detected before anything is read.
"""

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from quire_bookie.env.clock import SystemClock
from quire_jobs.errors import JobOptionsError, NotFoundError, error_in
from quire_jobs.tables.layout import Layout
from quire_jobs.tables.marks import Mark, once_per_batch
from quire_jobs.tables.table import Table, open_table
from quire_jobs.tables.target import TableTarget

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from quire_jobs.tables.data_files import DataFile

_QUERY_ID = "sql.streaming.queryId"
_LAYOUT = Layout()


@dataclass(frozen=True, slots=True)
class Written:
    """Result of a write. `repeated`: the table already contained the work, so nothing was read or written."""

    repeated: bool
    rows: int = 0
    files: int = 0
    size_bytes: int = 0
    snapshot: str = ""


def write_frame(
    frame: "DataFrame",
    target: TableTarget,
    mark: Mark,
    *,
    layout: Layout = _LAYOUT,
    replace: bool = False,
    few_rows: int = 0,
) -> Written:
    """Add the rows to the table, or replace all rows by them; only once for the work that `mark` identifies.

    `few_rows`: the driver writes up to this number of rows itself. If there are more, Spark computes them twice.

    JobOptionsError: the columns do not fit, or the table cannot be used. QuireJobError: also errors of the tasks that
    read or wrote the rows, e.g. SourceUnavailableError, DataLossError.
    """
    began_ms = SystemClock().now_ms()
    table = open_table(target)
    if mark.merged(table.marks().get(mark.key), began_ms) is None:
        return Written(repeated=True)
    arranged = layout.arrange(frame)
    schema = columns_of(arranged)
    table.prepare(schema, layout)
    files = _write_few(arranged, schema, layout, table, few_rows) if few_rows else None
    if files is None:
        files = _write(arranged, schema, layout, target)
    snapshot = table.commit(files, schema, mark, began_ms=began_ms, replace=replace)
    if snapshot is None:
        return Written(repeated=True)
    return Written(
        False, sum(file.rows for file in files), len(files), sum(file.size_bytes for file in files), snapshot
    )


def read_frame(spark: "SparkSession", target: TableTarget, *, version: str = "") -> "DataFrame":
    """Return the rows of a version, or of the newest one. NotFoundError: no table.

    Iceberg engines read more tables, and faster. `version`: its name by `Table.version`.
    """
    table = open_table(target)
    if table.schema() is None:
        raise NotFoundError(f"table {table.shown} does not exist")
    from quire_jobs.source.known_sources import register_source
    from quire_jobs.tables.task_files import NAME, TableFiles, target_options

    register_source(spark, TableFiles)
    return spark.read.format(NAME).options(**target_options(target, version)).load()


def foreach_batch(
    target: TableTarget, *, layout: Layout = _LAYOUT, query: str = ""
) -> "Callable[[DataFrame, int], None]":
    """Return a function for `writeStream.foreachBatch(...)` that adds each micro-batch once, by query id and batch id.

    The query id is in the checkpoint, so a query that continues from it keeps its id. `query`: use this name instead.
    """

    def write(frame: "DataFrame", batch_id: int) -> None:
        name = query or frame.sparkSession.sparkContext.getLocalProperty(_QUERY_ID)
        if not name:
            raise JobOptionsError("this Spark does not pass the id of a query: give foreach_batch a name, query=...")
        write_frame(frame, target, once_per_batch(name, batch_id), layout=layout)

    return write


def columns_of(frame: "DataFrame") -> "pa.Schema":
    """Return the columns in the types of tables: times in UTC, integers of at least 32 bits, all columns nullable."""
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


def _write_few(
    frame: "DataFrame", schema: "pa.Schema", layout: Layout, table: Table, rows_max: int
) -> "list[DataFile] | None":
    """Write the files on the driver; None if there are more than `rows_max` rows."""
    from quire_jobs.tables.data_files import write_files

    with task_errors():
        found = frame.limit(rows_max + 1).toArrow()
    if found.num_rows > rows_max:
        return None
    return list(write_files(found.combine_chunks().to_batches(), schema, layout, table.store, table.folder))


def _write(frame: "DataFrame", schema: "pa.Schema", layout: Layout, target: TableTarget) -> "list[DataFile]":
    """Have Spark write the files. A sweep removes files of tasks whose result Spark discarded."""
    from quire_jobs.source.known_sources import register_source
    from quire_jobs.tables.data_files import DataFile
    from quire_jobs.tables.task_files import NAME, TableFiles, write_options

    session = frame.sparkSession
    register_source(session, TableFiles)  # here, because a micro-batch runs in its own thread
    with tempfile.TemporaryDirectory(prefix="quire-table-") as folder:
        report = Path(folder) / "files.json"
        options = write_options(target, layout, schema, str(report))
        with task_errors():
            frame.write.format(NAME).options(**options).mode("append").save()
        return [DataFile(**each) for each in json.loads(report.read_text(encoding="utf-8"))]


@contextmanager
def task_errors() -> Iterator[None]:
    """Raise an error of this project with which a task or planning failed, in its own class; other errors stay."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        named = error_in(str(error))
        if named is None:
            raise
        raise named from error
