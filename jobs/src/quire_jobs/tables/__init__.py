"""Tables that jobs and streams write, each commit once: Parquet in a folder or bucket, or Iceberg (docs/offload.md).

    target = TableTarget.parse("parquet", "s3://bucket/tables/messages")
    written = write_frame(frame, target, once_per_run(run_id), layout=Layout(hour_of="publish_time", bucket_of="key"))

target                         identifies a table
marks                          identify the work of a commit, so that repetitions are detected
layout                         partitions, order, sizes of files
data_files, task_files         Parquet files from Arrow batches; Spark's tasks that write and read them
version                        one state of a table
snapshots                      the log of a Parquet table (pure)
parquet_table, iceberg_table   the two kinds; `table` is their common interface
catalog_errors                 classifies errors of Iceberg catalogs: unavailable, or wrong
frames                         DataFrames to and from tables, streams to tables
compaction                     merges small files
"""

from quire_jobs.tables.compaction import Compacted, compact
from quire_jobs.tables.frames import Written, foreach_batch, read_frame, write_frame
from quire_jobs.tables.layout import Layout
from quire_jobs.tables.marks import Mark, once_per_batch, once_per_run
from quire_jobs.tables.table import open_table
from quire_jobs.tables.target import TableFormat, TableTarget

__all__ = [
    "Compacted",
    "Layout",
    "Mark",
    "TableFormat",
    "TableTarget",
    "Written",
    "compact",
    "foreach_batch",
    "once_per_batch",
    "once_per_run",
    "open_table",
    "read_frame",
    "write_frame",
]
