"""`spark.readStream.format("quire")`: offsets, limits, restarts, and the Parquet output after a killed driver."""

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pulsar")

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tests.integration.jobs.conftest import Cluster

ROOT = Path(__file__).resolve().parents[3]
Publish = Callable[..., None]
NOT_STARTED = "Python worker failed to connect back"
"""Spark gives a new Python ten seconds, with no setting for it: too short on a busy machine."""
STARTS_MAX = 5
KILLS = 2
_names = itertools.count()


@pytest.fixture
def topic() -> str:
    return f"persistent://public/default/stream{next(_names)}"


class Stream:
    """One query with one checkpoint, run repeatedly to the end of the existing data."""

    def __init__(
        self, spark: SparkSession, folder: Path, options: dict[str, str], source_format: str = "quire"
    ) -> None:
        self._spark = spark
        self._format = source_format
        self._folder = folder
        self._options = options

    def run(self, **options: str) -> list[int]:
        """Run the query; return the rows of each micro-batch."""
        for attempt in itertools.count():
            try:
                return self._run({**self._options, **options})
            except StreamingQueryException as error:
                if attempt == STARTS_MAX or NOT_STARTED not in str(error):
                    raise
        raise AssertionError("not reached")

    def _run(self, options: dict[str, str]) -> list[int]:
        query = self._writer(options).trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(300)
        finally:
            query.stop()
        return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]

    @contextmanager
    def running(self, **options: str) -> Iterator[StreamingQuery]:
        """Run the query until the block ends."""
        query = self._writer({**self._options, **options}).start()
        try:
            yield query
        finally:
            query.stop()

    def _writer(self, options: dict[str, str]) -> DataStreamWriter:
        frame = self._spark.readStream.format(self._format).options(**options).load()
        return (
            frame.select("ledger", "entry", "payload")
            .writeStream.format("parquet")
            .option("path", str(self._folder / "out"))
            .option("checkpointLocation", str(self._folder / "checkpoint"))
        )

    def payloads(self) -> list[bytes]:
        """Return the payloads in the output, ordered by position."""
        rows = self._spark.read.parquet(str(self._folder / "out")).orderBy("ledger", "entry").collect()
        return [bytes(row.payload) for row in rows]


@pytest.fixture
def stream(spark: SparkSession, cluster: Cluster, tmp_path: Path, topic: str) -> Stream:
    options = {**cluster.options, "topic": topic, "http": cluster.process.http}
    return Stream(spark, tmp_path, options)


def test_micro_batches_keep_to_the_limit_and_a_restart_continues(stream: Stream, publish: Publish, topic: str) -> None:
    first = [b"%d" % number for number in range(450)]
    publish(topic, first, batching_enabled=False)
    assert stream.run(maxEntriesPerTrigger="200") == [200, 200, 50]
    assert stream.payloads() == first
    assert stream.run() == []
    publish(topic, [b"new"], batching_enabled=False)
    # Without the broker, the bookies may not know the last entries of the checkpoint: the offset does not decrease, and
    # no entry is repeated.
    assert sum(stream.run(http="")) <= 1
    assert sum(stream.run()) <= 1
    assert stream.payloads() == [*first, b"new"]


def test_a_limit_by_bytes_and_a_start_in_the_middle(stream: Stream, publish: Publish, topic: str) -> None:
    publish(topic, [b"x" * 1000 for _ in range(100)], batching_enabled=False)
    batches = stream.run(maxBytesPerTrigger="30000", startPosition="earliest")
    assert sum(batches) == 100
    assert max(batches) <= 30


def test_a_cursor_follows_the_commits(stream: Stream, publish: Publish, cluster: Cluster, topic: str) -> None:
    publish(topic, [b"%d" % number for number in range(300)], batching_enabled=False)
    stream.run(cursor="spark", maxEntriesPerTrigger="100")
    path = "/admin/v2/persistent/" + topic.removeprefix("persistent://")
    backlog = cluster.process.request("GET", path + "/stats")["subscriptions"]["spark"]["msgBacklog"]
    assert backlog in (0, 100)  # Spark commits a micro-batch when it begins the next one
    assert stream.run(cursor="spark") == []
    assert stream.payloads() == [b"%d" % number for number in range(300)]


