"""Parquet files out of Arrow batches, within Spark's tasks: written whole, read back, named by nobody yet.

A file has a name of its own in each attempt of a task, and belongs to the table only once a commit lists it: what a
task that was repeated or killed has left is nothing to readers. Memory: one file and one row group a task.
"""

import io
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Protocol
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from quire_bookie.limits import MIB
from quire_bookie.model import Buffer
from quire_jobs.errors import QuireJobError
from quire_jobs.tables.layout import Layout

GROUP_BYTES = 32 * MIB
"""Of Arrow data in a row group, before compression."""
GROUP_ROWS = 1 << 20


class FileStore(Protocol):
    """Where the data files of a table lie, as a task sees it."""

    def put(self, path: str, data: Buffer) -> None:
        """Write a file whole and durable. QuireJobError."""
        ...

    def open(self, path: str, size_bytes: int) -> io.RawIOBase | Any:
        """A file to be read, with `seek`. QuireJobError."""
        ...


@dataclass(frozen=True, slots=True)
class DataFile:
    """One file of a table. `partition`: its folder by the layout."""

    path: str
    rows: int
    size_bytes: int
    partition: str = ""

    def encode(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)


def write_files(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, layout: Layout, store: FileStore, folder: str
) -> Iterator[DataFile]:
    """Files of these rows below `folder`, a new one for each change of partition. QuireJobError."""
    writing: _File | None = None
    for batch in batches:
        for partition, run in layout.runs(fitted(batch, schema)):
            if writing is not None and (writing.partition != partition or writing.size_bytes >= layout.file_bytes):
                yield writing.end(store, folder)
                writing = None
            if run.num_rows:
                writing = writing or _File(partition, schema, layout)
                writing.add(run)
    if writing is not None:
        yield writing.end(store, folder)


def read_files(files: Iterable[DataFile], schema: pa.Schema, store: FileStore) -> Iterator[pa.RecordBatch]:
    """The rows of files, with the columns of `schema`; what a file does not have is null. QuireJobError."""
    for file in files:
        with store.open(file.path, file.size_bytes) as opened:
            for batch in pq.ParquetFile(opened, pre_buffer=True).iter_batches():
                yield fitted(batch, schema)


def fitted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with these columns, cast where Spark's types differ (time zones, large strings). QuireJobError."""
    if batch.schema.equals(schema):
        return batch
    columns = []
    try:
        for field in schema:
            index = batch.schema.get_field_index(field.name)
            found = pa.nulls(batch.num_rows, field.type) if index < 0 else batch.column(index)
            columns.append(found if found.type == field.type else found.cast(field.type))
    except pa.ArrowInvalid as error:
        raise QuireJobError(f"column {field.name} does not fit the table: {error}") from error
    return pa.RecordBatch.from_arrays(columns, schema=schema)


class _File:
    """One that is being made."""

    def __init__(self, partition: str, schema: pa.Schema, layout: Layout) -> None:
        self.partition = partition
        self._schema = schema
        self._sink = pa.BufferOutputStream()
        self._writer = pq.ParquetWriter(self._sink, schema, compression=layout.compression)
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = self._waiting_rows = 0
        self._rows = 0

    @property
    def size_bytes(self) -> int:
        """Written so far."""
        return int(self._sink.tell())

    def add(self, batch: pa.RecordBatch) -> None:
        self._waiting.append(batch)
        self._waiting_bytes += batch.nbytes
        self._waiting_rows += batch.num_rows
        if self._waiting_bytes >= GROUP_BYTES or self._waiting_rows >= GROUP_ROWS:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            table = pa.Table.from_batches(self._waiting, self._schema)
            self._writer.write_table(table, row_group_size=table.num_rows)
            self._rows += table.num_rows
        self._waiting, self._waiting_bytes, self._waiting_rows = [], 0, 0

    def end(self, store: FileStore, folder: str) -> DataFile:
        """Write it, and read back how many rows are there."""
        self._flush()
        self._writer.close()
        data = self._sink.getvalue()
        path = "/".join(part for part in (folder, self.partition, f"{uuid4().hex}.parquet") if part)
        store.put(path, memoryview(data))
        with store.open(path, data.size) as opened:
            found = pq.read_metadata(opened).num_rows
        if found != self._rows:
            raise QuireJobError(f"{path}: read back were {found} rows; written were {self._rows}")
        return DataFile(path, self._rows, data.size, self.partition)
