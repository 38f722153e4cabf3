"""Arrangement of rows in files: partitions by hour and key bucket, order, sizes. Pure, except for arranging a frame.

    key_bucket = crc32(bytes of the key, text as UTF-8) mod buckets; -1 for rows without a key

The bucket is a column of the table, so that every reader can use it. The hour, or the day, is derived from the time
column: by the folder in a Parquet table, by the transform `hour` or `day` in an Iceberg table.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from quire_bookie.limits import MIB
from quire_jobs.errors import JobOptionsError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BUCKET = "key_bucket"
_PERIOD = "_period_of_partition"
_PERIOD_S = {"hour": 3600, "day": 86_400}
_PERIOD_NAME = {"hour": "%Y-%m-%dT%H", "day": "%Y-%m-%d"}


@dataclass(frozen=True, slots=True)
class Layout:
    """`hour_of` or `day_of`: a timestamp column; `bucket_of`: a string or binary column; empty for no such partition.

    `file_bytes`: size at which a file is closed; a task holds that much in memory. `sort_by`: order within a file.
    """

    hour_of: str = ""
    bucket_of: str = ""
    buckets: int = 16
    sort_by: tuple[str, ...] = ()
    file_bytes: int = 128 * MIB
    compression: str = "zstd"
    day_of: str = ""

    def __post_init__(self) -> None:
        """Raise JobOptionsError for values that are out of range."""
        if not 1 <= self.buckets <= 10_000 or self.file_bytes < MIB:
            raise JobOptionsError(
                f"{self.buckets} key buckets and files of {self.file_bytes} bytes: choose 1 to 10000 buckets, and "
                f"files of at least {MIB} bytes"
            )
        if self.hour_of and self.day_of:
            raise JobOptionsError(f"partitions by hour of {self.hour_of} and by day of {self.day_of}: choose one")

    @property
    def partitioned(self) -> bool:
        """Whether the table is partitioned."""
        return bool(self.time_of or self.bucket_of)

    @property
    def time_of(self) -> str:
        """The timestamp column by which the table is partitioned; empty for none."""
        return self.hour_of or self.day_of

    @property
    def period(self) -> str:
        """The length of a partition: hour or day."""
        return "day" if self.day_of else "hour"

    def arrange(self, frame: "DataFrame") -> "DataFrame":
        """Return the frame with the column of the bucket, with the rows of each partition in few tasks, sorted."""
        from pyspark.sql import functions

        by: list[str] = []
        if self.time_of:
            by.append(self.time_of)
        if self.bucket_of:
            key = functions.col(self.bucket_of).cast("binary")
            bucket = functions.pmod(functions.crc32(key), functions.lit(self.buckets)).cast("int")
            frame = frame.withColumn(BUCKET, functions.coalesce(bucket, functions.lit(-1)))
            by.append(BUCKET)
        missing = [name for name in (*by, *self.sort_by) if name not in frame.columns]
        if missing:
            raise JobOptionsError(
                f"no column {', '.join(missing)} to arrange the table by; the columns are {', '.join(frame.columns)}"
            )
        order = list(self.sort_by)
        if by:
            if self.time_of:  # in UTC, independent of the session's time zone
                length_s = functions.lit(_PERIOD_S[self.period])
                frame = frame.withColumn(_PERIOD, functions.floor(functions.unix_seconds(self.time_of) / length_s))
            keys = [functions.col(name) for name in (_PERIOD, BUCKET) if name in frame.columns]
            # With this hint, adaptive Spark joins small partitions and splits large ones.
            return frame.hint("rebalance", *keys).sortWithinPartitions(*keys, *order).drop(_PERIOD)
        return frame.sortWithinPartitions(*order) if order else frame

    def runs(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield the batch, cut where the partition changes; each piece with its folder ("" without partitions)."""
        if not self.partitioned or not batch.num_rows:
            yield "", batch
            return
        keys = [pc.floor_temporal(self._utc(batch), unit=self.period)] if self.time_of else []
        keys += [batch.column(BUCKET)] if self.bucket_of else []
        starts = sorted({0, *(at for key in keys for at in _changes(key))})
        for start, end in zip(starts, [*starts[1:], batch.num_rows], strict=True):
            yield self._folder([key[start].as_py() for key in keys]), batch.slice(start, end - start)

    def _utc(self, batch: pa.RecordBatch) -> pa.Array:
        return batch.column(self.time_of).cast(pa.timestamp("us", "UTC")).cast(pa.timestamp("us"))

    def _folder(self, values: list[Any]) -> str:
        """Return the folder as Hive names partitions, in UTC: hour=2026-01-31T12/key_bucket=3."""
        parts = []
        if self.time_of:
            time = values.pop(0)
            name = "none" if time is None else time.strftime(_PERIOD_NAME[self.period])
            parts.append(f"{self.period}={name}")
        if self.bucket_of:
            parts.append(f"{BUCKET}={values.pop(0)}")
        return "/".join(parts)


def _changes(key: pa.Array) -> list[int]:
    """Return the indexes at which a value differs from the previous one."""
    before, after = key.slice(0, len(key) - 1), key.slice(1)
    differs = pc.or_(pc.fill_null(pc.not_equal(before, after), False), pc.xor(before.is_null(), after.is_null()))
    return [at + 1 for at in pc.indices_nonzero(differs).to_pylist()]
