"""Tables that jobs and streams write, each commit once: Parquet in a folder or bucket, or Iceberg (docs/offload.md).

    target = TableTarget.parse("parquet", "s3://bucket/tables/messages")
    written = write_frame(frame, target, once_per_run(run_id), layout=Layout(hour_of="publish_time", bucket_of="key"))

target                         which table
marks                          what a commit stands for, so that repeats are seen
layout                         partitions, order, sizes of files
data_files, task_files         Parquet files out of Arrow batches; Spark's tasks that write and read them
snapshots                      the log of a Parquet table (pure)
parquet_table, iceberg_table   the two kinds; `table` is what both do
catalog_errors                 Iceberg catalogs that are away, or wrong
frames                         DataFrames in and out, streams into tables
compaction                     small files merged
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
