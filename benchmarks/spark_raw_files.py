"""Reads the same entries as the Spark source from files, by a Python data source, for comparison.

A file holds entries, each preceded by its length (4 bytes, big-endian). This is a separate module because Spark's
workers import it.
"""

import struct
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from quire_jobs.source.batches import entry_batch
from quire_jobs.source.columns import spark_schema
from quire_jobs.source.entry_runs import Run
from quire_jobs.source.options import parse_options
from quire_jobs.source.spans import LogName

LENGTH = struct.Struct(">I")
_RUN_BYTES = 4 << 20


class RawFiles(DataSource):
    """Files of entries with their lengths, as rows of mode `entries`. A task reads one file."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return "rawfiles"

    def schema(self) -> StructType:
        """Return the columns of mode `entries`."""
        return spark_schema(parse_options({"metadata": "-", "ledgers": "0", "mode": "entries"}))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of the folder in `path`."""
        return RawReader(self.options["path"])


class RawReader(DataSourceReader):
    """See RawFiles."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def partitions(self) -> list[InputPartition]:
        """Return one partition a file."""
        return [InputPartition(str(path)) for path in sorted(Path(self._folder).iterdir())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one file."""
        log, first = LogName("", None, None), 0
        with open(partition.value, "rb", buffering=0) as file:
            rest = b""
            while chunk := file.read(_RUN_BYTES):
                data = memoryview(rest + chunk)
                payloads, at = [], 0
                while at + 4 <= len(data):
                    end = at + 4 + LENGTH.unpack_from(data, at)[0]
                    if end > len(data):
                        break
                    payloads.append(data[at + 4 : end])
                    at = end
                rest = bytes(data[at:])
                if payloads:
                    yield entry_batch(log, Run(0, first, payloads))
                first += len(payloads)
