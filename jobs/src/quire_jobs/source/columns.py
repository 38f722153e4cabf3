"""The columns of a row in each mode, as Arrow and Spark schemas. Pure."""

from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from quire_jobs.decode.columns import ENTRY_SCHEMA, MESSAGE_SCHEMA
from quire_jobs.errors import JobOptionsError
from quire_jobs.source.options import Mode, SourceOptions

if TYPE_CHECKING:
    from quire_jobs.decode.table import TablePlan


def arrow_schema(options: SourceOptions, table: "TablePlan | None" = None) -> pa.Schema:
    """Return the requested columns in the requested order. `table`: for mode table. JobOptionsError for unknown
    columns."""
    schema = ENTRY_SCHEMA if options.mode is Mode.ENTRIES else MESSAGE_SCHEMA
    if options.mode is Mode.TABLE:
        assert table is not None
        schema = table.schema
    if not options.columns:
        return schema
    for name in options.columns:
        if name not in schema.names:
            raise JobOptionsError(
                f"quire source: columns: mode {options.mode} has no column {name!r}; it has {', '.join(schema.names)}"
            )
    if len(set(options.columns)) != len(options.columns):
        raise JobOptionsError(
            f"quire source: columns = {','.join(options.columns)}: a column is named twice; name each once"
        )
    return pa.schema([schema.field(name) for name in options.columns])


def spark_schema(options: SourceOptions, table: "TablePlan | None" = None) -> StructType:
    """Return the same columns as a Spark schema."""
    return from_arrow_schema(arrow_schema(options, table))
