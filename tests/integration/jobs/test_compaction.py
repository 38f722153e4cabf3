"""The job `compact` with Spark, a real cluster and the stock client: readers with readCompacted, runs and a crash."""

import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from pyspark.sql import SparkSession

from quire_broker.names import parse_topic
from quire_jobs.compaction import compacted_ledger
from quire_jobs.compaction.job import Parameters, run
from quire_jobs.errors import QuireJobError
from quire_jobs.job import Outcome, Summary
from quire_jobs.source.cluster import open_cluster
from quire_jobs.source.loop_thread import shared_loop
from quire_jobs.source.options import parse_options
from tests.integration.jobs import conftest
from tests.integration.jobs.conftest import Cluster
from tests.support.polling import until
from tests.support.stock_reader import read_keyed
from tests.unit.jobs.analytics.quiet_progress import QuietProgress

GUARD_S = 240
Keyed = tuple[str | None, bytes]
DIES_BEFORE_THE_RECORD = """
import os, sys
from quire_bookie.cli.main import main
from quire_jobs.compaction import compacted_ledger

async def die(*_: object) -> None:
    os._exit(9)

compacted_ledger.record = die
sys.exit(main())
"""


def compacted_by_spark(spark: SparkSession, cluster: Cluster, topic: str, **more: Any) -> Summary:
    """Run the job with small tasks, so that each topic has several."""
    given = {"metadata": cluster.metadata, "http": cluster.process.http, "topics": (topic,)}
    parameters = Parameters(**{**given, "split_size": 4096, "buckets": 3, **more})
    return run(spark, parameters, QuietProgress())


def compacted_by_broker(cluster: Cluster, topic: str) -> None:
    path = f"/admin/v2/{topic.replace('://', '/')}/compaction"
    cluster.process.request("PUT", path)
    until(lambda: cluster.process.request("GET", path)["status"] == "SUCCESS", "the broker does not compact")


def used_ledger(cluster: Cluster, topic: str) -> int:
    """Return the id of the compacted ledger in use; -1: none."""
    stats = cluster.process.request("GET", f"/admin/v2/{topic.replace('://', '/')}/internalStats")
    return int(stats["compactedLedger"]["ledgerId"])


def unreferenced(cluster: Cluster, topic: str) -> list[str]:
    """Return the recorded ledgers of a topic that are not used."""

    async def read() -> list[str]:
        async with open_cluster(parse_options({"metadata": cluster.metadata, "topic": topic})) as opened:
            return list(await opened.metadata.children(f"/quire/unreferenced-ledgers/{parse_topic(topic).ledger_name}"))

    return shared_loop().run(read)


def send(client: Any, topic: str, messages: Sequence[Keyed], *, batch: bool = False, chunk: bool = False) -> None:
    options = {"batching_enabled": batch, "batching_max_messages": 7, "batching_max_publish_delay_ms": 10_000}
    conftest.send(client, topic, messages, chunking_enabled=chunk, **options)


def messages(begin: int, end: int) -> list[Keyed]:
    """Return messages of 97 keys; some have no key, some delete theirs."""
    return [
        (None if number % 31 == 0 else f"k{number % 97}", b"" if number % 13 == 0 else b"%d " % number * 5)
        for number in range(begin, end)
    ]


@pytest.mark.parametrize("batch", [False, True])
def test_readers_get_the_same_as_after_a_compaction_by_the_broker(
    spark: SparkSession, cluster: Cluster, client: Any, batch: bool
) -> None:
    ours, other = (f"persistent://public/default/compact-{batch}-{who}" for who in ("spark", "broker"))
    former = -1
    for begin in (0, 500):
        for topic in (ours, other):
            send(client, topic, messages(begin, begin + 500), batch=batch)
        summary = compacted_by_spark(spark, cluster, ours)
        compacted_by_broker(cluster, other)
        assert summary.outcome is Outcome.SUCCEEDED, summary
        used = used_ledger(cluster, ours)
        assert summary.details["ledgers"] == [{"topic": ours, "ledger": used}] and used != former
        former = used
        found = read_keyed(client, ours)
        assert found == read_keyed(client, other)
        assert len({key for key, _ in found}) == len(found) > 50
    until(lambda: not unreferenced(cluster, ours), "the former compacted ledger is not deleted")

    send(client, ours, [("new", b"1")], batch=batch)
    assert read_keyed(client, ours) == [*found, ("new", b"1")], "behind the horizon readers continue in the topic"
    compacted_by_broker(cluster, ours)
    assert read_keyed(client, ours) == [*found, ("new", b"1")], "the broker compacts what the job wrote"
    nothing = compacted_by_spark(spark, cluster, ours)
    assert nothing.outcome is Outcome.SUCCEEDED and nothing.counts["topics_compacted"] == 0
    assert "nothing was added" in nothing.notes[0]


