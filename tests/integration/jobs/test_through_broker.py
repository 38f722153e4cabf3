"""Jobs that reach a standalone with embedded metadata by its HTTP port only; its broker asks for tokens."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pulsar")
pytest.importorskip("pyspark")

import pulsar
from pyspark.sql import SparkSession

from quire_jobs.analytics.output import Output
from quire_jobs.analytics.parameters import AnalysisParameters
from quire_jobs.errors import QuireJobError
from quire_jobs.job import Outcome, Summary, parse_parameters
from quire_jobs.main.kinds import MODULES, load_kind
from quire_jobs.source import register
from quire_jobs.tables import read_frame
from tests.support.guarded import Guarded, token
from tests.unit.jobs.analytics.quiet_progress import QuietProgress

TOPIC = "persistent://public/default/orders"
BATCHES, BATCH = 3, 100


@pytest.fixture(scope="module")
def guarded(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """A topic of 300 messages in three batches; this process and Spark's Python processes have the super user's
    token."""
    found = Guarded(tmp_path_factory.mktemp("guarded"))
    client = pulsar.Client(
        found.process.url,
        authentication=pulsar.AuthenticationToken(token("root")),
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    )
    producer = client.create_producer(
        TOPIC, batching_enabled=True, batching_max_messages=BATCH, batching_max_publish_delay_ms=60_000
    )
    for number in range(BATCHES * BATCH):
        producer.send_async(b"%d" % number, lambda *_: None, partition_key="k")
        if number % BATCH == BATCH - 1:
            producer.flush()
    client.close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QUIRE_TOKEN", token("root"))
        patch.setitem(spark.sparkContext.environment, "QUIRE_TOKEN", token("root"))
        register(spark)  # a registered source keeps the environment of its registration
        yield found
    found.process.close()


@pytest.fixture
def run(spark: SparkSession, guarded: Guarded, tmp_path: Path) -> Callable[..., tuple[Summary, Output]]:
    """`run(kind, name=value)`: the summary and the output of a run."""

    def work(kind: str, **given: Any) -> tuple[Summary, Output]:
        usual = {"metadata": guarded.process.http, "output": f"file://{tmp_path}/out", "runId": "r"}
        parameters = parse_parameters(load_kind(kind).parameters, usual | given)
        assert isinstance(parameters, AnalysisParameters) and parameters.http == guarded.process.http
        return load_kind(kind).run(spark, parameters, QuietProgress()), Output(kind, parameters)

    return work


def test_the_source_reads_a_topic_to_its_newest_message(spark: SparkSession, guarded: Guarded) -> None:
    frame = spark.read.format("quire").option("metadata", guarded.process.http).load(TOPIC)
    assert sorted(int(row.payload) for row in frame.collect()) == list(range(BATCHES * BATCH))


def test_throughput_counts_the_entries_of_batches(
    spark: SparkSession, run: Callable[..., tuple[Summary, Output]]
) -> None:
    summary, output = run("throughput", topics=[TOPIC])
    assert summary.outcome is Outcome.SUCCEEDED
    (row,) = read_frame(spark, output.table("topics")).collect()
    assert (row.messages, row.entries) == (BATCHES * BATCH, BATCHES)


@pytest.mark.parametrize("kind", sorted(set(MODULES) - {"compact", "offload", "table", "throughput"}))
def test_every_report_runs(run: Callable[..., tuple[Summary, Output]], kind: str) -> None:
    given = {} if kind == "audit" else {"topics": ["public/default/orders"]}
    summary, _ = run(kind, **given)
    expected = Outcome.PARTLY if kind == "audit" else Outcome.SUCCEEDED
    assert summary.outcome is expected, summary
    assert kind != "audit" or all("has no HTTP port" in each.reason for each in summary.problems)


def test_another_role_is_refused_with_the_remedy(
    run: Callable[..., tuple[Summary, Output]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUIRE_TOKEN", token("reader"))
    with pytest.raises(QuireJobError, match=r"HTTP 40[13].*set QUIRE_TOKEN"):
        run("cost")
