"""`format("quire")`: hands options to the readers. Does nothing itself."""

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from quire_jobs.source.columns import spark_schema
from quire_jobs.source.filters import Filters
from quire_jobs.source.loop_thread import shared_loop
from quire_jobs.source.options import SourceOptions, parse_options
from quire_jobs.source.planning import plan
from quire_jobs.source.reading import read_split
from quire_jobs.source.spans import Split
from quire_jobs.source.stream import QuireStreamReader


class QuireDataSource(DataSource):
    """See docs/spark.md."""

    @classmethod
    def name(cls) -> str:
        """As given to `format`."""
        return "quire"

    def schema(self) -> StructType:
        """The columns, from the options alone. JobOptionsError."""
        return spark_schema(parse_options(self.options))

    def reader(self, schema: StructType) -> "QuireReader":
        """For `spark.read`."""
        return QuireReader(parse_options(self.options))

    def streamReader(self, schema: StructType) -> QuireStreamReader:
        """For `spark.readStream`."""
        return QuireStreamReader(parse_options(self.options))


class QuireReader(DataSourceReader):
    """One batch read. Pickled with its filters to the tasks."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._filters = Filters()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Keep what is understood; Spark applies all of them once more."""
        self._filters.take(filters)
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        """On the driver, once."""
        return shared_loop().run(lambda: plan(self._options, self._filters))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """In a task. Spark asks with an empty partition where there is nothing to read."""
        if isinstance(partition, Split):
            yield from read_split(self._options, self._filters, partition)