def test_a_removed_cursor_is_made_again_at_the_checkpoint(
    stream: Stream, publish: Publish, cluster: Cluster, topic: str
) -> None:
    ask, path = cluster.process.request, "/admin/v2/persistent/" + topic.removeprefix("persistent://")
    sent = [b"%d" % number for number in range(450)]
    publish(topic, sent[:250], batching_enabled=False)
    ask("PUT", path + "/subscription/reader", "earliest")  # without another subscription nothing is trimmed
    assert sum(stream.run(cursor="spark", maxEntriesPerTrigger="100")) == 250
    ask("DELETE", path + "/subscription/spark")
    publish(topic, sent[250:], batching_enabled=False)
    assert sum(stream.run(cursor="spark")) == 200
    assert stream.payloads() == sent
    assert ask("GET", path + "/stats")["subscriptions"]["spark"]["msgBacklog"] <= 200


@pytest.mark.parametrize("lost", ["fails", "continues"])
def test_entries_trimmed_while_the_cursor_was_removed_are_lost(
    stream: Stream, publish: Publish, cluster: Cluster, topic: str, lost: str
) -> None:
    ask, path = cluster.process.request, "/admin/v2/persistent/" + topic.removeprefix("persistent://")
    sent = [b"%d" % number for number in range(700)]
    publish(topic, sent[:250], batching_enabled=False)
    ask("PUT", path + "/subscription/reader", "earliest")
    stream.run(cursor="spark", maxEntriesPerTrigger="100")
    publish(topic, sent[250:650], batching_enabled=False)
    ask("DELETE", path + "/subscription/spark")
    ask("DELETE", path + "/truncate")
    publish(topic, sent[650:], batching_enabled=False)
    if lost == "fails":
        for _ in range(2):
            with pytest.raises(
                StreamingQueryException, match=r"was trimmed; begin later, or read the remaining entries"
            ):
                stream.run(cursor="spark")
            assert ask("GET", path + "/subscriptions") == ["reader"], "a cursor would imply that it had kept everything"
        assert stream.payloads() == sent[:250]
    stream.run(cursor="spark", failOnDataLoss="false")
    assert stream.payloads() == sent[:250] + sent[650:]
    assert sorted(ask("GET", path + "/subscriptions")) == ["reader", "spark"]


def test_a_cursor_removed_during_a_query_is_made_again(
    spark: SparkSession, stream: Stream, publish: Publish, cluster: Cluster, topic: str
) -> None:
    ask, path = cluster.process.request, "/admin/v2/persistent/" + topic.removeprefix("persistent://")
    sent = [b"%d" % number for number in range(60)]
    publish(topic, sent[:20], batching_enabled=False)
    with stream.running(cursor="spark") as query:
        query.processAllAvailable()
        ask("DELETE", path + "/subscription/spark")
        for first in (20, 40):  # the commit of the first batch finds that the cursor is gone
            publish(topic, sent[first : first + 20], batching_enabled=False)
            query.processAllAvailable()
        assert ask("GET", path + "/subscriptions") == ["spark"]
    assert stream.payloads() == sent


def test_a_stream_whose_entries_were_trimmed_fails_unless_allowed_to_lose_data(
    stream: Stream, publish: Publish, cluster: Cluster, topic: str
) -> None:
    publish(topic, [b"%d" % number for number in range(250)], batching_enabled=False)
    stream.run(maxEntriesPerTrigger="100")
    path = "/admin/v2/persistent/" + topic.removeprefix("persistent://")
    publish(topic, [b"%d" % number for number in range(250, 600)], batching_enabled=False)
    cluster.process.request("PUT", path + "/subscription/reader", "earliest")
    cluster.process.request("DELETE", path + "/truncate")
    publish(topic, [b"after"], batching_enabled=False)
    with pytest.raises(StreamingQueryException, match="was trimmed"):
        stream.run()
    stream.run(failOnDataLoss="false")
    assert stream.payloads()[-1] == b"after"


