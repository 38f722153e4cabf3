"""`write.format("quire")` with real Spark and a real cluster: all rows are read back, once, after a retry too."""

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pulsar = pytest.importorskip("pulsar")

from pyspark.errors import PySparkException, StreamingQueryException  # noqa: E402  after the check that it is there
from pyspark.sql import DataFrame, SparkSession  # noqa: E402
from pyspark.sql import functions as f  # noqa: E402

from quire_jobs.errors import JobOptionsError  # noqa: E402
from quire_jobs.sink.options import parse_sink_options  # noqa: E402
from quire_jobs.source import register  # noqa: E402
from tests.integration.jobs.conftest import Cluster  # noqa: E402

_names = itertools.count()


@pytest.fixture(scope="module")
def namespace(cluster: Cluster) -> str:
    """A namespace whose topics drop duplicates."""
    cluster.process.request("PUT", "/admin/v2/namespaces/public/sink")
    cluster.process.request("POST", "/admin/v2/namespaces/public/sink/deduplication", True)
    return "public/sink"


@pytest.fixture
def topic(namespace: str) -> str:
    return f"persistent://{namespace}/t{next(_names)}"


def sink_options(cluster: Cluster, topic: str, **more: Any) -> dict[str, Any]:
    return {"serviceUrl": cluster.process.url, "http": cluster.process.http, "topic": topic, **more}


Read = Callable[..., DataFrame]


@pytest.fixture
def read(spark: SparkSession, cluster: Cluster) -> Read:
    def frame(topic: str, **options: Any) -> DataFrame:
        more = {"http": cluster.process.http, **options}
        return spark.read.format("quire").options(**cluster.options, topic=topic, **more).load()

    return frame


def make_partitions(cluster: Cluster, topic: str, count: int) -> None:
    cluster.process.request("PUT", f"/admin/v2/persistent/{topic.removeprefix('persistent://')}/partitions", count)


def write(frame: DataFrame, options: dict[str, Any]) -> None:
    frame.write.format("quire").mode("append").options(**options).save()


def test_payloads_keys_and_properties_arrive_in_order_and_a_repeated_run_adds_nothing(
    spark: SparkSession, cluster: Cluster, read: Read, topic: str
) -> None:
    rows = spark.range(0, 3000, 1, 2).select(
        f.format_string("m%d", "id").alias("value"),
        f.format_string("k%d", f.col("id") % 5).alias("key"),
        f.expr("map('n', cast(id as string))").alias("properties"),
        f.expr("timestamp_millis(id)").alias("event_time"),
    )
    for _ in range(2):
        write(rows, sink_options(cluster, topic, producerName="nightly", batchRows=100, compression="zstd"))
    found = read(topic).collect()
    assert sorted(bytes(row.payload) for row in found) == sorted(b"m%d" % number for number in range(3000))
    for producer in ("nightly-0", "nightly-1"):
        own = [row for row in found if row.producer == producer]
        assert [row.sequence_id for row in own] == list(range(1, 1501))
        numbers = [int(bytes(row.payload)[1:]) for row in own]
        assert numbers == sorted(numbers)
    assert all(row.properties == {"n": bytes(row.payload)[1:].decode()} for row in found)
    assert all(row.key == f"k{int(bytes(row.payload)[1:]) % 5}" for row in found)


@pytest.mark.parametrize("kind", ["avro", "json"])
def test_records_are_registered_routed_by_key_and_read_as_a_table_and_by_a_stock_consumer(
    spark: SparkSession, cluster: Cluster, client: Any, read: Read, topic: str, kind: str
) -> None:
    make_partitions(cluster, topic, 3)
    rows = spark.range(200).select(
        f.col("id"),
        f.concat(f.lit("n"), "id").alias("name"),
        f.when(f.col("id") % 2 == 0, f.col("id") / 2).alias("half"),
        f.format_string("k%d", f.col("id") % 10).alias("key"),
    )
    write(rows, sink_options(cluster, topic, schema=kind))
    wider = rows.withColumn("tags", f.array("name")).withColumn("id", f.col("id") + 200)
    write(wider, sink_options(cluster, topic, schema=kind))
    table = read(topic, mode="table")
    found = {row.id: row for row in table.collect()}
    assert sorted(found) == list(range(400))
    assert (found[4].name, found[4].half, found[5].half, found[4].tags) == ("n4", 2.0, None, None)
    assert found[204].tags == ["n4"]
    assert all(row._error is None for row in found.values())
    assert len({row._partition for row in found.values()}) > 1
    by_key: dict[str, set[int]] = {}
    for row in found.values():
        by_key.setdefault(row._key, set()).add(row._partition)
    assert all(len(partitions) == 1 for partitions in by_key.values())
    consumer = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
    assert {consumer.receive(60_000).partition_key() for _ in range(400)} == {f"k{number}" for number in range(10)}
    consumer.close()


