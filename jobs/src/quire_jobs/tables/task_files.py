"""A Spark data source for the tasks of this package: rows to files, files to rows. Not for users.

Spark passes Arrow batches to such a source without pandas. A writing task returns the files that it wrote. Spark keeps
the result of one attempt of each task and passes all results to `commit`, on the driver's machine, which saves them in
a local file for the driver. Nothing is in the table before the driver has committed it.
"""

import base64
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from quire_jobs.tables.data_files import DataFile, read_files, write_files
from quire_jobs.tables.layout import Layout
from quire_jobs.tables.table import open_table
from quire_jobs.tables.target import TableFormat, TableTarget

NAME = "quire_table_files"
_TASKS_MAX = 64


def target_options(target: TableTarget, version: str = "") -> dict[str, str]:
    """Return a target, and its version to read, as options; they contain no credentials."""
    return {each: str(value) for each, value in asdict(target).items()} | {"version": version}


def write_options(target: TableTarget, layout: Layout, schema: pa.Schema, report: str) -> dict[str, str]:
    """Return the options of a write. `report`: a local file for the names of the files."""
    encoded = base64.b64encode(schema.serialize().to_pybytes()).decode()
    return {**target_options(target), "layout": json.dumps(asdict(layout)), "columns": encoded, "report": report}


class TableFiles(DataSource):
    """The data source; see the module's docstring."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return NAME

    @property
    def _target(self) -> TableTarget:
        given = self.options
        return TableTarget(TableFormat(given["format"]), given["name"], given["region"], given["endpoint"])

    def schema(self) -> StructType:
        """Return the columns of the table."""
        schema = open_table(self._target).schema()
        assert schema is not None
        return from_arrow_schema(schema)

    def reader(self, schema: StructType) -> "_Reader":
        """Return a reader of all rows of a version."""
        return _Reader(self._target, self.options.get("version", ""), schema)

    def writer(self, schema: StructType, overwrite: bool) -> "_Writer":
        """Return a writer of files that no snapshot lists yet."""
        columns = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(self.options["columns"])))
        layout = json.loads(self.options["layout"])
        return _Writer(
            self._target, Layout(**layout | {"sort_by": tuple(layout["sort_by"])}), columns, self.options["report"]
        )


@dataclass
class _Files(WriterCommitMessage):
    files: list[DataFile]


class _Writer(DataSourceArrowWriter):
    def __init__(self, target: TableTarget, layout: Layout, columns: pa.Schema, report: str) -> None:
        self._target = target
        self._layout = layout
        self._columns = columns
        self._report = report

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of a task."""
        table = open_table(self._target)
        return _Files(list(write_files(iterator, self._columns, self._layout, table.store, table.folder)))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Save the names of the files for the driver."""
        files = [file.encode() for each in messages if isinstance(each, _Files) for file in each.files]
        Path(self._report).write_text(json.dumps(files), encoding="utf-8")


@dataclass
class _Part(InputPartition):
    files: list[DataFile]


class _Reader(DataSourceReader):
    def __init__(self, target: TableTarget, version: str, schema: StructType) -> None:
        self._target = target
        self._version = version
        columns = open_table(target).schema()
        assert columns is not None
        # A commit since Spark asked for the columns may have added some.
        self._columns = pa.schema([columns.field(name) for name in schema.fieldNames()])

    def partitions(self) -> Sequence[InputPartition]:
        """Return the files, distributed by size."""
        files = open_table(self._target).files(self._version)
        parts = [_Part([]) for _ in range(_TASKS_MAX)]
        for number, file in enumerate(sorted(files, key=lambda each: -each.size_bytes)):
            parts[number % _TASKS_MAX].files.append(file)
        return [part for part in parts if part.files] or parts[:1]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the files of a task."""
        if isinstance(partition, _Part):
            yield from read_files(partition.files, self._columns, open_table(self._target).store)
