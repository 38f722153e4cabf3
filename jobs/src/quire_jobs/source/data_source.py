"""`format("quire")`: hands options to the readers. Does nothing itself.

Spark starts a Python anew for each step of planning, and each of them, and each worker of an executor, imports this
module: what a single step needs is imported there.
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
    """See docs/spark.md. Spark pickles it after it was asked for its columns: what they are is found out once."""

    _columns: "tuple[TablePlan | None] | None" = None

    @classmethod
    def name(cls) -> str:
        """As given to `format`."""
        return "quire"

    def _planned(self) -> "tuple[SourceOptions, TablePlan | None]":
        options = parse_options(self.options)
        if self._columns is None:
            self._columns = (_table_plan(options) if options.mode is Mode.TABLE else None,)
        return options, self._columns[0]

    def schema(self) -> StructType:
        """The columns, in mode table by the topics' schemas. JobOptionsError, TableSchemaError, those of planning."""
        return spark_schema(*self._planned())

    def reader(self, schema: StructType) -> "QuireReader":
        """For `spark.read`."""
        return QuireReader(*self._planned())

    def streamReader(self, schema: StructType) -> "StreamReader":
        """For `spark.readStream`. JobOptionsError."""
        try:
            from quire_jobs.source.stream_limited import LimitedStreamReader
        except ModuleNotFoundError as error:
            if not str(error.name).startswith("pyspark."):
                raise
            from quire_jobs.source.stream_planned import PlannedStreamReader

            return PlannedStreamReader(*self._planned())
        return LimitedStreamReader(*self._planned())

    def writer(self, schema: StructType, overwrite: bool) -> "QuireWriter":
        """For `df.write`."""
        from quire_jobs.source.writing import batch_writer

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> "QuireStreamWriter":
        """For `df.writeStream`."""
        from quire_jobs.source.writing import stream_writer

        return stream_writer(self.options, schema, overwrite)


def _table_plan(options: SourceOptions) -> "TablePlan | None":
    from quire_jobs.source.loop_thread import shared_loop
    from quire_jobs.source.planning import plan_columns

    return shared_loop().run(lambda: plan_columns(options))


class QuireReader(DataSourceReader):
    """One batch read. Pickled with its filters to the tasks."""

    def __init__(self, options: SourceOptions, table: "TablePlan | None" = None) -> None:
        self._options = options
        self._table = table
        self._filters = Filters()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Keep what is understood; Spark applies all of them once more."""
        self._filters.take(filters, prefix="_" if self._options.mode is Mode.TABLE else "")
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        """On the driver, once."""
        from quire_jobs.source.loop_thread import shared_loop
        from quire_jobs.source.planning import plan

        return shared_loop().run(lambda: plan(self._options, self._filters))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """In a task. Spark asks with an empty partition where there is nothing to read."""
        if isinstance(partition, Split):
            from quire_jobs.source.reading import read_split

            task_begins()
            yield from read_split(self._options, self._filters, partition, self._table)
