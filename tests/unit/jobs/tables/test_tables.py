"""Both kinds of tables: a commit stays single, after any repetition and any crash."""

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from quire_jobs.errors import JobOptionsError
from quire_jobs.tables import Layout, TableFormat, TableTarget, iceberg_table, once_per_batch, once_per_run, open_table
from quire_jobs.tables.compaction import groups_of
from quire_jobs.tables.data_files import DataFile, read_files, write_files
from quire_jobs.tables.marks import POSITIONS, Advance, LedgerRange, decode_positions
from quire_jobs.tables.version import Version
from tests.unit.jobs.tables.conftest import LAYOUT, SCHEMA, ids_of, put, rows_of, write


def test_a_repeated_run_or_batch_adds_nothing(target: TableTarget) -> None:
    assert open_table(target).marks() == {} and open_table(target).schema() is None
    assert put(target, range(10), once_per_run("monday")) is not None
    assert put(target, range(10), once_per_run("monday")) is None
    assert put(target, range(10, 20), once_per_batch("query", 4)) is not None
    assert put(target, range(10, 20), once_per_batch("query", 4)) is None
    assert put(target, range(20), once_per_batch("query", 3)) is None, "batches ascend"
    assert put(target, range(20, 22), once_per_batch("other", 0)) is not None
    assert ids_of(target) == list(range(22))


def test_readers_ignore_files_without_a_commit(target: TableTarget) -> None:
    put(target, range(5), once_per_run("a"))
    write(open_table(target), range(5, 9))
    assert ids_of(target) == list(range(5))


def test_the_second_of_two_concurrent_commits_adds_nothing(target: TableTarget) -> None:
    """Two drivers of one run that both found no mark: only the files of one are added."""
    first, second = open_table(target), open_table(target)
    files = [write(first, range(7)), write(second, range(7))]
    assert first.commit(files[0], SCHEMA, once_per_run("a"), began_ms=1 << 62) is not None
    assert second.commit(files[1], SCHEMA, once_per_run("a"), began_ms=1 << 62) is None
    assert ids_of(target) == list(range(7))


def test_a_commit_without_rows_stores_its_mark(target: TableTarget) -> None:
    assert put(target, [], once_per_batch("query", 0)) is not None
    assert put(target, [], once_per_batch("query", 0)) is None
    assert ids_of(target) == []


def test_a_replacing_commit_leaves_only_its_rows(target: TableTarget) -> None:
    put(target, range(5), once_per_run("a"))
    assert put(target, range(100, 103), once_per_run("b"), replace=True) is not None
    assert ids_of(target) == [100, 101, 102]
    assert put(target, range(5), once_per_run("b"), replace=True) is None
    assert ids_of(target) == [100, 101, 102]


def test_ranges_of_ledgers_join_and_never_overlap(target: TableTarget) -> None:
    assert put(target, range(2), LedgerRange("t/n/persistent/x", 3, 7)) is not None
    assert put(target, range(2), LedgerRange("t/n/persistent/x", 7, 9)) is None
    assert put(target, range(2, 4), LedgerRange("t/n/persistent/x", 12, 12, before=7)) is not None
    assert put(target, range(4, 6), LedgerRange("t/n/persistent/x", 20, 21, before=15)) is not None
    assert open_table(target).marks() == {"ledgers.t/n/persistent/x": "3-12,20-21"}
    assert ids_of(target) == list(range(6))