def test_chunked_messages_are_kept_or_dropped_whole(spark: SparkSession, cluster: Cluster, client: Any) -> None:
    topic = "persistent://public/default/compact-chunks"
    old, new = b"old" * 3_000_000, b"new" * 3_000_000
    send(client, topic, [("a", old), ("b", new), ("a", new)], chunk=True)
    send(client, topic, [("c", b"1")])
    assert compacted_by_spark(spark, cluster, topic).outcome is Outcome.SUCCEEDED
    assert read_keyed(client, topic) == [("b", new), ("a", new), ("c", b"1")]


def test_a_newer_compaction_wins(
    spark: SparkSession, cluster: Cluster, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = "persistent://public/default/compact-late"
    send(client, topic, messages(0, 100))
    recorded = compacted_ledger.record

    async def late(*given: Any) -> None:
        send(client, topic, [("newest", b"1")])
        compacted_by_broker(cluster, topic)
        await recorded(*given)

    monkeypatch.setattr(compacted_ledger, "record", late)
    summary = compacted_by_spark(spark, cluster, topic)
    assert summary.outcome is Outcome.FAILED
    assert "a newer compaction wins" in summary.problems[0].reason and summary.problems[0].retry_helps
    assert read_keyed(client, topic)[-1] == ("newest", b"1")
    until(lambda: not unreferenced(cluster, topic), "the ledger of the job is not deleted")


def test_a_job_that_dies_before_the_record_leaves_the_topic_as_it_was(
    spark: SparkSession, cluster: Cluster, client: Any
) -> None:
    topic = "persistent://public/default/compact-killed"
    send(client, topic, messages(0, 300))
    words = ["jobs", "run", "compact", "--local", "--metadata", cluster.metadata, "--http", cluster.process.http]
    died = subprocess.run(
        [sys.executable, "-c", DIES_BEFORE_THE_RECORD, *words, f"topics={topic}"],
        capture_output=True,
        text=True,
        timeout=GUARD_S,
        check=False,
    )
    assert died.returncode == 9, died.stderr[-4000:]
    left = unreferenced(cluster, topic)
    assert len(left) == 1 and used_ledger(cluster, topic) == -1
    assert len(read_keyed(client, topic)) == 300, "nothing is compacted"

    assert compacted_by_spark(spark, cluster, topic).outcome is Outcome.SUCCEEDED
    assert unreferenced(cluster, topic) == left
    kept = read_keyed(client, topic)
    assert 50 < len(kept) < 100
    cluster.process.request("PUT", f"/admin/v2/{topic.replace('://', '/')}/unload")
    assert read_keyed(client, topic) == kept
    until(lambda: not unreferenced(cluster, topic), "the next owner does not delete the ledger of the dead job")


def test_entries_that_are_gone_fail_the_job(
    spark: SparkSession, cluster: Cluster, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = "persistent://public/default/compact-gone"
    send(client, topic, messages(0, 450))
    created = compacted_ledger._create

    async def lose(opened: Any, plan: Any) -> Any:
        writer = await created(opened, plan)
        await opened.client.delete_ledger(plan.ledgers[0])
        return writer

    monkeypatch.setattr(compacted_ledger, "_create", lose)
    summary = compacted_by_spark(spark, cluster, topic)
    assert summary.outcome is Outcome.FAILED and "are gone" in summary.problems[0].reason
    assert not summary.problems[0].retry_helps
    assert used_ledger(cluster, topic) == -1 and not unreferenced(cluster, topic)


def test_too_many_keys_for_one_task_name_the_parameter(spark: SparkSession, cluster: Cluster, client: Any) -> None:
    topic = "persistent://public/default/compact-keys"
    send(client, topic, [(f"{number}" * 2000, b"1") for number in range(1000, 1200)])
    summary = compacted_by_spark(spark, cluster, topic, keys_size_max=1 << 20, buckets=1)
    assert summary.outcome is Outcome.FAILED and "raise buckets = 1" in summary.problems[0].reason
    assert compacted_by_spark(spark, cluster, topic, keys_size_max=1 << 20, buckets=9).outcome is Outcome.SUCCEEDED
    assert len(read_keyed(client, topic)) == 200


def test_a_topic_that_does_not_exist_is_named(spark: SparkSession, cluster: Cluster) -> None:
    with pytest.raises(QuireJobError, match="there is no topic"):
        compacted_by_spark(spark, cluster, "persistent://public/default/compact-nothing")
