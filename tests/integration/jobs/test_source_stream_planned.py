"""Streams on a Spark that says neither where a micro-batch begins nor how much it may have (4.1)."""

from pathlib import Path

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pulsar")

from pyspark.sql import SparkSession

from tests.integration.jobs import test_source_stream
from tests.integration.jobs.conftest import Cluster
from tests.integration.jobs.planned_source import PlannedSource
from tests.integration.jobs.test_source_stream import Publish, Stream

topic = test_source_stream.topic


@pytest.fixture
def stream(spark: SparkSession, cluster: Cluster, tmp_path: Path, topic: str) -> Stream:
    spark.dataSource.register(PlannedSource)
    options = {**cluster.options, "topic": topic, "http": cluster.process.http, "maxEntriesPerTrigger": "100"}
    return Stream(spark, tmp_path, options, "quire-planned")


def batches(stream: Stream, rows: int) -> list[int]:
    """Rows of the micro-batches that a query without an end makes, until it has so many."""
    with stream.running() as query:
        query.processAllAvailable()
        found = [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]
    assert sum(found) == rows, found
    return found


def test_a_query_that_goes_on_keeps_to_the_limit_and_takes_nothing_twice(
    stream: Stream, publish: Publish, topic: str
) -> None:
    sent = [b"%d" % number for number in range(1000)]
    publish(topic, sent[:250], batching_enabled=False)
    assert batches(stream, 250) == [250], "what it has before it knows anything of a checkpoint is not limited"
    assert stream.payloads() == sent[:250]
    for first in (250, 600):
        publish(topic, sent[first : first + 350], batching_enabled=False)
        assert batches(stream, 350) == [100, 100, 100, 50]
        assert stream.payloads() == sent[: first + 350]
    assert batches(stream, 0) == []


def test_available_now_takes_all_that_is_behind_the_checkpoint(stream: Stream, publish: Publish, topic: str) -> None:
    sent = [b"%d" % number for number in range(600)]
    publish(topic, sent[:150], batching_enabled=False)
    assert stream.run() == [150]
    publish(topic, sent[150:], batching_enabled=False)
    assert stream.run() == [450]
    assert stream.run() == []
    assert stream.payloads() == sent


def test_a_micro_batch_that_was_not_committed_is_repeated_and_the_next_one_begins_behind_it(
    stream: Stream, publish: Publish, topic: str, tmp_path: Path
) -> None:
    sent = [b"%d" % number for number in range(400)]
    publish(topic, sent[:10], batching_enabled=False)
    batches(stream, 10)
    publish(topic, sent[10:310], batching_enabled=False)
    assert batches(stream, 300) == [100, 100, 100]
    (tmp_path / "checkpoint" / "commits" / "3").unlink()  # as after a crash between the write and its commit
    (tmp_path / "checkpoint" / "commits" / ".3.crc").unlink(missing_ok=True)
    publish(topic, sent[310:], batching_enabled=False)
    batches(stream, 190)
    assert stream.payloads() == sent


def test_a_query_that_begins_with_what_comes_reads_what_came_since(
    stream: Stream, publish: Publish, topic: str
) -> None:
    publish(topic, [b"before"], batching_enabled=False)
    with stream.running(startPosition="latest") as query:
        query.processAllAvailable()
        publish(topic, [b"behind"], batching_enabled=False)
        query.processAllAvailable()
    assert stream.payloads() == [b"behind"]


def test_without_a_broker_it_says_what_it_needs(stream: Stream, publish: Publish, topic: str) -> None:
    publish(topic, [b"x"], batching_enabled=False)
    with pytest.raises(Exception, match="a stream needs http, the address of a broker"):
        stream.run(http="")
