"""The job `table` and the view over table and log, with real Spark, bookies, broker and stock producers."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pulsar.schema import Double, Integer, JsonSchema, Record, String
from pyspark.sql import SparkSession

from quire_jobs.job import Outcome, Summary, parse_parameters
from quire_jobs.lake import job, live_table
from quire_jobs.lake.following import cursor_of
from quire_jobs.tables import TableFormat, TableTarget, iceberg_table, open_table, read_frame
from quire_jobs.tables.marks import POSITIONS, decode_positions
from tests.integration.jobs.conftest import Cluster
from tests.support.polling import until
from tests.support.standalone import QUIRE
from tests.unit.jobs.analytics.quiet_progress import QuietProgress

ROOT = Path(__file__).resolve().parents[3]
GUARD_S = 300
KILLS = 2
_names = count(1)
Publish = Callable[..., None]
Run = Callable[..., Summary]


class Order(Record):  # type: ignore[misc]
    customer = String()
    number = Integer()


class PricedOrder(Record):  # type: ignore[misc]
    customer = String()
    number = Integer()
    price = Double(required_default=True)


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[str]:
    """The name of a catalog for this process, its drivers, and the Pythons of Spark."""
    folder = tmp_path_factory.mktemp("lake")
    given = {"TYPE": "sql", "URI": f"sqlite:///{folder}/catalog.db", "WAREHOUSE": f"file://{folder}/files"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in given.items():
            patch.setenv(f"PYICEBERG_CATALOG__LAKE__{name}", value)
            patch.setitem(spark.sparkContext.environment, f"PYICEBERG_CATALOG__LAKE__{name}", value)
        yield "lake"


@pytest.fixture(params=["iceberg"])
def target(request: pytest.FixtureRequest, tmp_path: Path, catalog: str) -> TableTarget:
    """A table that does not exist yet."""
    if request.param == "iceberg":
        return TableTarget.parse("iceberg", f"{catalog}.n{next(_names)}.one")
    return TableTarget.parse(request.param, f"file://{tmp_path}/tables/one")


@pytest.fixture
def topic() -> str:
    return f"persistent://public/default/lake{next(_names)}"


@pytest.fixture
def run(spark: SparkSession, cluster: Cluster) -> Run:
    """`run(target, topics, name=value)`: the summary of a run of the job."""

    def work(target: TableTarget, *topics: str, **given: Any) -> Summary:
        usual: dict[str, Any] = {"metadata": cluster.metadata, "http": cluster.process.http, "runId": "r"}
        usual |= {"topics": list(topics), "format": target.format.value, "table": target.name}
        return job.run(spark, parse_parameters(job.Parameters, usual | given), QuietProgress())

    return work


def rows_by_others(target: TableTarget, spark: SparkSession) -> list[dict[str, Any]]:
    """Return the rows that other readers find: PyIceberg's scan, or Spark's own Parquet reader."""
    if target.format is TableFormat.ICEBERG:
        table = iceberg_table._catalog(target.catalog).load_table(target.identifier)
        found: list[dict[str, Any]] = table.scan().to_arrow().to_pylist()
        return found
    files = [f"{target.name}/{file.path}" for file in open_table(target).files()]
    return [row.asDict() for row in spark.read.option("mergeSchema", "true").parquet(*files).collect()]


def path_of(topic: str) -> str:
    return "/admin/v2/persistent/" + topic.removeprefix("persistent://")


def send(client: Any, topic: str, record: type[Any], numbers: range, **more: Any) -> None:
    producer = client.create_producer(topic, schema=JsonSchema(record), batching_enabled=False)
    for number in numbers:
        producer.send_async(record(customer=f"c{number % 3}", number=number, **more), lambda *_: None)
    producer.flush()
    producer.close()


def test_a_partitioned_topic_becomes_typed_rows_and_later_runs_add_what_is_new(
    run: Run, client: Any, cluster: Cluster, spark: SparkSession, topic: str, target: TableTarget
) -> None:
    cluster.process.request("PUT", path_of(topic) + "/partitions", 3)
    send(client, topic, Order, range(60))
    first = run(target, topic, partitionBy="day", batchEntries=20)
    assert first.outcome is Outcome.SUCCEEDED, first
    assert first.counts["rows"] == 60 and first.counts["commits"] >= 3
    send(client, topic, PricedOrder, range(60, 90), price=1.5)
    second = run(target, topic, partitionBy="day")
    assert second.counts["rows"] == 30
    again = run(target, topic, partitionBy="day")
    assert (again.counts["rows"], again.counts["commits"]) == (0, 0)
    rows = sorted(rows_by_others(target, spark), key=lambda row: row["number"])
    assert [row["number"] for row in rows] == list(range(90))
    assert [row["price"] for row in rows] == [None] * 60 + [1.5] * 30
    assert {row["customer"] for row in rows} == {"c0", "c1", "c2"} and {row["_error"] for row in rows} == {None}
    assert {row["_partition"] for row in rows} == {0, 1, 2}
    assert len({file.partition for file in open_table(target).files()}) <= 2, "days, not hours"
    assert first.counts["files_merged"] + second.counts["files_merged"] >= 4, "four commits, a file or more each"


def test_a_topic_that_does_not_fit_the_table_is_named_and_the_others_are_added(
    run: Run, client: Any, publish: Publish, spark: SparkSession, topic: str, target: TableTarget
) -> None:
    class Other(Record):  # type: ignore[misc]
        customer = String()
        number = String()

    send(client, topic, Order, range(10))
    send(client, topic + "-good", Order, range(10, 20))
    producer = client.create_producer(topic + "-odd", schema=JsonSchema(Other))
    producer.send(Other(customer="c", number="one"))
    producer.close()
    publish(topic + "-raw", [b"x"])
    assert run(target, topic).outcome is Outcome.SUCCEEDED
    summary = run(target, topic + "-odd", topic + "-raw", topic + "-good", "public/default/none-*")
    assert summary.outcome is Outcome.PARTLY and summary.counts["rows"] == 10
    reasons = {each.subject: each.reason for each in summary.problems}
    assert "column number is int32 in the table and string in the new rows" in reasons[topic + "-odd"]
    assert "payload=bytes" in reasons[topic + "-raw"]
    assert summary.notes == ["no topic matches public/default/none-* yet"]
    assert not any(each.retry_helps for each in summary.problems)
    assert sorted(row["number"] for row in rows_by_others(target, spark)) == list(range(20))


@pytest.mark.timeout(1200)
def test_after_killed_drivers_every_message_is_in_the_table_once(
    publish: Publish, cluster: Cluster, spark: SparkSession, topic: str, tmp_path: Path, target: TableTarget
) -> None:
    payloads = [b"message %d" % number for number in range(900)]
    publish(topic, payloads, batching_enabled=False)
    log = tmp_path / "driver.log"
    command = [QUIRE, "jobs", "run", "table", "--master", "local[2]"]
    command += ["--metadata", cluster.metadata, "--http", cluster.process.http, f"topics={topic}", "batchEntries=100"]
    command += [f"format={target.format}", f"table={target.name}", "payload=bytes", "compact=false"]
    kills = 0
    while True:
        before = positions(target)
        with log.open("wb") as output:
            driver = subprocess.Popen(command, stdout=output, stderr=output, cwd=ROOT, start_new_session=True)
        try:
            # Right after a commit: the subscription has not moved yet, or the next batch has begun.
            if kills < KILLS:
                said = "the driver commits nothing"
                until(lambda: positions(target) != before, said, timeout_s=GUARD_S, process=driver)  # noqa: B023  called at once
                kills += 1
                continue
            assert driver.wait(GUARD_S) == 0, log.read_text(errors="replace")[-6000:]
            break
        finally:
            if driver.poll() is None:
                os.killpg(driver.pid, signal.SIGKILL)  # Python and its JVM at once
            driver.wait()
    rows = sorted(rows_by_others(target, spark), key=lambda row: (row["ledger"], row["entry"]))
    assert [bytes(row["payload"]) for row in rows] == payloads


def positions(target: TableTarget) -> dict[str, str]:
    """Return the positions that the table has reached."""
    return decode_positions(open_table(target).marks().get(POSITIONS))


def oldest_ledger(cluster: Cluster, path: str) -> int:
    """Return the id of the oldest ledger of a topic."""
    return min(int(each["ledgerId"]) for each in cluster.process.request("GET", path + "/internalStats")["ledgers"])


def test_the_view_has_each_message_once_while_the_table_grows_and_the_log_is_trimmed(
    run: Run, publish: Publish, cluster: Cluster, spark: SparkSession, topic: str, tmp_path: Path, target: TableTarget
) -> None:
    payloads = [b"%d" % number for number in range(700)]
    publish(topic, payloads[:450], batching_enabled=False)
    assert run(target, topic, payload="bytes").counts["rows"] == 450
    options = {"metadata": cluster.metadata, "http": cluster.process.http, "topic": topic}
    early = live_table(spark, target, options)
    publish(topic, payloads[450:500], batching_enabled=False)
    stream = early.stream()
    assert run(target, topic, payload="bytes").counts["rows"] == 50
    late = live_table(spark, target, options)
    publish(topic, payloads[500:], batching_enabled=False)
    for view, rows in ((early, 450), (late, 500)):
        assert view.history.count() == rows, "a view stays at its version"
        assert sorted(int(row.payload) for row in view.now().select("payload").collect()) == list(range(700))
    query = stream.writeStream.format("memory").queryName(f"tail{next(_names)}")
    running = query.option("checkpointLocation", f"{tmp_path}/checkpoint").trigger(availableNow=True).start()
    running.awaitTermination()
    assert sorted(int(row.payload) for row in spark.table(running.name).collect()) == list(range(450, 700))
    # The table's subscription is the only one, so closed ledgers that are in the table are trimmed.
    ask, path = cluster.process.request, path_of(topic)
    assert cursor_of(target) in ask("GET", path + "/internalStats")["cursors"]
    assert run(target, topic, payload="bytes").counts["rows"] == 200
    before = oldest_ledger(cluster, path)
    ask("DELETE", path + "/truncate")  # all entries are in the table
    until(lambda: oldest_ledger(cluster, path) > before, "the ledgers that are in the table are not trimmed")
    after = live_table(spark, target, options)
    assert after.tail().count() == 0 and after.now().count() == 700
    publish(topic, [b"700"], batching_enabled=False)
    assert after.now().count() == 701
    assert run(target, topic, payload="bytes").counts["rows"] == 1
    assert read_frame(spark, target).count() == 701
