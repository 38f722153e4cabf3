"""The source as Spark 4.1 meets it, for tests on a newer one, which still knows how its predecessor asked.

A module of its own, because Spark's workers import it.
"""

from pyspark.sql.types import StructType

from quire_jobs.source.data_source import QuireDataSource
from quire_jobs.source.stream_planned import PlannedStreamReader


class PlannedSource(QuireDataSource):
    """`format("quire-planned")`."""

    @classmethod
    def name(cls) -> str:
        """As given to `format`."""
        return "quire-planned"

    def streamReader(self, schema: StructType) -> PlannedStreamReader:
        """Whatever this Spark could do."""
        return PlannedStreamReader(*self._planned())
