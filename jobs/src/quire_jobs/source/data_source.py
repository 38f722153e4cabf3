"""`format("quire")`: passes options to the readers and writers. Does no work itself.

Spark starts a new Python for each step of planning, and each of these and each worker of an executor imports this
module. Imports that a single step needs are therefore inside that step.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from quire_jobs.source.columns import spark_schema
from quire_jobs.source.filters import Filters
from quire_jobs.source.options import Mode, SourceOptions, parse_options
from quire_jobs.source.spans import Split
from quire_jobs.source.worker_heap import task_begins

if TYPE_CHECKING:
    from quire_jobs.decode.table import TablePlan
    from quire_jobs.sink.writer import QuireStreamWriter, QuireWriter
    from quire_jobs.source.stream import StreamReader


class QuireDataSource(DataSource):
    """The Spark data source; see docs/spark.md. Spark pickles it after asking for the schema, so that is found out
    once."""

    _columns: "tuple[TablePlan | None] | None" = None

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return "quire"

    def _planned(self) -> "tuple[SourceOptions, TablePlan | None]":
        options = parse_options(self.options)
        if self._columns is None:
            self._columns = (_table_plan(options) if options.mode is Mode.TABLE else None,)
        return options, self._columns[0]

    def schema(self) -> StructType:
        """Return the columns; in mode table from the topics' schemas. JobOptionsError, TableSchemaError, errors of
        planning."""
        return spark_schema(*self._planned())

    def reader(self, schema: StructType) -> "QuireReader":
        """Return the reader of `spark.read`."""
        return QuireReader(*self._planned())

    def streamReader(self, schema: StructType) -> "StreamReader":
        """Return the reader of `spark.readStream`. Raises JobOptionsError."""
        try:
            from quire_jobs.source.stream_limited import LimitedStreamReader
        except ModuleNotFoundError as error:
            if not str(error.name).startswith("pyspark."):
                raise
            from quire_jobs.source.stream_planned import PlannedStreamReader

            return PlannedStreamReader(*self._planned())
        return LimitedStreamReader(*self._planned())

    def writer(self, schema: StructType, overwrite: bool) -> "QuireWriter":
        """Return the writer of `df.write`."""
        from quire_jobs.source.writing import batch_writer

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> "QuireStreamWriter":
        """Return the writer of `df.writeStream`."""
        from quire_jobs.source.writing import stream_writer

        return stream_writer(self.options, schema, overwrite)


def _table_plan(options: SourceOptions) -> "TablePlan | None":
    from quire_jobs.source.loop_thread import shared_loop
    from quire_jobs.source.planning import plan_columns

    return shared_loop().run(lambda: plan_columns(options))


class QuireReader(DataSourceReader):
    """Reads one batch. Spark pickles it with its filters and sends it to the tasks."""

    def __init__(self, options: SourceOptions, table: "TablePlan | None" = None) -> None:
        self._options = options
        self._table = table
        self._filters = Filters()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Keep the supported filters. Return all of them, so that Spark applies them again."""
        self._filters.take(filters, prefix="_" if self._options.mode is Mode.TABLE else "")
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the tasks. Runs on the driver, once."""
        from quire_jobs.source.loop_thread import shared_loop
        from quire_jobs.source.planning import plan

        return shared_loop().run(lambda: plan(self._options, self._filters))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a partition, in a task. Spark passes an empty partition if there is nothing to read."""
        if isinstance(partition, Split):
            from quire_jobs.source.reading import read_split

            task_begins()
            yield from read_split(self._options, self._filters, partition, self._table)