def test_a_stream_that_repeats_its_last_batch_writes_each_row_once(
    spark: SparkSession, cluster: Cluster, read: Read, topic: str, tmp_path: Path
) -> None:
    source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    source.mkdir()

    def run() -> None:
        frame = spark.readStream.format("text").load(str(source))
        options = sink_options(cluster, topic, checkpointLocation=str(checkpoint))
        query = frame.writeStream.format("quire").options(**options).trigger(availableNow=True).start()
        assert query.awaitTermination(120)

    for part in range(2):
        lines = "".join(f"line {part}-{number}\n" for number in range(50))
        (source / f"{part}.txt").write_text(lines)
        run()
    commit = checkpoint / "commits" / "1"
    commit.unlink()  # as after a crash between the write and its commit
    (checkpoint / "commits" / ".1.crc").unlink(missing_ok=True)
    run()
    assert commit.exists()  # the batch was repeated
    found = [bytes(row.payload).decode() for row in read(topic).collect()]
    assert sorted(found) == sorted(f"line {part}-{number}" for part in range(2) for number in range(50))
    shutil.rmtree(checkpoint)


def test_a_new_stream_with_an_old_producer_name_is_refused(
    spark: SparkSession, cluster: Cluster, read: Read, topic: str, tmp_path: Path
) -> None:
    source = tmp_path / "in"
    source.mkdir()

    def run(checkpoint: str) -> None:
        frame = spark.readStream.format("text").load(str(source))
        options = sink_options(cluster, topic, checkpointLocation=str(tmp_path / checkpoint), producerName="lines")
        query = frame.writeStream.format("quire").options(**options).trigger(availableNow=True).start()
        assert query.awaitTermination(120)

    for part in range(2):
        (source / f"{part}.txt").write_text(f"line {part}\n")
        run("first")
        (source / f"{part}.txt").unlink()
    (source / "2.txt").write_text("line 2\n")
    with pytest.raises(StreamingQueryException, match="has already written later batches"):
        run("second")  # batch 0 again, which brokers would silently drop
    assert sorted(bytes(row.payload) for row in read(topic).collect()) == [b"line 0", b"line 1"]


def test_impossible_writes_fail_at_planning(spark: SparkSession, cluster: Cluster, topic: str) -> None:
    rows = spark.createDataFrame([("x",)], ["value"])
    plain = "persistent://public/default/without-deduplication"
    for frame, changes, text in (
        (rows, {"topic": plain}, "does not drop duplicates"),
        (rows, {"nope": "1"}, "unknown option nope"),
        (rows.withColumn("id", f.lit(1)), {}, "columns id would not be sent"),
    ):
        with pytest.raises(PySparkException, match=text):
            write(frame, sink_options(cluster, topic) | changes)
    with pytest.raises(PySparkException, match="a topic cannot be overwritten"):
        rows.write.format("quire").mode("overwrite").options(**sink_options(cluster, topic)).save()


def test_an_incompatible_schema_is_refused_and_named(spark: SparkSession, cluster: Cluster, topic: str) -> None:
    write(spark.createDataFrame([(1,)], ["a"]), sink_options(cluster, topic, schema="avro"))
    with pytest.raises(PySparkException, match="are not compatible with the schema"):
        write(spark.createDataFrame([("x",)], ["a"]), sink_options(cluster, topic, schema="avro"))


def test_a_session_that_only_writes_finds_the_source(
    spark: SparkSession, cluster: Cluster, read: Read, topic: str
) -> None:
    """The session neither reads nor makes frames from Python rows, which would make it the active one of the thread."""
    for number in range(2):
        other = spark.newSession()
        register(other)
        rows = other.range(3).selectExpr(f"concat('{number}-', id) as value")
        write(rows, sink_options(cluster, topic))
    register(spark)
    found = sorted(bytes(row.payload).decode() for row in read(topic).collect())
    assert found == [f"{number}-{row}" for number in range(2) for row in range(3)]


def test_without_deduplication_it_needs_no_http(spark: SparkSession, cluster: Cluster, read: Read) -> None:
    topic = f"persistent://public/default/plain{next(_names)}"
    options = {"serviceUrl": cluster.process.url, "topic": topic, "deduplication": "off"}
    write(spark.createDataFrame([("x",)], ["value"]), options)
    assert [bytes(row.payload) for row in read(topic).collect()] == [b"x"]
    with pytest.raises(JobOptionsError, match="needs http"):
        parse_sink_options(options | {"deduplication": "require"})
