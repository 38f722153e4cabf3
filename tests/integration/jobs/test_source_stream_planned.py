"""Streams on a Spark that passes neither the start nor the limit of a micro-batch (4.1)."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pulsar")

from pyspark.sql import SparkSession
from pyspark.sql.datasource import InputPartition

from quire_jobs.errors import DataLossError, JobOptionsError
from quire_jobs.source.offsets import decode
from quire_jobs.source.options import parse_options
from quire_jobs.source.spans import Split
from quire_jobs.source.stream_planned import PlannedStreamReader
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
    """Return the rows of the micro-batches that a query without an end makes until it has `rows` rows."""
    with stream.running() as query:
        query.processAllAvailable()
        found = [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]
    assert sum(found) == rows, found
    return found


def test_a_continued_query_keeps_to_the_limit_and_repeats_nothing(stream: Stream, publish: Publish, topic: str) -> None:
    sent = [b"%d" % number for number in range(1000)]
    publish(topic, sent[:250], batching_enabled=False)
    assert batches(stream, 250) == [250], "the first batch, before a checkpoint is known, is not limited"
    assert stream.payloads() == sent[:250]
    for first in (250, 600):
        publish(topic, sent[first : first + 350], batching_enabled=False)
        assert batches(stream, 350) == [100, 100, 100, 50]
        assert stream.payloads() == sent[: first + 350]
    assert batches(stream, 0) == []


def test_available_now_is_one_micro_batch_after_the_checkpoint(stream: Stream, publish: Publish, topic: str) -> None:
    sent = [b"%d" % number for number in range(600)]
    publish(topic, sent[:150], batching_enabled=False)
    assert stream.run() == [150]
    publish(topic, sent[150:], batching_enabled=False)
    assert stream.run() == [100], "the limit applies"
    assert stream.run(maxEntriesPerTrigger="0") == [350]
    assert stream.run() == []
    assert stream.payloads() == sent


def test_an_uncommitted_micro_batch_is_repeated_and_the_next_one_follows_it(
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
    batches(stream, 90)  # the sink has already written the repeated batch
    assert stream.payloads() == sent


def test_a_query_from_latest_reads_entries_published_since(stream: Stream, publish: Publish, topic: str) -> None:
    publish(topic, [b"before"], batching_enabled=False)
    with stream.running(startPosition="latest") as query:
        query.processAllAvailable()
        publish(topic, [b"after"], batching_enabled=False)
        query.processAllAvailable()
    assert stream.payloads() == [b"after"]


# ---- the reader alone, called in the order of Spark
@pytest.fixture
def reader(cluster: Cluster, topic: str) -> Iterator[Callable[..., PlannedStreamReader]]:
    """`reader(option=value)`: return a reader for one more run of the query."""
    made: list[PlannedStreamReader] = []

    def make(**more: str) -> PlannedStreamReader:
        given = {**cluster.options, "topic": topic, "http": cluster.process.http, **more}
        made.append(PlannedStreamReader(parse_options(given)))
        return made[-1]

    yield make
    for one in made:
        one.stop()


Reader = Callable[..., PlannedStreamReader]


def entries(splits: Sequence[InputPartition]) -> int:
    """Return the number of entries that the tasks read."""
    return sum(span.entries for split in splits if isinstance(split, Split) for span in split.spans)


def test_an_entry_between_the_first_two_calls_is_in_the_second_micro_batch(
    publish: Publish, topic: str, reader: Reader
) -> None:
    publish(topic, [b"before"], batching_enabled=False)
    one = reader(startPosition="latest")
    end = one.latestOffset()
    publish(topic, [b"between"], batching_enabled=False)
    begin = one.initialOffset()
    assert begin == end, "Spark would ignore a start after the end and lose the entry in between"
    assert entries(one.partitions(begin, end)) == 0
    assert entries(one.partitions(end, one.latestOffset())) == 1


def test_a_cursor_keeps_the_first_micro_batch_before_it_is_planned(
    publish: Publish, cluster: Cluster, topic: str, reader: Reader
) -> None:
    path = "/admin/v2/persistent/" + topic.removeprefix("persistent://")
    publish(topic, [b"%d" % number for number in range(300)], batching_enabled=False)
    reader(cursor="spark").latestOffset()
    backlog = cluster.process.request("GET", path + "/stats")["subscriptions"]["spark"]["msgBacklog"]
    assert backlog == 300, "so a crash of the query here loses nothing"


@pytest.mark.parametrize("committed", [True, False])
def test_a_removed_cursor_is_made_at_the_start_of_the_next_micro_batch(
    publish: Publish, cluster: Cluster, topic: str, reader: Reader, committed: bool
) -> None:
    ask, path = cluster.process.request, "/admin/v2/persistent/" + topic.removeprefix("persistent://")
    publish(topic, [b"%d" % number for number in range(250)], batching_enabled=False)
    one = reader(cursor="spark", maxEntriesPerTrigger="100")
    first = one.latestOffset()
    begin = one.initialOffset()
    one.partitions(begin, first)
    publish(topic, [b"%d" % number for number in range(300)], batching_enabled=False)
    second = one.latestOffset()
    assert entries(one.partitions(first, second)) == 100
    ask("DELETE", path + "/subscription/spark")
    again = reader(cursor="spark", maxEntriesPerTrigger="100")
    assert again.partitions(second, second) == [], "the reader receives the checkpoint"
    assert ask("GET", path + "/subscriptions") == [], "the next micro-batch may begin before the checkpoint"
    if not committed:
        assert entries(again.partitions(first, second)) == 100
    assert entries(again.partitions(second, again.latestOffset())) == 100
    assert ask("GET", path + "/stats")["subscriptions"]["spark"]["msgBacklog"] == (200 if committed else 300)


def test_trimming_after_a_checkpoint_is_reported_even_if_nothing_is_left(
    publish: Publish, cluster: Cluster, topic: str, reader: Reader
) -> None:
    ask, path = cluster.process.request, "/admin/v2/persistent/" + topic.removeprefix("persistent://")
    publish(topic, [b"%d" % number for number in range(250)], batching_enabled=False)
    checkpoint = reader().latestOffset()
    publish(topic, [b"%d" % number for number in range(300)], batching_enabled=False)
    ask("PUT", path + "/subscription/reader", "earliest")
    ask("DELETE", path + "/truncate")
    available_now = reader(cursor="spark")
    end = available_now.latestOffset()
    (position,), (before,) = decode(end).values(), decode(checkpoint).values()
    assert position > before, "the end is never below a checkpoint that the reader does not know"
    with pytest.raises(DataLossError, match="was trimmed"):
        available_now.partitions(checkpoint, end)
    assert ask("GET", path + "/subscriptions") == ["reader"], "a cursor would imply that it had kept everything"


def test_a_managed_ledger_without_a_topic_is_refused(cluster: Cluster) -> None:
    given = {**cluster.options, "managedLedger": "some/ledger", "http": cluster.process.http}
    with pytest.raises(JobOptionsError, match="a stream needs a topic and http"):
        PlannedStreamReader(parse_options(given))


def test_without_a_broker_the_error_names_the_missing_option(stream: Stream, publish: Publish, topic: str) -> None:
    publish(topic, [b"x"], batching_enabled=False)
    with pytest.raises(Exception, match="a stream needs a topic and http"):
        stream.run(http="")
