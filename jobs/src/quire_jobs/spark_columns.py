"""Converts Spark schemas to Arrow, with every supported Spark version."""

import inspect

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType


def arrow_columns(schema: StructType) -> pa.Schema:
    """Return the Arrow schema, with timestamps in UTC. PySparkException for a type that Arrow does not have."""
    # Spark 4.1 has no `timezone` parameter: its timestamps are always in UTC.
    if "timezone" in inspect.signature(to_arrow_schema).parameters:
        return to_arrow_schema(schema, timezone="UTC")
    return to_arrow_schema(schema)
