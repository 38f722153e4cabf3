"""Tables without Spark: files that this process writes, in a folder and in an Iceberg catalog in SQLite."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from quire_jobs.tables import Layout, Mark, TableTarget, open_table
from quire_jobs.tables.data_files import DataFile, read_files, write_files
from quire_jobs.tables.table import Table

SCHEMA = pa.schema([("id", pa.int64()), ("time", pa.timestamp("us", "UTC")), ("key_bucket", pa.int32())])
LAYOUT = Layout("time", "key")
Put = Callable[..., str | None]


@pytest.fixture(params=["parquet", "iceberg"])
def target(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TableTarget:
    """A table of each kind that does not exist yet."""
    if request.param == "parquet":
        return TableTarget.parse("parquet", f"file://{tmp_path}/tables/one")
    return iceberg_target(tmp_path, monkeypatch)


def iceberg_target(folder: Path, monkeypatch: pytest.MonkeyPatch) -> TableTarget:
    """Return a table, which does not exist yet, of a catalog in SQLite."""
    catalog = f"c{abs(hash(str(folder)))}"  # catalogs are cached by name
    for name, value in (
        ("TYPE", "sql"),
        ("URI", f"sqlite:///{folder}/catalog.db"),
        ("WAREHOUSE", f"file://{folder}"),
    ):
        monkeypatch.setenv(f"PYICEBERG_CATALOG__{catalog.upper()}__{name}", value)
    return TableTarget.parse("iceberg", f"{catalog}.space.one")


def rows_of(ids: Sequence[int], per_hour: int = 1000) -> pa.RecordBatch:
    """Return rows with these ids, `per_hour` of them in each hour, in two buckets."""
    ordered = sorted(ids, key=lambda each: (each // per_hour, each % 2))
    return pa.RecordBatch.from_arrays(
        [
            pa.array(ordered, pa.int64()),
            pa.array([each // per_hour * 3_600_000_000 for each in ordered], pa.timestamp("us", "UTC")),
            pa.array([each % 2 for each in ordered], pa.int32()),
        ],
        schema=SCHEMA,
    )


def write(table: Table, ids: Sequence[int], per_hour: int = 1000) -> list[DataFile]:
    """Write files as a task does; no snapshot lists them."""
    table.prepare(SCHEMA, LAYOUT)
    return list(write_files([rows_of(ids, per_hour)], SCHEMA, LAYOUT, table.store, table.folder))


def put(
    target: TableTarget, ids: Sequence[int], mark: Mark, *, replace: bool = False, per_hour: int = 1000
) -> str | None:
    """Write and commit."""
    table = open_table(target)
    return table.commit(write(table, ids, per_hour), SCHEMA, mark, began_ms=1 << 62, replace=replace)


def ids_of(target: TableTarget) -> list[int]:
    """Return the ids that a reader finds."""
    table = open_table(target)
    found = [batch.column("id").to_pylist() for batch in read_files(table.files(), SCHEMA, table.store)]
    return sorted(each for ids in found for each in ids)
