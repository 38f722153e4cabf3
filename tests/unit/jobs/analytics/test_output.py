"""Results in a real folder, a real bucket and a real catalog: a repetition replaces them completely."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from quire_jobs.analytics import cost
from quire_jobs.analytics.output import FEW_ROWS, Attempt, Output, open_output, safe_name
from quire_jobs.errors import JobOptionsError, QuireJobError
from quire_jobs.job import parse_parameters
from quire_jobs.tables import open_table, read_frame
from tests.support.s3_server import S3Server, require_s3

BUCKET = "reports"


def output(place: str, run_id: str = "r1", **given: Any) -> Output:
    parameters = parse_parameters(
        cost.Parameters, {"metadata": "etcd://e:2379", "output": place, "runId": run_id} | given
    )
    return Output("cost", parameters)


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    server = S3Server(require_s3(), tmp_path_factory.mktemp("s3"))
    server.start()
    server.make_bucket(BUCKET)
    yield server
    server.stop()


@pytest.fixture
def keys(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the credentials in the environment; region and endpoint come from parameters."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, s3.environment[name])
    for name in ("AWS_REGION", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_files_are_in_the_run_s_folder_and_as_the_newest_ones(tmp_path: Path) -> None:
    first, second = output(f"file://{tmp_path}/out", "one:1"), output(f"file://{tmp_path}/out", "two")
    for each, text in ((first, "1"), (second, "2"), (first, "3")):
        each.check()
        each.put({"report.html": text})
    assert names(tmp_path / "out") == {f"cost/{folder}report.html" for folder in ("", "one-1/", "two/")}
    assert [(tmp_path / f"out/cost/{folder}report.html").read_text() for folder in ("one-1/", "two/", "")] == [
        "3",
        "2",
        "3",
    ]


def test_a_run_without_an_id_is_named_after_its_time(tmp_path: Path) -> None:
    assert output(f"file://{tmp_path}", "", asOf="2026-11-22T10:00:00Z").run == "20261122T100000Z"
    assert safe_name("cost-1-2026-11-22T10:00:00Z/..") == "cost-1-2026-11-22T10-00-00Z"


def test_a_folder_that_cannot_be_created_is_an_error_before_anything_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(JobOptionsError, match="cannot be written: cannot create the folder"):
        output(f"file://{tmp_path}/file/out").check()


@pytest.mark.usefixtures("keys")
def test_a_bucket_is_reached_by_endpoint_and_region(s3: S3Server) -> None:
    reports = output(f"s3a://{BUCKET}/daily", endpoint=s3.endpoint, region="us-east-1")
    reports.check()
    reports.put({"summary.json": "{}\n"})
    assert {name for name in names(s3.buckets / BUCKET) if name.startswith("daily")} == {
        "daily/cost/r1/summary.json",
        "daily/cost/summary.json",
    }


@pytest.mark.usefixtures("keys")
@pytest.mark.parametrize(
    ("bucket", "secret", "said"),
    [
        (BUCKET, "wrong-key-of-this-test", "the credentials are not accepted"),
        ("not-made", "", "the bucket does not exist"),
    ],
)
def test_the_error_of_a_bucket_is_one_line_without_keys(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch, bucket: str, secret: str, said: str
) -> None:
    if secret:
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    with pytest.raises(QuireJobError) as raised:
        output(f"s3://{bucket}/x", endpoint=s3.endpoint).check()
    text = str(raised.value)
    assert said in text and f"output = 's3://{bucket}/x' cannot be written" in text and "\n" not in text
    assert os.environ["AWS_SECRET_ACCESS_KEY"] not in text


def test_a_missing_catalog_is_an_error_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(JobOptionsError, match=r"nowhere\.reports"):
        output(f"file://{tmp_path}/out", format="iceberg", tables="nowhere.reports").check()


def test_of_two_attempts_of_a_run_the_first_to_commit_counts() -> None:
    one, other = Attempt("r1 a", (None,)), Attempt("r1 b", (None,))
    assert (one.merged(None, 0), other.merged("r1 a", 0)) == ("r1 a", None)
    assert one.merged("r1 a", 0) is None, "it is already present"
    assert Attempt("r1 c", ("r1 a",)).merged("r1 a", 0) == "r1 c"
    assert Attempt("r2 a").merged("r1 c", 0) == "r2 a", "a table of all runs has the rows of the last run"


@pytest.mark.parametrize("rows", [FEW_ROWS, FEW_ROWS + 1])
def test_a_table_has_all_rows_in_order_whether_the_driver_writes_them_or_tasks(
    spark: SparkSession, tmp_path: Path, rows: int
) -> None:
    one = open_output("cost", output(f"file://{tmp_path}/out").parameters)
    one.replace("topics", spark.range(rows).selectExpr("id", "timestamp_seconds(id) as at").orderBy("id"))
    found = read_frame(spark, one.table("topics")).orderBy("id").collect()
    assert [row.id for row in found] == list(range(rows))
    assert found[-1]["at"].timestamp() == rows - 1


def test_a_repeated_run_replaces_its_earlier_rows(spark: SparkSession, tmp_path: Path) -> None:
    place = f"file://{tmp_path}/out"
    first = open_output("cost", output(place).parameters)
    shown = first.replace("topics", spark.range(3))
    data = tmp_path / "out/cost/r1/tables/topics/data"
    assert shown == f"{place}/cost/r1/tables/topics"
    (data / "left-by-a-killed-task.parquet").write_bytes(b"")
    assert output(place).replace("topics", spark.range(10, 15)) == shown
    # By its log, and by a plain listing of its files.
    assert sorted(row.id for row in read_frame(spark, first.table("topics")).collect()) == [10, 11, 12, 13, 14]
    assert sorted(row.id for row in spark.read.parquet(f"file://{data}").collect()) == [10, 11, 12, 13, 14]
    assert {f"data/{path.name}" for path in data.iterdir()} == {
        file.path for file in open_table(first.table("topics")).files()
    }
    other = output(place, "r2")
    other.replace("topics", spark.range(1))
    assert read_frame(spark, first.table("topics")).count() == 5


def test_an_overtaken_attempt_fails(spark: SparkSession, tmp_path: Path) -> None:
    slow, quick = (output(f"file://{tmp_path}/out") for _ in range(2))
    slow.check()
    rows = spark.range(2)

    class Overtaken:
        """A frame during whose write another attempt commits."""

        def __getattr__(self, name: str) -> Any:
            if name == "limit":  # the driver asks for a few rows
                quick.replace("topics", spark.range(7))
            return getattr(rows, name)

    with pytest.raises(QuireJobError, match="another attempt of run r1"):
        slow.replace("topics", Overtaken())  # type: ignore[arg-type]
    assert read_frame(spark, quick.table("topics")).count() == 7


def test_an_iceberg_table_has_the_rows_of_the_newest_run(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"TYPE": "sql", "URI": f"sqlite:///{tmp_path}/catalog.db", "WAREHOUSE": f"file://{tmp_path}/files"}
    for name, value in given.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__REPORTS__{name}", value)
        monkeypatch.setitem(spark.sparkContext.environment, f"PYICEBERG_CATALOG__REPORTS__{name}", value)
    for run, count in (("r1", 3), ("r2", 2), ("r2", 5)):
        each = output(f"file://{tmp_path}/out", run, format="iceberg", tables="reports.daily")
        each.check()
        assert each.replace("twice-stored", spark.range(count)) == "iceberg:reports.daily.cost_twice_stored"
        assert read_frame(spark, each.table("twice-stored")).count() == count
        assert open_table(each.table("twice-stored")).marks()["analysis"].startswith(f"{run} ")


def test_observations_of_a_run_are_kept_once(spark: SparkSession, tmp_path: Path) -> None:
    place = f"file://{tmp_path}/out"
    assert output(place).observed(spark, "cursors") is None
    for run in ("r1", "r2", "r1", "r3", "r4", "r5"):
        output(place, run).observe("cursors", spark.range(2).selectExpr("id", f"'{run}' as run"))
    seen = output(place).observed(spark, "cursors")
    assert seen is not None
    assert sorted(row.run for row in seen.collect()) == [run for run in ("r1", "r2", "r3", "r4", "r5") for _ in "ab"]
