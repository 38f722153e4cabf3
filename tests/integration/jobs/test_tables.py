"""Tables written by real Spark: batches and streams, also with killed drivers and executors."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
from pyspark.sql import SparkSession, functions

from quire_jobs.errors import JobOptionsError, SourceUnavailableError
from quire_jobs.tables import (
    Layout,
    TableFormat,
    TableTarget,
    compact,
    iceberg_table,
    once_per_run,
    open_table,
    read_frame,
    write_frame,
)
from tests.integration.jobs import spark_processes
from tests.integration.jobs.conftest import Cluster

ROOT = Path(__file__).resolve().parents[3]
KILLS = 2
_names = count(1)
GUARD_S = 300
LAYOUT = Layout("publish_time", "key", 4, ("entry",))
Publish = Callable[..., None]


@pytest.fixture(params=["parquet", "iceberg"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TableTarget]:
    """A table that does not exist yet; Spark's tasks find catalogs through their environment."""
    if request.param == "parquet":
        yield TableTarget.parse("parquet", f"file://{tmp_path}/tables/one")
        return
    # A process caches its catalogs: one catalog for all tests, with a namespace each.
    assert request.getfixturevalue("catalog").is_dir()
    yield TableTarget.parse("iceberg", f"tests.n{abs(hash(str(tmp_path)))}.one")


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[Path]:
    """A catalog for this process, its drivers, and the Pythons of Spark, whose JVM started before this fixture."""
    folder = tmp_path_factory.mktemp("catalog")
    given = {"TYPE": "sql", "URI": f"sqlite:///{folder}/catalog.db", "WAREHOUSE": f"file://{folder}/files"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in given.items():
            patch.setenv(f"PYICEBERG_CATALOG__TESTS__{name}", value)
            patch.setitem(spark.sparkContext.environment, f"PYICEBERG_CATALOG__TESTS__{name}", value)
        yield folder


@pytest.fixture
def topic() -> str:
    return f"persistent://public/default/tables{next(_names)}"


def rows_by_others(target: TableTarget, spark: SparkSession) -> list[dict[str, object]]:
    """Return the rows that other readers find: PyIceberg's scan, or Spark's own Parquet reader."""
    if target.format is TableFormat.ICEBERG:
        table = iceberg_table._catalog(target.catalog).load_table(target.identifier)
        found: list[dict[str, object]] = table.scan().to_arrow().to_pylist()
        return found
    files = [f"{target.name}/{file.path}" for file in open_table(target).files()]
    return [row.asDict() for row in spark.read.parquet(*files).collect()]


def test_rows_of_a_frame_are_in_the_table_once_and_small_files_are_merged(
    spark: SparkSession, target: TableTarget
) -> None:
    ids = spark.range(1000).withColumn("key", functions.expr("if(id % 10 = 0, null, concat('k', id % 7))"))
    frame = ids.withColumn("publish_time", functions.expr("timestamp_seconds(1700000000 + id * 20)"))
    frame = frame.withColumn("properties", functions.expr("map('a', 'b')"))
    layout = Layout("publish_time", "key", 4, ("id",))
    written = write_frame(frame, target, once_per_run("a"), layout=layout)
    assert (written.repeated, written.rows) == (False, 1000) and written.files >= 6
    assert write_frame(frame, target, once_per_run("a"), layout=layout).repeated
    more = frame.where("id < 10").withColumn("more", functions.lit(1.5))
    for number in range(4):
        assert write_frame(more, target, once_per_run(f"b{number}"), layout=layout).rows == 10
    rows = rows_by_others(target, spark)
    assert len(rows) == 1040 and len({row["id"] for row in rows}) == 1000
    assert len({(row["key"], row["key_bucket"]) for row in rows}) == 8, "a key has one bucket"
    assert {row["key_bucket"] for row in rows if row["key"] is None} == {-1}
    done = compact(spark, target, layout=layout)
    assert done.merged > done.made > 0
    assert read_frame(spark, target).count() == 1040
    assert read_frame(spark, target).where("more is not null").count() == 40
    with pytest.raises(JobOptionsError, match="column id"):
        write_frame(frame.withColumn("id", functions.col("id").cast("string")), target, once_per_run("c"))


def test_an_unavailable_source_in_a_task_reaches_the_driver_and_the_table_is_unchanged(
    spark: SparkSession, tmp_path: Path
) -> None:
    def unread(number: int) -> int:
        raise SourceUnavailableError("quire source: bookie b:3181 does not respond")

    target = TableTarget.parse("parquet", f"file://{tmp_path}/tables/one")
    frame = spark.range(3)
    with pytest.raises(SourceUnavailableError, match=r"^quire source: bookie b:3181 does not respond$"):
        write_frame(
            frame.select(functions.udf(unread, "long", useArrow=False)("id").alias("id")), target, once_per_run("a")
        )
    assert write_frame(frame, target, once_per_run("a")).rows == read_frame(spark, target).count() == 3


@pytest.mark.timeout(1200)
def test_after_a_killed_driver_every_message_is_in_the_table_once(
    spark: SparkSession, publish: Publish, cluster: Cluster, topic: str, tmp_path: Path, target: TableTarget
) -> None:
    payloads = [b"message %d" % number for number in range(1000)]
    publish(topic, payloads, [f"k{number % 5}" for number in range(1000)], batching_enabled=False)
    checkpoint, log = tmp_path / "checkpoint", tmp_path / "driver.log"
    command = [sys.executable, "-m", "tests.integration.jobs.table_driver", target.format, target.name]
    command += [str(checkpoint), cluster.metadata, topic]
    kills = 0
    while True:
        committed = _committed(target)
        with log.open("wb") as output:
            driver = subprocess.Popen(command, stdout=output, stderr=output, cwd=ROOT, start_new_session=True)
        try:
            # Right after a commit of the table: Spark has not recorded that batch as done yet, or has begun the next.
            if kills < KILLS and _until_more(target, committed, driver):
                kills += 1
                continue
            assert driver.wait(GUARD_S) == 0, log.read_text(errors="replace")[-6000:]
            break
        finally:
            if driver.poll() is None:
                os.killpg(driver.pid, signal.SIGKILL)  # Python and its JVM at once
            driver.wait()
    assert kills == KILLS
    rows = sorted(rows_by_others(target, spark), key=lambda row: (row["ledger"], row["entry"]))
    assert [row["payload"] for row in rows] == payloads


@pytest.mark.parametrize("target", ["iceberg"], indirect=True)
def test_after_executors_are_killed_during_writes_every_message_is_in_the_table_once(
    publish: Publish, cluster: Cluster, catalog: Path, topic: str, tmp_path: Path, target: TableTarget
) -> None:
    payloads = [b"message %d" % number for number in range(400)]
    publish(topic, payloads, [f"k{number % 60}" for number in range(400)], batching_enabled=False)
    log = tmp_path / "driver.log"
    command = [sys.executable, "-m", "tests.integration.jobs.table_driver", target.format, target.name]
    command += [str(tmp_path / "checkpoint"), cluster.metadata, topic, spark_processes.MASTER]
    environment = spark_processes.environment(tmp_path)
    with log.open("wb") as output:
        driver = subprocess.Popen(
            command, stdout=output, stderr=output, cwd=ROOT, env=environment, start_new_session=True
        )
    try:
        strikes = spark_processes.kill_executors_while_files_come(driver, catalog / "files", counts=(2, 1))
        assert driver.wait(GUARD_S) == 0, log.read_text(errors="replace")[-6000:]
    finally:
        if driver.poll() is None:
            os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    assert strikes == 2
    table = iceberg_table._catalog(target.catalog).load_table(target.identifier)
    rows = sorted(table.scan().to_arrow().to_pylist(), key=lambda row: (row["ledger"], row["entry"]))
    assert [row["payload"] for row in rows] == payloads
    listed = {file.path for file in open_table(target).files()}
    written = {path.as_uri() for path in Path(table.location().removeprefix("file://")).rglob("*.parquet")}
    assert written - listed, "readers ignore files of the killed executors"


def _committed(target: TableTarget) -> int:
    """Return the last micro-batch in the table."""
    return max(
        [int(value) for key, value in open_table(target).marks().items() if key.startswith("query.")], default=-1
    )


def _until_more(target: TableTarget, committed: int, driver: "subprocess.Popen[bytes]") -> bool:
    deadline = time.monotonic() + GUARD_S
    while _committed(target) <= committed:
        if time.monotonic() > deadline or driver.poll() is not None:
            return False
        time.sleep(0.02)  # another process: there is no event to wait on
    return True
