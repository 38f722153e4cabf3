"""The parts that only a Parquet table has: its log of snapshots and its sweep."""

import json
import os
import time
from pathlib import Path

import pytest

from quire_bookie.errors import ObjectStoreError
from quire_jobs.errors import QuireJobError
from quire_jobs.tables import TableTarget, once_per_batch, once_per_run
from quire_jobs.tables import parquet_table as module
from quire_jobs.tables.data_files import DataFile
from quire_jobs.tables.parquet_table import ParquetTable
from quire_jobs.tables.snapshots import Change, State, decode_log, encode_snapshot
from tests.unit.jobs.tables.conftest import SCHEMA, ids_of, put, write

OLD_S = 10 * 86_400


@pytest.fixture
def target(tmp_path: Path) -> TableTarget:
    return TableTarget.parse("parquet", f"file://{tmp_path}/table")


def test_the_log_is_read_from_its_last_whole_state(target: TableTarget, tmp_path: Path) -> None:
    for number in range(40):
        put(target, [number], once_per_batch("query", number))
    assert ids_of(target) == list(range(40))
    for version in range(1, 32):
        (tmp_path / "table/_quire/snapshots" / f"{version:020d}.json").unlink()
    assert ids_of(target) == list(range(40)), "snapshots 32 to 41 contain the whole state"
    (tmp_path / "table/_quire/snapshots" / f"{33:020d}.json").unlink()
    with pytest.raises(QuireJobError, match="snapshot 33 of its log is missing"):
        ids_of(target)


def test_a_commit_whose_response_was_lost_is_not_repeated(target: TableTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    put(target, [0], once_per_run("a"))
    table = ParquetTable(target, sweep_after_s=OLD_S)
    files = write(table, [1])
    opened = module._objects

    class Deaf:
        """Stores the object, then reports a failure."""

        def __init__(self, *where: str) -> None:
            self._objects = opened(*where)

        def __getattr__(self, name: str) -> object:
            return getattr(self._objects, name)

        async def put(self, name: str, data: bytes, **more: object) -> None:
            await self._objects.put(name, data)
            raise ObjectStoreError("no response")

    monkeypatch.setattr(module, "_objects", Deaf)
    assert table.commit(files, SCHEMA, once_per_run("b"), began_ms=1 << 62) == "3"
    monkeypatch.undo()
    assert ids_of(target) == [0, 1]


def test_a_sweep_removes_old_unlisted_files(target: TableTarget, tmp_path: Path) -> None:
    put(target, range(4), once_per_run("a"))
    table = ParquetTable(target, sweep_after_s=OLD_S)
    orphan, young = write(table, [7]), write(table, [8])
    put(target, range(10, 12), once_per_run("b"), replace=True)
    files = {path: path for path in (tmp_path / "table/data").rglob("*.parquet")}
    for path in files:
        if not str(path).endswith(young[0].path):
            os.utime(path, (time.time() - 2 * OLD_S,) * 2)
    assert table.sweep() == 1
    left = {str(path) for path in (tmp_path / "table/data").rglob("*.parquet")}
    assert not any(path.endswith(orphan[0].path) for path in left)
    assert len(left) == len(files) - 1, "recently replaced files may still be read, and young ones may be committed"
    assert ids_of(target) == [10, 11]


def test_a_commit_that_took_too_long_fails(target: TableTarget) -> None:
    table = ParquetTable(target, sweep_after_s=OLD_S)
    began_ms = int(time.time() * 1000) - OLD_S * 1000 // 2 - 1000
    with pytest.raises(QuireJobError, match="longer than half"):
        table.commit(write(table, [1]), SCHEMA, once_per_run("a"), began_ms=began_ms)
    assert ids_of(target) == []


def test_a_merge_that_took_too_long_fails_and_the_table_is_unchanged(target: TableTarget) -> None:
    for number in range(2):
        put(target, [number], once_per_run(str(number)))
    table = ParquetTable(target, sweep_after_s=OLD_S)
    began_ms = int(time.time() * 1000) - OLD_S * 1000 // 2 - 1000
    with pytest.raises(
        QuireJobError, match=r"this merge of small files took 4320\d\d s, longer than half of the 864000 s"
    ):
        table.merge(table.files(), write(table, [0, 1]), began_ms=began_ms)
    assert ids_of(target) == [0, 1] and len(table.files()) == 2


def test_a_sweep_keeps_young_snapshots_and_those_that_a_reader_needs(target: TableTarget, tmp_path: Path) -> None:
    """If a young version were removed, a stalled commit could create its name again and be in no reader's log."""
    for number in range(55):
        put(target, [number], once_per_batch("query", number))
    folder = tmp_path / "table/_quire/snapshots"
    for path in folder.iterdir():
        if int(path.stem) != 7:
            os.utime(path, (time.time() - 2 * OLD_S,) * 2)
    ParquetTable(target, sweep_after_s=OLD_S).sweep()
    versions = sorted(int(path.stem) for path in folder.iterdir())
    assert versions == [7, *range(32, 57)], (
        "of 56 versions, 48 has the whole state, and one checkpoint before it is kept"
    )
    assert ids_of(target) == list(range(55))
    os.utime(folder / f"{7:020d}.json", (time.time() - 2 * OLD_S,) * 2)
    ParquetTable(target, sweep_after_s=OLD_S).sweep()
    assert sorted(int(path.stem) for path in folder.iterdir()) == list(range(32, 57))


def test_the_format_of_a_snapshot() -> None:
    file = DataFile("data/hour=1970-01-01T00/key_bucket=1/a.parquet", 3, 400, "hour=1970-01-01T00/key_bucket=1")
    change = Change((file,), ("data/old.parquet",), {"run.a": "5", "run.old": None})
    state = State(1, {"data/old.parquet": file}, {"run.old": "1"}).after(change, 9)
    value = encode_snapshot(state, change, "c0ffee", 9)
    assert json.loads(value) == {
        "format": 1,
        "version": 2,
        "commit": "c0ffee",
        "atMs": 9,
        "marks": {"run.a": "5", "run.old": None},
        "schema": None,
        "added": [
            {
                "path": "data/hour=1970-01-01T00/key_bucket=1/a.parquet",
                "rows": 3,
                "size_bytes": 400,
                "partition": "hour=1970-01-01T00/key_bucket=1",
            }
        ],
        "removed": ["data/old.parquet"],
        "swept": [],
        "state": None,
    }
    first = encode_snapshot(State(1, {}, {"run.old": "1"}, SCHEMA), Change(schema=SCHEMA), "x", 1)
    read = decode_log([first, value])
    assert (read.version, dict(read.marks), read.gone, read.schema) == (
        2,
        {"run.a": "5"},
        {"data/old.parquet": 9},
        SCHEMA,
    )
    assert list(read.files.values()) == [file]
    for broken in (b"{}", b"not json", value.replace(b'"format": 1', b'"format": 2')):
        with pytest.raises(QuireJobError, match="snapshot"):
            decode_log([broken])
