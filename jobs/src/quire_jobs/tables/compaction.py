"""Merges small files of a table into larger ones, within each partition. Rows remain; their order by file may change.

New files are written first; then one commit replaces the old ones, so a crash in between leaves the table unchanged. A
group is skipped if its files are no longer in the table. Old files remain for readers until a sweep.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from quire_bookie.env.clock import SystemClock
from quire_jobs.errors import QuireJobError
from quire_jobs.tables.data_files import DataFile
from quire_jobs.tables.layout import Layout
from quire_jobs.tables.table import SWEEP_AFTER_S, open_table
from quire_jobs.tables.target import TableTarget

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILES_MIN = 4
"""A partition with fewer small files is skipped, because each merge rewrites all of them."""


@dataclass(frozen=True, slots=True)
class Compacted:
    """`merged` files became `made` files; `swept` unreferenced files were removed."""

    merged: int = 0
    made: int = 0
    swept: int = 0


def compact(
    spark: "SparkSession",
    target: TableTarget,
    *,
    layout: Layout,
    files_min: int = FILES_MIN,
    sweep_after_s: float = SWEEP_AFTER_S,
) -> Compacted:
    """Merge small files and sweep old ones. Errors as `Table`; merges that finished before an error remain."""
    began_ms = SystemClock().now_ms()
    table = open_table(target, sweep_after_s=sweep_after_s)
    version = table.version()
    schema = version.schema
    if schema is None or not version.name:
        return Compacted()
    # Files of the same version: a later commit's may have columns that this schema lacks, and would lose them.
    groups = groups_of(table.files(version.name), layout.file_bytes, files_min)
    if not groups:
        return Compacted(swept=table.sweep())
    flat = replace(layout, hour_of="", day_of="", bucket_of="")  # a group is one partition

    def merge(numbers: Iterable[int]) -> Iterator[tuple[int, DataFile]]:
        from quire_jobs.tables.data_files import read_files, write_files

        store = open_table(target).store
        for number in numbers:
            rows = read_files(groups[number], schema, store)
            folder = groups[number][0].path.rpartition("/")[0]
            for file in write_files(rows, schema, flat, store, folder):
                yield number, replace(file, partition=groups[number][0].partition)

    found: dict[int, list[DataFile]] = {}
    for number, file in spark.sparkContext.parallelize(range(len(groups)), len(groups)).mapPartitions(merge).collect():
        found.setdefault(number, []).append(file)
    merged = made = 0
    for number, files in found.items():
        if sum(file.rows for file in files) != sum(file.rows for file in groups[number]):
            raise QuireJobError(
                f"{table.shown}: merging {groups[number][0].path} and others would lose rows; the table is unchanged"
            )
        if table.merge(groups[number], files, began_ms=began_ms):
            merged += len(groups[number])
            made += len(files)
    return Compacted(merged, made, table.sweep())


def groups_of(files: Sequence[DataFile], file_bytes: int, files_min: int) -> list[list[DataFile]]:
    """Return groups of at least `files_min` small files of one partition, each group of about one file's size."""
    by_partition: dict[str, list[DataFile]] = {}
    for file in files:
        if file.size_bytes < file_bytes // 2:
            by_partition.setdefault(file.partition, []).append(file)
    groups: list[list[DataFile]] = []
    for _, small in sorted(by_partition.items()):
        group: list[DataFile] = []
        for file in sorted(small, key=lambda each: (each.size_bytes, each.path)):
            if group and sum(each.size_bytes for each in group) + file.size_bytes > file_bytes:
                groups.append(group)
                group = []
            group.append(file)
        groups.append(group)
    return [group for group in groups if len(group) >= files_min]
