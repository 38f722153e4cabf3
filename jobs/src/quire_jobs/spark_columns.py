"""Columns of Spark as Arrow has them, whichever Spark it is."""

import inspect

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType


def arrow_columns(schema: StructType) -> pa.Schema:
    """Timestamps in UTC. PySparkException for types that Arrow has not."""
    # Spark 4.1 knows no time zone there: its timestamps are in UTC anyway.
    if "timezone" in inspect.signature(to_arrow_schema).parameters:
        return to_arrow_schema(schema, timezone="UTC")
    return to_arrow_schema(schema)
