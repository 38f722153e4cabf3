"""Writes and reads the Parquet files of a table, within Spark's tasks.

Each attempt of a task gives a file its own name, and a file belongs to the table only once a commit lists it. Readers
therefore never see files of repeated or killed tasks. Memory: one file and one row group per task.
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
"""Size of the Arrow data in a row group, before compression."""
GROUP_ROWS = 1 << 20


class FileStore(Protocol):
    """Access of a task to the data files of a table."""

    def put(self, path: str, data: Buffer) -> None:
        """Write a complete file durably. QuireJobError."""
        ...

    def open(self, path: str, size_bytes: int) -> io.RawIOBase | Any:
        """Return a seekable file for reading. QuireJobError."""
        ...


@dataclass(frozen=True, slots=True)
class DataFile:
    """One file of a table. `partition`: its folder according to the layout."""

    path: str
    rows: int
    size_bytes: int
    partition: str = ""

    def encode(self) -> dict[str, Any]:
        """Return the file as JSON."""
        return asdict(self)


def write_files(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, layout: Layout, store: FileStore, folder: str
) -> Iterator[DataFile]:
    """Write these rows to files below `folder`, a new file at each change of partition; yield them. QuireJobError."""
    writing: _File | None = None
    for batch in batches:
        for partition, run in layout.runs(fit_columns(batch, schema)):
            if writing is not None and (writing.partition != partition or writing.size_bytes >= layout.file_bytes):
                yield writing.end(store, folder)
                writing = None
            if run.num_rows:
                writing = writing or _File(partition, schema, layout)
                writing.add(run)
    if writing is not None:
        yield writing.end(store, folder)


def read_files(files: Iterable[DataFile], schema: pa.Schema, store: FileStore) -> Iterator[pa.RecordBatch]:
    """Yield the rows of files with the columns of `schema`; columns that a file lacks are null. QuireJobError."""
    for file in files:
        with store.open(file.path, file.size_bytes) as opened:
            for batch in pq.ParquetFile(opened, pre_buffer=True).iter_batches():
                yield fit_columns(batch, schema)


def fit_columns(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the batch with these columns, cast where Spark's types differ (time zones, large strings).
    QuireJobError."""
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
    """A file that is being written."""

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
        """Bytes written so far."""
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
        """Write the file, and check the number of rows by reading it back."""
        self._flush()
        self._writer.close()
        data = self._sink.getvalue()
        path = "/".join(part for part in (folder, self.partition, f"{uuid4().hex}.parquet") if part)
        store.put(path, memoryview(data))
        with store.open(path, data.size) as opened:
            found = pq.read_metadata(opened).num_rows
        if found != self._rows:
            raise QuireJobError(f"{path}: the stored file has {found} rows; the task wrote {self._rows}")
        return DataFile(path, self._rows, data.size, self.partition)
