"""The writers of `write.format("quire")` and `writeStream`, on the driver and in tasks.

Messages are visible as soon as brokers have stored them, so there is nothing to commit, and an abort cannot withdraw
them. A retried task sends the same rows under the same producer name and sequence ids:

    batch write    <run>-<task>          row number in the task, from 1
    stream         <query>-<task>        (batch id << 32) + row number in the task, from 1

Brokers then drop duplicates, provided that the rows of a task come in the same order again (docs/spark.md).
"""

import logging
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from quire_jobs.errors import JobOptionsError, QuireJobError
from quire_jobs.sink.options import SinkOptions
from quire_jobs.sink.publishing import Publisher
from quire_jobs.sink.rows import RowEncoder
from quire_jobs.spark_columns import arrow_columns

ROWS_MAX = 1 << 32
"""Maximum of rows in one task: the bits of a sequence id that the batch id does not use."""
_log = logging.getLogger("quire.jobs.sink")


@dataclass
class Written(WriterCommitMessage):
    """Number of rows that one task wrote."""

    rows: int


class _Task:
    """The work of a task. Spark pickles it to the tasks. `run`: prefix of the producers' names."""

    def __init__(self, options: SinkOptions, schema: StructType, run: str) -> None:
        self._options = options
        self._columns = arrow_columns(schema)
        self._run = run
        RowEncoder(self._columns, options.schema_type)  # reports invalid columns on the driver

    def send(self, batches: Iterator[pa.RecordBatch], run: str, first: int) -> Written:
        """Send the rows, with sequence ids from `first` to below `end`."""
        end = first + ROWS_MAX
        context = TaskContext.get()
        assert context is not None
        encoder = RowEncoder(self._columns, self._options.schema_type)
        sequence_id = first
        batch = next(batches, None)
        if batch is None:
            return Written(0)
        name = f"{run}-{context.partitionId()}"
        with Publisher(self._options, name, encoder.definition) as publisher:
            if publisher.last_sequence_id >= end:
                raise JobOptionsError(
                    f"quire sink: producer {name} has already written later batches, up to sequence id "
                    f"{publisher.last_sequence_id}: brokers would drop this batch, which begins at {first}. With a new "
                    "or an older checkpoint, set another producerName, or none"
                )
            while batch is not None:
                sequence_id = publisher.send(encoder.messages(batch.cast(self._columns)), sequence_id)
                if sequence_id >= end:
                    raise QuireJobError(f"quire sink: more than {ROWS_MAX} rows in one task: repartition the data")
                batch = next(batches, None)
        return Written(sequence_id - first)


class QuireWriter(DataSourceArrowWriter, _Task):
    """Writes one batch DataFrame."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        _Task.__init__(self, options, schema, options.producer_name or f"spark-{uuid.uuid4().hex[:12]}")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows of a task."""
        return self.send(iterator, self._run, 1)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log the number of messages; brokers have stored them already."""
        rows = sum(each.rows for each in messages if isinstance(each, Written))
        _log.info("wrote %d messages to %s", rows, self._options.topic)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log the failure; stored messages remain."""
        _log.warning("the write to %s failed; messages that its tasks have sent remain there", self._options.topic)


class QuireStreamWriter(DataSourceStreamArrowWriter, _Task):
    """Writes a streaming query. Brokers drop a batch that is repeated after a restart, like a retried task."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        _Task.__init__(self, options, schema, options.producer_name)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows of a task."""
        context = TaskContext.get()
        assert context is not None
        query, batch = (context.getLocalProperty(name) for name in ("sql.streaming.queryId", "streaming.sql.batchId"))
        if batch is None or not (self._run or query):
            raise JobOptionsError("quire sink: Spark passes no batch id or query id, which sequence ids need")
        return self.send(iterator, self._run or f"spark-{query}", int(batch) * ROWS_MAX + 1)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Log the number of messages of the batch."""
        rows = sum(each.rows for each in messages if isinstance(each, Written))
        _log.info("batch %d: wrote %d messages to %s", batchId, rows, self._options.topic)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Log the failure. Stored messages remain; brokers drop them when the batch is repeated."""
        _log.warning("batch %d to %s failed; it will be repeated", batchId, self._options.topic)
