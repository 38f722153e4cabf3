"""Which columns a row has, by mode, in Arrow's words and in Spark's. Pure."""

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from quire_jobs.decode.columns import ENTRY_SCHEMA, MESSAGE_SCHEMA
from quire_jobs.errors import JobOptionsError
from quire_jobs.source.options import Mode, SourceOptions

_SCHEMAS = {Mode.ENTRIES: ENTRY_SCHEMA, Mode.MESSAGES: MESSAGE_SCHEMA}


def arrow_schema(options: SourceOptions) -> pa.Schema:
    """The columns asked for, in the order asked for. JobOptionsError for one that does not exist."""
    schema = _SCHEMAS[options.mode]
    if not options.columns:
        return schema
    for name in options.columns:
        if name not in schema.names:
            raise JobOptionsError(
                f"quire source: columns: mode {options.mode} has no column {name!r}; it has {', '.join(schema.names)}"
            )
    if len(set(options.columns)) != len(options.columns):
        raise JobOptionsError(f"quire source: columns = {','.join(options.columns)}: each may be there once")
    return _chosen(schema, options.columns)


def _chosen(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    return pa.schema([schema.field(name) for name in names])


def spark_schema(options: SourceOptions) -> StructType:
    """The same as Spark knows it."""
    return from_arrow_schema(arrow_schema(options))
