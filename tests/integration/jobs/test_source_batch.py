"""`spark.read.format("quire")` on messages that a stock client published, read from real bookies."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pulsar")

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from quire_jobs.source import held
from tests.integration.jobs.conftest import Cluster

Publish = Callable[..., None]
Read = Callable[..., DataFrame]
_names = itertools.count()


@pytest.fixture
def topic() -> str:
    return f"persistent://public/default/batch{next(_names)}"


@pytest.fixture
def read(spark: SparkSession, cluster: Cluster) -> Read:
    """`read(option=value, ...)`: return a frame."""

    def frame(**options: Any) -> DataFrame:
        return spark.read.format("quire").options(**cluster.options, **options).load()

    return frame


def path(topic: str) -> str:
    return "/admin/v2/persistent/" + topic.removeprefix("persistent://")


def internals(cluster: Cluster, topic: str) -> Any:
    return cluster.process.request("GET", path(topic) + "/internalStats")


def refusal(read: Callable[[], DataFrame]) -> str:
    """Return the error that the user sees at planning."""
    with pytest.raises(AnalysisException) as refused:
        read().collect()
    return str(refused.value)


def test_messages_come_in_order_with_all_fields_of_the_producer(
    read: Read, publish: Publish, client: Any, cluster: Cluster, topic: str
) -> None:
    payloads = [b"message %d" % number for number in range(1000)]
    publish(topic, payloads, [f"k{number % 7}" for number in range(1000)], batching_enabled=False)
    rows = read(topic=topic, http=cluster.process.http, splitBytes="4k").collect()
    assert [bytes(row.payload) for row in rows] == payloads
    assert [row.key for row in rows] == [f"k{number % 7}" for number in range(1000)]
    assert {(row.topic, row.partition, row.batch_index) for row in rows} == {(topic, -1, -1)}
    positions = [(row.ledger, row.entry) for row in rows]
    assert positions == sorted(set(positions))
    assert len({ledger for ledger, _ in positions}) == 5  # of 200 entries each


def test_entries_are_unchanged_and_divided_over_tasks_by_bytes(
    read: Read, publish: Publish, cluster: Cluster, topic: str
) -> None:
    publish(topic, [b"x" * 1000 for _ in range(600)], batching_enabled=False)
    frame = read(topic=topic, mode="entries", http=cluster.process.http, splitBytes="64k")
    assert frame.columns == ["topic", "partition", "ledger", "entry", "size", "payload"]
    assert frame.rdd.getNumPartitions() == 12  # 3 ledgers of a little more than 200 KiB: 4 parts each
    rows = frame.collect()
    assert len(rows) == 600
    assert all(len(row.payload) == row.size > 1000 and bytes(row.payload[:2]) == b"\x0e\x01" for row in rows)


def test_batches_compression_and_all_partitions_are_read(
    read: Read, publish: Publish, client: Any, cluster: Cluster, topic: str
) -> None:
    import pulsar

    cluster.process.request("PUT", path(topic) + "/partitions", 3)
    payloads = [b"partitioned %d" % number for number in range(900)]
    keys = [f"k{number % 11}" for number in range(900)]
    publish(topic, payloads, keys, batching_enabled=True, compression_type=pulsar.CompressionType.ZSTD)
    frame = read(topic=topic, http=cluster.process.http)
    rows = frame.collect()
    assert sorted(bytes(row.payload) for row in rows) == sorted(payloads)
    assert {row.partition for row in rows} == {0, 1, 2}
    assert {row.topic for row in rows} == {topic}
    assert max(row.batch_index for row in rows) > 0
    one = read(topic=f"{topic}-partition-1", http=cluster.process.http).collect()
    assert sorted(bytes(row.payload) for row in one) == sorted(bytes(r.payload) for r in rows if r.partition == 1)


def test_topic_pattern_managed_ledger_and_ledgers_select_the_same_data(
    read: Read, publish: Publish, cluster: Cluster, topic: str
) -> None:
    publish(topic, [b"%d" % number for number in range(250)], batching_enabled=False)
    name = topic.rsplit("/", 1)[1]
    http = cluster.process.http
    by_topic = read(topic=topic, http=http).select("ledger", "entry").collect()
    assert len(by_topic) == 250
    assert read(topics=f"public/default/{name}", http=http).select("ledger", "entry").collect() == by_topic
    ledger_name = f"public/default/persistent/{name}"
    assert read(managedLedger=ledger_name, http=http).select("ledger", "entry").collect() == by_topic
    ids = sorted({row.ledger for row in by_topic})
    of_ledgers = read(ledgers=",".join(map(str, ids)), mode="entries").collect()
    assert [(row.ledger, row.entry) for row in of_ledgers][:200] == [tuple(row) for row in by_topic][:200]
    assert {(row.topic, row.partition) for row in of_ledgers} == {(None, None)}


def test_bounds_by_position_ledger_and_time(read: Read, publish: Publish, cluster: Cluster, topic: str) -> None:
    publish(topic, [b"%d" % number for number in range(500)], batching_enabled=False)
    http = cluster.process.http
    rows = read(topic=topic, http=http).collect()
    positions = [(row.ledger, row.entry) for row in rows]

    def found(**bounds: Any) -> list[tuple[int, int]]:
        return [(r.ledger, r.entry) for r in read(topic=topic, http=http, columns="ledger,entry", **bounds).collect()]

    start, end = positions[150], positions[420]
    assert found(startPosition=f"{start[0]}:{start[1]}", endPosition=f"{end[0]}:{end[1]}") == positions[150:421]
    second = positions[250][0]
    assert found(startLedger=second, endLedger=second) == [each for each in positions if each[0] == second]
    time = rows[300].publish_time
    first = next(index for index, row in enumerate(rows) if row.publish_time >= time)
    stamp = f"{time.isoformat()}Z"
    assert found(startTime=stamp) == positions[first:]
    assert found(endTime=stamp) == positions[:first]


def test_filters_skip_ledgers_and_return_the_same_rows_as_spark(
    read: Read, publish: Publish, cluster: Cluster, topic: str
) -> None:
    publish(topic, [b"%d" % n for n in range(500)], [f"k{n % 5}" for n in range(500)], batching_enabled=False)
    frame = read(topic=topic, http=cluster.process.http)
    rows = frame.collect()
    ledger = rows[-1].ledger
    only = frame.where(f"ledger = {ledger} and entry >= 3 and entry < 7")
    assert [(row.ledger, row.entry) for row in only.collect()] == [(ledger, entry) for entry in range(3, 7)]
    assert only.rdd.getNumPartitions() == 1
    keyed = frame.where("key in ('k1', 'k3') and partition = -1").collect()
    assert [bytes(row.payload) for row in keyed] == [b"%d" % n for n in range(500) if n % 5 in (1, 3)]
    later = frame.where(f"publish_time >= timestamp'{rows[250].publish_time}'").count()
    assert later == sum(row.publish_time >= rows[250].publish_time for row in rows)
    assert frame.where("topic = 'persistent://public/default/other'").count() == 0


def test_a_chunked_message_is_complete_for_every_division_into_tasks(
    read: Read, publish: Publish, cluster: Cluster, topic: str
) -> None:
    large = [bytes([number]) * 3_000_000 for number in range(3)]
    publish(topic, large, batching_enabled=False, chunking_enabled=True, max_pending_messages=100)
    rows = read(topic=topic, http=cluster.process.http, splitBytes="1500k").collect()
    assert [bytes(row.payload) for row in rows] == large


def test_a_read_never_fences_the_writer(read: Read, client: Any, cluster: Cluster, topic: str) -> None:
    producer = client.create_producer(topic, batching_enabled=False)
    for number in range(50):
        producer.send(b"%d" % number)
        if number % 10 == 9:
            assert read(topic=topic, http=cluster.process.http).count() == number + 1
    ledgers = internals(cluster, topic)["ledgers"]
    assert len(ledgers) == 1  # a fenced writer would have started another
    # Without a broker the bookies report the last entry, and they know an entry as confirmed only from the next one.
    assert read(topic=topic).count() in (49, 50)
    producer.close()


def test_the_data_of_a_job_is_kept_and_released(
    read: Read, publish: Publish, cluster: Cluster, topic: str, spark: SparkSession
) -> None:
    ask = cluster.process.request
    publish(topic, [b"%d" % number for number in range(500)], batching_enabled=False)
    ask("PUT", path(topic) + "/subscription/reader", "earliest")
    options = {**cluster.options, "topic": topic, "http": cluster.process.http}
    with held(options) as chosen:
        frame = spark.read.format("quire").options(**chosen).load()
        assert frame.count() == 500
        ask("POST", path(topic) + "/subscription/reader/skip_all")
        assert sorted(ask("GET", path(topic) + "/subscriptions")) == [f"quire.job.{chosen['jobId']}", "reader"]
        assert frame.count() == 500
        before = len(internals(cluster, topic)["ledgers"])
    assert ask("GET", path(topic) + "/subscriptions") == ["reader"]
    ask("DELETE", path(topic) + "/truncate")
    assert len(internals(cluster, topic)["ledgers"]) < before


def test_the_only_cursor_of_a_topic_causes_no_trimming_wherever_the_read_begins(
    spark: SparkSession, publish: Publish, cluster: Cluster, topic: str
) -> None:
    ask, payloads = cluster.process.request, [b"%d" % number for number in range(900)]
    publish(topic, payloads[:500], batching_enabled=False)
    ledgers = [ledger["ledgerId"] for ledger in internals(cluster, topic)["ledgers"]]
    assert len(ledgers) >= 3 and ask("GET", path(topic) + "/subscriptions") == []
    options = {**cluster.options, "topic": topic, "http": cluster.process.http}
    with held(options) as chosen:
        late = spark.read.format("quire").options(**chosen, startLedger=str(ledgers[-1])).load()
        assert late.count() == 100
        assert ask("GET", path(topic) + "/subscriptions") == [f"quire.job.{chosen['jobId']}"]
        publish(topic, payloads[500:], batching_enabled=False)  # closing ledgers makes the broker trim
        whole = spark.read.format("quire").options(**chosen).load()
        assert [bytes(row.payload) for row in whole.orderBy("ledger", "entry").collect()] == payloads
    assert ask("GET", path(topic) + "/subscriptions") == []
    assert [ledger["ledgerId"] for ledger in internals(cluster, topic)["ledgers"]][: len(ledgers)] == ledgers


def test_without_a_cursor_trimmed_entries_fail_the_job_or_are_skipped(
    read: Read, publish: Publish, cluster: Cluster, topic: str
) -> None:
    publish(topic, [b"%d" % number for number in range(500)], batching_enabled=False)
    http = cluster.process.http
    rows = read(topic=topic, http=http).collect()
    cluster.process.request("PUT", path(topic) + "/subscription/reader", "earliest")
    cluster.process.request("DELETE", path(topic) + "/truncate")
    start = f"{rows[0].ledger}:{rows[0].entry}"
    with pytest.raises(AnalysisException, match=r"was trimmed; begin later, or read the remaining entries"):
        read(topic=topic, http=http, startPosition=start).collect()
    publish(topic, [b"after"], batching_enabled=False)
    rest = read(topic=topic, http=http, startPosition=start, failOnDataLoss="false").collect()
    assert [bytes(row.payload) for row in rest][-1] == b"after"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"topic": "nothing-there"}, "there is no topic persistent://public/default/nothing-there"),
        ({"ledgers": "999999", "mode": "entries"}, "ledger 999999 does not exist"),
        ({"managedLedger": "a/b/persistent/c"}, "there is no managed ledger a/b/persistent/c"),
        ({"topics": "public/default/zzz*"}, "no topic matches public/default/zzz*"),
        ({"topic": "x", "maxRows": "5"}, "unknown option maxrows"),
        ({"topic": "x", "columns": "payload,weight"}, "mode messages has no column 'weight'"),
        ({}, "give exactly one of topic, topics, managedLedger and ledgers"),
    ],
)
def test_bad_input_fails_with_one_sentence_at_planning(read: Read, options: dict[str, str], text: str) -> None:
    assert text in refusal(lambda: read(**options))


def test_a_bound_outside_the_log_is_refused(read: Read, publish: Publish, cluster: Cluster, topic: str) -> None:
    publish(topic, [b"x"], batching_enabled=False)
    text = refusal(lambda: read(topic=topic, http=cluster.process.http, startPosition="999999:0"))
    assert "startPosition = 999999:0 is outside" in text
    text = refusal(lambda: read(topic=topic, http=cluster.process.http, startLedger="999999"))
    assert "startLedger = 999999 is outside the existing ledgers" in text


def test_the_embedded_metadata_store_is_refused(spark: SparkSession) -> None:
    frame = spark.read.format("quire").options(metadata="local:/nowhere", topic="x")
    assert "only one process can use the embedded store" in refusal(frame.load)


def test_typed_columns_come_from_the_schema_that_the_producer_registered(
    read: Read, client: Any, cluster: Cluster, topic: str
) -> None:
    from pulsar.schema import Integer, JsonSchema, Record, String

    class Order(Record):  # type: ignore[misc]
        customer = String()
        cents = Integer()

    producer = client.create_producer(topic, schema=JsonSchema(Order), batching_enabled=False)
    for number in range(20):
        producer.send(Order(customer=f"c{number % 3}", cents=number), partition_key=f"k{number % 2}")
    producer.close()
    frame = read(topic=topic, mode="table", http=cluster.process.http)
    rows = frame.orderBy("cents").collect()
    assert [(row.customer, row.cents) for row in rows] == [(f"c{number % 3}", number) for number in range(20)]
    assert {row._error for row in rows} == {None}
    odd = frame.where("_key = 'k1' and cents > 10").selectExpr("sum(cents)").collect()
    assert odd[0][0] == 11 + 13 + 15 + 17 + 19