def test_a_repeated_micro_batch_whose_entries_were_trimmed_fails(
    stream: Stream, publish: Publish, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    publish(topic, [b"%d" % number for number in range(250)], batching_enabled=False)
    assert stream.run(maxEntriesPerTrigger="100") == [100, 100, 50]
    (tmp_path / "checkpoint" / "commits" / "2").unlink()  # as after a crash between the write and its commit
    (tmp_path / "checkpoint" / "commits" / ".2.crc").unlink(missing_ok=True)
    path = "/admin/v2/persistent/" + topic.removeprefix("persistent://")
    cluster.process.request("PUT", path + "/subscription/reader", "earliest")
    cluster.process.request("DELETE", path + "/truncate")
    publish(topic, [b"after"], batching_enabled=False)
    with pytest.raises(StreamingQueryException, match="was trimmed"):
        stream.run()


def test_a_start_ledger_before_the_first_one_means_the_beginning(stream: Stream, publish: Publish, topic: str) -> None:
    publish(topic, [b"x"], batching_enabled=False)
    assert stream.run(startLedger="0") == [1]


def test_a_stream_rejects_an_end(stream: Stream, publish: Publish, topic: str) -> None:
    publish(topic, [b"x"], batching_enabled=False)
    with pytest.raises(Exception, match="a stream has no end"):
        stream.run(endLedger="5")


@pytest.mark.timeout(1200)
def test_after_a_killed_driver_every_message_is_in_parquet_once(
    spark: SparkSession, publish: Publish, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    payloads = [b"message %d" % number for number in range(1500)]
    publish(topic, payloads, batching_enabled=False)
    out, checkpoint, log = tmp_path / "out", tmp_path / "checkpoint", tmp_path / "driver.log"
    options = {**cluster.options, "topic": topic, "http": cluster.process.http, "maxEntriesPerTrigger": "100"}
    command = [sys.executable, "-m", "tests.integration.jobs.streaming_driver", str(out), str(checkpoint)]
    command += [f"{name}={value}" for name, value in options.items()]
    kills = starts = 0
    while True:
        planned = _planned(checkpoint)
        with log.open("wb") as output:
            driver = subprocess.Popen(command, stdout=output, stderr=output, cwd=ROOT, start_new_session=True)
        try:
            # Two more micro-batches were planned: the newest is running, or is written and not committed.
            if kills < KILLS and _until_planned(checkpoint, planned + 2, driver):
                kills += 1
                continue
            if driver.wait(600) == 0:
                break
            starts += 1
            output_text = log.read_text(errors="replace")
            assert NOT_STARTED in output_text and starts <= STARTS_MAX, output_text[-6000:]
        finally:
            if driver.poll() is None:
                os.killpg(driver.pid, signal.SIGKILL)  # Python and its JVM at once
            driver.wait()
    assert kills == KILLS
    rows = spark.read.parquet(str(out)).orderBy("ledger", "entry").collect()
    assert [bytes(row.payload) for row in rows] == payloads
    assert _planned(checkpoint) == 15


def _planned(checkpoint: Path) -> int:
    return len([path for path in (checkpoint / "offsets").glob("*") if path.name.isdecimal()])


def _until_planned(checkpoint: Path, count: int, driver: "subprocess.Popen[bytes]") -> bool:
    """Return whether `count` batches were planned within five minutes, by a driver that still runs."""
    deadline = time.monotonic() + 300
    while _planned(checkpoint) < count:
        if time.monotonic() > deadline or driver.poll() is not None:
            return False
        time.sleep(0.05)  # another process: there is no event to wait on
    return True
