"""The source with the interface of Spark 4.1, for tests on a newer Spark, which still supports it.

This is a separate module because Spark's workers import it.
"""

from pyspark.sql.types import StructType

from quire_jobs.source.data_source import QuireDataSource
from quire_jobs.source.stream_planned import PlannedStreamReader


class PlannedSource(QuireDataSource):
    """`format("quire-planned")`."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return "quire-planned"

    def streamReader(self, schema: StructType) -> PlannedStreamReader:
        """Return the reader for Spark 4.1, whatever this Spark supports."""
        return PlannedStreamReader(*self._planned())
