"""The kind `compact`: plans on the driver, lets Spark find and keep the latest messages, and writes the ledger.

The topics are compacted one after the other, each partition as a topic of its own. A ledger has one writer, so the
driver receives the kept entries, a piece at a time. It holds no state that a crash could lose: see `compacted_ledger`.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pydantic import Field, model_validator

from quire_bookie.errors import QuireError
from quire_bookie.limits import MIB
from quire_broker.names import TopicName
from quire_jobs.compaction.compacted_ledger import CompactionRefusedError, Written, write
from quire_jobs.compaction.phases import Output, Rules, kept_entries
from quire_jobs.compaction.planning import HELD_BY, Plan, plan
from quire_jobs.errors import QuireJobError, error_in, retry_helps
from quire_jobs.job import JobParameters, Problem, Progress, Summary
from quire_jobs.quantities import Size
from quire_jobs.source.broker_http import BrokerHttp, is_http_address
from quire_jobs.source.cluster import as_job_errors, open_cluster
from quire_jobs.source.loop_thread import shared_loop
from quire_jobs.source.options import SourceOptions, parse_options
from quire_jobs.source.subjects import Subjects, find_topics, wanted
from quire_jobs.source.topic_cursors import release

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KIND = "compact"


class Parameters(JobParameters):
    """Keep the latest message of each key of large topics, for readers with readCompacted."""

    metadata: str = Field(
        default="", description="Metadata store of the cluster, etcd://host:2379,host:2379: the job creates ledgers."
    )
    topics: tuple[str, ...] = Field(
        min_length=1, description="Topics with all partitions, and patterns such as tenant/namespace/orders-*."
    )
    retain_null_key: bool = Field(
        default=False, description="Keep messages without a key, as topicCompactionRetainNullKey of the broker."
    )
    buckets: int = Field(default=64, ge=1, le=10_000, description="Number of tasks that share the keys of a topic.")
    keys_size_max: Size = Field(default=512 * MIB, ge=MIB, description="Memory for the keys of one task.")
    split_size: Size = Field(default=64 * MIB, ge=1, description="Stored bytes that one task reads.")

    @model_validator(mode="after")
    def _complete(self) -> "Parameters":
        self.require("metadata", "http")
        if is_http_address(self.metadata):
            raise ValueError(
                f"metadata = {self.metadata}: a broker only reads the metadata, and this job creates a ledger: give "
                "etcd://host:2379"
            )
        return self


def run(spark: "SparkSession", parameters: Parameters, progress: Progress) -> Summary:
    """Run the job; see `quire_jobs.job`. After JobOptionsError or NotFoundError nothing was begun."""
    named = shared_loop().run(lambda: _topics(parameters))
    progress.begin(KIND, len(named.topics), "topics")
    notes = [f"no topic matches {pattern} yet" for pattern in named.unmatched]
    problems: list[Problem] = []
    done: list[tuple[Plan, Written]] = []
    for topic in named.topics:
        try:
            found = _held(spark, parameters, topic, progress)
            if found is None:
                notes.append(f"skipped {topic}: nothing was added since its last compaction")
            else:
                done.append(found)
        except (QuireError, QuireJobError) as error:
            helps = isinstance(error, (QuireError, CompactionRefusedError)) or retry_helps(error)
            problems.append(Problem(subject=str(topic), reason=str(error), retry_helps=helps))
        progress.advance(1)
    return _summary(named, done, problems, notes)


async def _topics(parameters: Parameters) -> Subjects:
    async with open_cluster(parameters) as cluster:
        with as_job_errors():
            return await find_topics(cluster, wanted(parameters.metadata, parameters.topics))


def _held(
    spark: "SparkSession", parameters: Parameters, topic: TopicName, progress: Progress
) -> tuple[Plan, Written] | None:
    """Compact one topic, and release its cursor, also one that a dead run left; None if there is nothing to do."""
    try:
        return _compact(spark, parameters, topic, progress)
    finally:
        shared_loop().run(lambda: _release(parameters, topic))


async def _release(parameters: Parameters, topic: TopicName) -> None:
    async with BrokerHttp(parameters.http) as brokers:
        await release(brokers, topic, HELD_BY)


def _compact(
    spark: "SparkSession", parameters: Parameters, topic: TopicName, progress: Progress
) -> tuple[Plan, Written] | None:
    """Compact one topic; see `_held`."""
    options = _options(parameters, topic)
    planned = shared_loop().run(lambda: _planned(parameters, topic, options))
    if planned is None:
        return None
    progress.note(f"{topic}: {planned.entries} entries, {planned.size_bytes} bytes, up to {planned.horizon}")
    rules = Rules(options, topic.partition, parameters.retain_null_key, parameters.keys_size_max, parameters.buckets)
    output = kept_entries(spark.sparkContext, planned.pieces, rules).toLocalIterator(prefetchPartitions=True)
    try:
        return planned, shared_loop().run(lambda: _written(parameters, planned, output))
    except Exception as error:  # Spark quotes the error of a task as text
        named = None if isinstance(error, (QuireError, QuireJobError)) else error_in(str(error))
        if named is None:
            raise
        raise named from error


def _options(parameters: Parameters, topic: TopicName) -> SourceOptions:
    where = {"metadata": parameters.metadata, "config": parameters.config, "topic": str(topic)}
    given = {name: value for name, value in where.items() if value}
    return parse_options({**given, "splitBytes": str(parameters.split_size)})


async def _planned(parameters: Parameters, topic: TopicName, options: SourceOptions) -> Plan | None:
    async with open_cluster(parameters) as cluster, BrokerHttp(parameters.http) as brokers:
        with as_job_errors():
            return await plan(cluster, brokers, topic, options)


async def _written(parameters: Parameters, planned: Plan, output: Iterator[Output]) -> Written:
    async with open_cluster(parameters) as cluster, BrokerHttp(parameters.http) as brokers:
        with as_job_errors():
            return await write(cluster, brokers, planned, output)


def _summary(named: Subjects, done: list[tuple[Plan, Written]], problems: list[Problem], notes: list[str]) -> Summary:
    return Summary(
        kind=KIND,
        counts={
            "topics": len(named.topics),
            "topics_compacted": len(done),
            "entries_read": sum(planned.entries for planned, _ in done),
            "entries_kept": sum(written.entries for _, written in done),
            "size_bytes": sum(planned.size_bytes for planned, _ in done),
            "kept_bytes": sum(written.size_bytes for _, written in done),
        },
        problems=problems,
        notes=notes,
        details={"ledgers": [{"topic": str(planned.topic), "ledger": written.ledger_id} for planned, written in done]},
        done=len(named.topics) - len(problems),
    )
