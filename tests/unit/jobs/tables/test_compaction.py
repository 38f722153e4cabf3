"""Merges of small files beside other commits. tests/integration/jobs/test_tables.py merges with Spark."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from quire_jobs.tables import TableTarget, compaction, once_per_run, open_table
from quire_jobs.tables.data_files import read_files, write_files
from tests.unit.jobs.tables.conftest import LAYOUT, SCHEMA, put, rows_of

WIDER = SCHEMA.append(pa.field("extra", pa.string()))


class Here:
    """Stands for Spark: runs each task at once, in this process."""

    @property
    def sparkContext(self) -> "Here":
        return self

    def parallelize(self, items: Iterable[int], _tasks: int) -> "Here":
        self._items = list(items)
        return self

    def mapPartitions(self, work: Callable[[Iterable[int]], Iterator[Any]]) -> "Here":
        self._work = work
        return self

    def collect(self) -> list[Any]:
        return [found for item in self._items for found in self._work([item])]


class Overtaken:
    """A table to which another run commits right after its columns were asked for."""

    def __init__(self, target: TableTarget, other: Callable[[], None]) -> None:
        self._table = open_table(target)
        self._other: list[Callable[[], None]] = [other]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)

    def schema(self) -> Any:
        return self._then(self._table.schema())

    def version(self) -> Any:
        return self._then(self._table.version())

    def _then(self, found: Any) -> Any:
        while self._other:
            self._other.pop()()
        return found


def test_a_merge_drops_no_column_that_another_commit_adds_meanwhile(
    target: TableTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(0, 8, 2):
        put(target, [number], once_per_run(f"r{number}"))

    def other() -> None:
        table, rows = open_table(target), rows_of([8])
        table.prepare(WIDER, LAYOUT)
        batch = pa.RecordBatch.from_arrays([*rows.columns, pa.array(["kept"])], schema=WIDER)
        files = list(write_files([batch], WIDER, LAYOUT, table.store, table.folder))
        assert table.commit(files, WIDER, once_per_run("other"), began_ms=1 << 62) is not None

    overtaken = Overtaken(target, other)
    monkeypatch.setattr(compaction, "open_table", lambda target, **_: overtaken)
    assert compaction.compact(Here(), target, layout=LAYOUT).merged == 4  # type: ignore[arg-type]
    table = open_table(target)
    rows = [row for batch in read_files(table.files(), WIDER, table.store) for row in batch.to_pylist()]
    assert {row["id"]: row["extra"] for row in rows} == dict.fromkeys((0, 2, 4, 6)) | {8: "kept"}


def test_a_table_without_rows_has_nothing_to_merge(target: TableTarget) -> None:
    assert compaction.compact(Here(), target, layout=LAYOUT) == compaction.Compacted()  # type: ignore[arg-type]