def test_each_file_contains_the_rows_of_one_hour_and_bucket(target: TableTarget) -> None:
    put(target, range(40), once_per_run("a"), per_hour=20)
    table = open_table(target)
    files = table.files()
    assert sorted(file.rows for file in files) == [10] * 4
    for file in files:
        ids = [each for batch in read_files([file], SCHEMA, table.store) for each in batch.column("id").to_pylist()]
        assert len({(each // 20, each % 2) for each in ids}) == 1
        assert f"hour=1970-01-01T{ids[0] // 20:02d}/key_bucket={ids[0] % 2}/" in file.path


def test_small_files_are_merged_and_an_outdated_merge_changes_nothing(target: TableTarget) -> None:
    for number in range(5):
        put(target, range(number * 10, number * 10 + 10), once_per_run(str(number)))
    table = open_table(target)
    (even, odd) = groups_of(table.files(), LAYOUT.file_bytes, 4)
    assert len(even) == len(odd) == 5
    flat = Layout()
    merged = [
        DataFile(each.path, each.rows, each.size_bytes, even[0].partition)
        for each in write_files(
            read_files(even, SCHEMA, table.store), SCHEMA, flat, table.store, even[0].path.rpartition("/")[0]
        )
    ]
    assert ids_of(target) == list(range(50)), "nothing changed before the commit"
    assert table.merge(even, merged, began_ms=1 << 62)
    assert ids_of(target) == list(range(50)) and len(table.files()) == 6
    assert not table.merge(even, merged, began_ms=1 << 62), "these files are no longer in the table"
    assert ids_of(target) == list(range(50))
    assert put(target, range(10), once_per_run("0")) is None, "marks remain after a merge"


def test_columns_may_be_added_but_not_changed(target: TableTarget) -> None:
    put(target, range(3), once_per_run("a"))
    table = open_table(target)
    wider = SCHEMA.append(pa.field("more", pa.string()))
    table.prepare(wider, LAYOUT)
    rows = pa.RecordBatch.from_pylist([{"id": 9, "key_bucket": 1, "more": "x"}], wider)
    files = list(write_files([rows], wider, LAYOUT, table.store, table.folder))
    table.commit(files, wider, once_per_run("b"), began_ms=1 << 62)
    found = [row for batch in read_files(table.files(), wider, table.store) for row in batch.to_pylist()]
    assert sorted((row["id"], row["more"]) for row in found) == [(0, None), (1, None), (2, None), (9, "x")]
    with pytest.raises(JobOptionsError, match="column id is int64 in the table and string"):
        table.prepare(pa.schema([("id", pa.string())]), LAYOUT)


def test_iceberg_engines_find_rows_partitions_and_the_mark(target: TableTarget) -> None:
    if target.format is not TableFormat.ICEBERG:
        pytest.skip("the other kind has no catalog")
    put(target, range(40), once_per_run("a"), per_hour=20)
    table = iceberg_table._catalog(target.catalog).load_table(target.identifier)
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == list(range(40))
    assert sorted(
        table.scan("key_bucket = 1 and time >= '1970-01-01T01:00:00+00:00'").to_arrow()["id"].to_pylist()
    ) == [each for each in range(20, 40) if each % 2]
    assert len(list(table.scan("key_bucket = 1 and time >= '1970-01-01T01:00:00+00:00'").plan_files())) == 1
    assert [field.name for field in table.spec().fields] == ["time_hour", "key_bucket_part"]
    summary = table.metadata.snapshots[-1].summary
    assert summary is not None and summary["quire.mark"] == "run.a"
    assert "quire.mark-value" in summary.additional_properties


def test_snapshots_of_iceberg_do_not_repeat_the_positions_of_many_partitions(target: TableTarget) -> None:
    if target.format is not TableFormat.ICEBERG:
        pytest.skip("the other kind has no summaries")
    through = {f"public/default/persistent/orders-partition-{number}": "3:9" for number in range(100)}
    put(target, range(3), Advance({}, through))
    table = iceberg_table._catalog(target.catalog).load_table(target.identifier)
    summary = table.metadata.snapshots[-1].summary
    assert summary is not None and "quire.mark-value" not in summary.additional_properties
    assert decode_positions(open_table(target).marks()[POSITIONS]) == through


@pytest.mark.parametrize(
    ("kind", "name", "said"),
    [
        ("delta", "file:///x/y", "unknown; give parquet or iceberg"),
        ("iceberg", "orders", "catalog.namespace.table"),
        ("parquet", "s3://bucket", "the folder is missing"),
        ("parquet", "/data/x", "s3://bucket/folder"),
        ("parquet", "s3://key:secret@bucket/x", "s3://bucket/folder"),
    ],
)
def test_invalid_table_names_are_refused(kind: str, name: str, said: str) -> None:
    with pytest.raises(JobOptionsError, match=said):
        TableTarget.parse(kind, name)


def test_a_missing_catalog_is_an_error() -> None:
    with pytest.raises(JobOptionsError, match=r"iceberg:nowhere\.a\.b"):
        open_table(TableTarget.parse("iceberg", "nowhere.a.b"))


def test_a_version_has_the_marks_of_its_files_and_stays_readable(target: TableTarget) -> None:
    assert open_table(target).version() == Version()
    put(target, range(10), once_per_run("a"))
    first = open_table(target).version()
    put(target, range(10, 20), once_per_run("b"))
    second = open_table(target).version()
    table = open_table(target)
    assert (set(first.marks), set(second.marks)) == ({"run.a"}, {"run.a", "run.b"})
    for version, rows in ((first.name, 10), (second.name, 20), ("", 20)):
        assert sum(file.rows for file in table.files(version)) == rows


def test_a_table_may_be_partitioned_by_day(target: TableTarget) -> None:
    layout, table = Layout(day_of="time"), open_table(target)
    table.prepare(SCHEMA, layout)
    batch = rows_of(range(48), per_hour=1)
    batch = batch.take(pc.sort_indices(batch, sort_keys=[("id", "ascending")]))
    files = list(write_files([batch], SCHEMA, layout, table.store, table.folder))
    assert [(file.partition, file.rows) for file in files] == [("day=1970-01-01", 24), ("day=1970-01-02", 24)]
    assert table.commit(files, SCHEMA, once_per_run("a"), began_ms=1 << 62) is not None
    assert ids_of(target) == list(range(48))
    with pytest.raises(JobOptionsError, match="choose one"):
        Layout(hour_of="time", day_of="time")
