"""What `write.format("quire")` and `writeStream` do in driver and tasks.

Messages are visible as soon as brokers have stored them: there is nothing to commit, and nothing that an abort could
take back. A task that is tried again sends the same rows under the same producer name and sequence ids:

    batch write    <run>-<task>          row number in the task, from 1
    stream         <query>-<task>        (batch id << 32) + row number in the task, from 1

so that brokers drop what they have, provided that the rows of a task come in the same order again (docs/spark.md).
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
"""Rows of one task: what is left of a sequence id beside the batch id."""
_log = logging.getLogger("quire.jobs.sink")


@dataclass
class Written(WriterCommitMessage):
    """What one task wrote."""

    rows: int


class _Task:
    """Pickled to the tasks. `run`: begin of the producers' names."""

    def __init__(self, options: SinkOptions, schema: StructType, run: str) -> None:
        self._options = options
        self._columns = arrow_columns(schema)
        self._run = run
        RowEncoder(self._columns, options.schema_type)  # says on the driver what is wrong with the columns

    def send(self, batches: Iterator[pa.RecordBatch], run: str, first: int) -> Written:
        """Sequence ids from `first` to below `end` are of these rows."""
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
                    f"quire sink: producer {name} has written later batches already, up to sequence id "
                    f"{publisher.last_sequence_id}: brokers would drop this one, from {first} on. With a new or an "
                    "older checkpoint give another producerName, or none"
                )
            while batch is not None:
                sequence_id = publisher.send(encoder.messages(batch.cast(self._columns)), sequence_id)
                if sequence_id >= end:
                    raise QuireJobError(f"quire sink: more than {ROWS_MAX} rows in one task: repartition the data")
                batch = next(batches, None)
        return Written(sequence_id - first)


class QuireWriter(DataSourceArrowWriter, _Task):
    """Of a batch write."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        _Task.__init__(self, options, schema, options.producer_name or f"spark-{uuid.uuid4().hex[:12]}")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """In a task."""
        return self.send(iterator, self._run, 1)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """All tasks are done; brokers stored their messages long since."""
        rows = sum(each.rows for each in messages if isinstance(each, Written))
        _log.info("%d messages are in %s", rows, self._options.topic)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """What was stored stays."""
        _log.warning("the write into %s failed; what its tasks sent before stays there", self._options.topic)


class QuireStreamWriter(DataSourceStreamArrowWriter, _Task):
    """Of a streaming query. A batch that is tried again after a restart is dropped like a retried task."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        _Task.__init__(self, options, schema, options.producer_name)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """In a task."""
        context = TaskContext.get()
        assert context is not None
        query, batch = (context.getLocalProperty(name) for name in ("sql.streaming.queryId", "streaming.sql.batchId"))
        if batch is None or not (self._run or query):
            raise JobOptionsError("quire sink: Spark tells no batch id or query id; it is needed for sequence ids")
        return self.send(iterator, self._run or f"spark-{query}", int(batch) * ROWS_MAX + 1)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """The batch is done."""
        rows = sum(each.rows for each in messages if isinstance(each, Written))
        _log.info("batch %d: %d messages are in %s", batchId, rows, self._options.topic)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """What was stored stays, and is dropped when the batch comes again."""
        _log.warning("batch %d into %s failed; it is sent again", batchId, self._options.topic)
