"""The kind `offload`: plans on the driver, lets Spark run one task per ledger, sweeps, and summarizes.

The unit is a ledger, whose objects are one upload. Each task is complete in itself (`ledger_copy`), so Spark may repeat
it: a repeated task skips ledgers that are already offloaded. The driver holds no state that a crash could lose.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pydantic import Field, field_validator, model_validator

from quire_bookie.env.clock import SystemClock
from quire_bookie.errors import ConfigError, QuireError
from quire_bookie.limits import MIB
from quire_bookie.metadata.initialise import read_instance_id
from quire_bookie.model import LedgerId
from quire_broker.managed_ledger.nodes.ledger_list import LedgerRecord
from quire_broker.names import TopicName
from quire_broker.offload.format import BLOCK_BYTES_MAX_DEFAULT
from quire_broker.offload.settings import WriteSettings
from quire_broker.offload.target import OffloadTarget, open_target
from quire_jobs.errors import JobOptionsError, QuireJobError
from quire_jobs.job import JobParameters, Problem, Progress, Summary, job_name
from quire_jobs.offload.attempt_notes import Swept, sweep
from quire_jobs.offload.broker_admin import BrokerAdmin
from quire_jobs.offload.ledger_copy import CopyResult, CopySettings, CopyState, LedgerCopy
from quire_jobs.offload.message_table import TableOutcome, add_messages, message_layout
from quire_jobs.offload.planning import Plan, PlannedLedger, is_noted, listed_ledgers, plan
from quire_jobs.offload.policy import Left, OffloadPolicy
from quire_jobs.quantities import Duration, Size
from quire_jobs.source.broker_http import BrokerHttp
from quire_jobs.source.cluster import open_cluster
from quire_jobs.source.loop_thread import shared_loop
from quire_jobs.source.subjects import find_topics, wanted
from quire_jobs.tables import TableTarget, open_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KIND = "offload"
POLL_S = 0.2
PROBE = ".quire/writable"


class Parameters(JobParameters):
    """Copy closed ledgers into a bucket; brokers then serve reads from there."""

    target: str = Field(description="Target: s3://bucket, gs://bucket, az://container or file:///folder.")
    region: str = Field(default="", description="Region of the bucket, if the environment does not set it.")
    endpoint: str = Field(default="", description="URL of an S3 service other than Amazon's; brokers use it too.")
    topics: tuple[str, ...] = Field(
        min_length=1, description="Topics with all partitions, and patterns such as tenant/namespace/orders-*."
    )
    ledgers: tuple[int, ...] = Field(default=(), description="Offload only these ledgers, of any age and size.")
    after_time: Duration | None = Field(
        default=None, ge=0, description="Offload a ledger this long after it was closed: 4h, 7d."
    )
    after_size: Size | None = Field(
        default=None,
        ge=0,
        description="Keep this much of a topic on bookies, offload older ledgers: 10Gi. Either rule suffices.",
    )
    ledger_size_min: Size = Field(default=0, ge=0, description="Skip smaller ledgers.")
    rate: Size | None = Field(
        default=None, gt=0, description="Bytes per second that all tasks together read from bookies."
    )
    block_size: Size = Field(default=BLOCK_BYTES_MAX_DEFAULT, gt=0, description="Largest block of a data object.")
    read_back: bool = Field(default=True, description="Read each copy back from the bucket before brokers use it.")
    sweep: bool = Field(default=True, description="Remove objects that unfinished earlier runs left in the bucket.")
    format: Literal["segment", "parquet", "iceberg"] = Field(
        default="segment",
        description="segment: objects for brokers; parquet, iceberg: these, and the messages as a table.",
    )
    table: str = Field(
        default="",
        description="The table: a URL such as s3://bucket/folder, or catalog.namespace.table of Iceberg.",
    )
    key_buckets: int = Field(default=16, ge=1, le=10_000, description="Number of key buckets per hour of the table.")
    file_size: Size = Field(default=128 * MIB, ge=MIB, description="Size at which a file of the table is closed.")
    compact: bool = Field(default=True, description="Merge the table's small files afterwards.")

    @field_validator("format", mode="before")
    @classmethod
    def _any_case(cls, value: object) -> object:
        return value.lower() if isinstance(value, str) else value

    @model_validator(mode="after")
    def _complete(self) -> "Parameters":
        self.require("metadata", "http")
        if (self.format == "segment") == bool(self.table):
            raise ValueError(
                "format = parquet or iceberg needs a table, and a table needs such a format: give both or neither"
            )
        return self

    @property
    def table_target(self) -> TableTarget | None:
        """The table; None to write segments only. JobOptionsError."""
        if not self.table:
            return None
        return TableTarget.parse(self.format, self.table, region=self.region, endpoint=self.endpoint)


@dataclass(frozen=True, slots=True)
class _Task:
    """Settings that an executor needs besides the ledger. Picklable; contains no credentials."""

    metadata: str
    config: str
    http: str
    target: OffloadTarget
    copy: CopySettings


def run(spark: "SparkSession", parameters: Parameters, progress: Progress) -> Summary:
    """Run the job; see `quire_jobs.job`. After JobOptionsError or NotFoundError nothing was begun."""
    target, write = _checked(parameters)
    table = parameters.table_target
    if table is not None:
        open_table(table).marks()  # report an unusable table before anything begins
    planned, cluster_id = shared_loop().run(lambda: _planned(parameters, target))
    progress.note(f"{len(planned.ledgers)} ledgers of {len(planned.topics)} topics, {planned.size_bytes} bytes")
    slots = max(1, min(len(planned.ledgers), spark.sparkContext.defaultParallelism))
    copy = CopySettings(
        owner=job_name(KIND, Parameters.model_construct(target=parameters.target, topics=parameters.topics)),
        cluster=cluster_id,
        driver=target.driver,
        properties=target.properties,
        write=write,
        rate_bytes_s=None if parameters.rate is None else parameters.rate / slots,
        read_back=parameters.read_back,
    )
    task = _Task(parameters.metadata, parameters.config, parameters.http, target, copy)
    results = _on_spark(spark, task, planned, progress) if planned.ledgers else []
    swept, unswept = _swept(parameters, target, cluster_id) if parameters.sweep else (Swept(), [])
    rows = (
        TableOutcome() if table is None else _add_rows(spark, parameters, planned.topics, copy.owner, table, progress)
    )
    return _summary(planned, results, swept, unswept, table, rows)


def _checked(parameters: Parameters) -> tuple[OffloadTarget, WriteSettings]:
    try:
        target = OffloadTarget.from_url(parameters.target, region=parameters.region, endpoint=parameters.endpoint)
        return target, WriteSettings(block_bytes_max=parameters.block_size)
    except QuireError as error:
        raise JobOptionsError(str(error)) from error


def _policy(parameters: Parameters) -> OffloadPolicy:
    ids = frozenset(LedgerId(each) for each in parameters.ledgers)
    return OffloadPolicy(parameters.after_time, parameters.after_size, parameters.ledger_size_min, ids)


async def _planned(parameters: Parameters, target: OffloadTarget) -> tuple[Plan, str]:
    """Return the plan and the cluster's id. Writes a test object first, so that no task begins with an unusable
    bucket."""
    asked = wanted(parameters.metadata, parameters.topics)
    try:
        place = open_target(target, os.environ)
        await place.put(PROBE, b"", overwrite=True)
        await place.delete(PROBE)
    except ConfigError as error:
        raise JobOptionsError(str(error)) from error
    except QuireError as error:
        raise QuireJobError(f"the target cannot be written: {error}") from error
    async with open_cluster(parameters) as cluster:
        cluster_id = await read_instance_id(cluster.metadata)
        if cluster_id is None:  # notes of clusters without an id could not be distinguished
            raise JobOptionsError(
                f"metadata = {parameters.metadata}: it has no instance id: the cluster is not initialised yet, or is "
                "being restored"
            )
        named = await find_topics(cluster, asked)
        return await plan(cluster, named, _policy(parameters), SystemClock().now_ms()), cluster_id


def _swept(parameters: Parameters, target: OffloadTarget, cluster_id: str) -> tuple[Swept, list[Problem]]:
    """Sweep. A failure becomes one problem of the run, because the ledgers are already offloaded."""
    try:
        return shared_loop().run(lambda: _sweep(parameters, target, cluster_id)), []
    except (QuireError, QuireJobError) as error:
        return Swept(), [Problem(subject="sweep of earlier attempts", reason=str(error), retry_helps=True)]


async def _sweep(parameters: Parameters, target: OffloadTarget, cluster_id: str) -> Swept:
    place = open_target(target, os.environ)
    async with open_cluster(parameters) as cluster:
        return await sweep(place, cluster_id, lambda note: is_noted(cluster, note), SystemClock().now_ms())


def _add_rows(
    spark: "SparkSession",
    parameters: Parameters,
    topics: Sequence[TopicName],
    job: str,
    table: TableTarget,
    progress: Progress,
) -> TableOutcome:
    """Add rows of all ledgers that are offloaded by now, by this or another run, to the table."""
    where = {"metadata": parameters.metadata, "config": parameters.config, "http": parameters.http}
    return add_messages(
        spark,
        {name: value for name, value in where.items() if value},
        job,
        topics,
        lambda some: shared_loop().run(lambda: _listed(parameters, some)),
        table,
        message_layout(parameters.key_buckets, parameters.file_size),
        progress,
        ids=frozenset(parameters.ledgers),
        compacted=parameters.compact,
    )


async def _listed(parameters: Parameters, topics: Sequence[TopicName]) -> dict[TopicName, tuple[LedgerRecord, ...]]:
    async with open_cluster(parameters) as cluster:
        return {topic: await listed_ledgers(cluster, topic.ledger_name) for topic in topics}


# ---- on executors
def _on_spark(spark: "SparkSession", task: _Task, planned: Plan, progress: Progress) -> list[CopyResult]:
    """Run one Spark task per ledger. Waits in small steps, so that the bar moves and interrupts are handled."""
    context = spark.sparkContext
    copied = context.accumulator(0)

    def offload(ledgers: Iterable[PlannedLedger]) -> Iterator[CopyResult]:
        for result in shared_loop().run(lambda: _copy(task, list(ledgers))):
            copied.add(result.size_bytes)
            yield result

    def collect() -> list[CopyResult]:
        found: list[CopyResult] = (
            context.parallelize(planned.ledgers, len(planned.ledgers)).mapPartitions(offload).collect()
        )
        return found

    progress.begin("offload", planned.size_bytes, "bytes")
    shown = 0
    with ThreadPoolExecutor(1, thread_name_prefix="offload") as threads:
        running = threads.submit(collect)
        try:
            while wait([running], POLL_S).not_done:
                now = int(copied.value)
                progress.advance(now - shown)
                shown = now
        except BaseException:  # interrupted or terminated: the thread ends when its Spark job does
            context.cancelAllJobs()
            raise
    progress.advance(int(copied.value) - shown)
    return running.result()


async def _copy(task: _Task, ledgers: Sequence[PlannedLedger]) -> list[CopyResult]:
    place = open_target(task.target, os.environ)
    async with BrokerHttp(task.http) as brokers, open_cluster(task) as cluster:
        copy = LedgerCopy(BrokerAdmin(brokers), cluster, place, task.copy, SystemClock())
        return [await copy.offload(each.topic, each.ledger_id) for each in ledgers]


# ---- summary
def _summary(
    planned: Plan,
    results: Sequence[CopyResult],
    swept: Swept,
    unswept: Sequence[Problem] = (),
    table: TableTarget | None = None,
    rows: TableOutcome | None = None,
) -> Summary:
    done = [each for each in results if each.state is CopyState.OFFLOADED]
    failed = [each for each in results if each.state is CopyState.FAILED]
    refused = [each for each in results if each.state is CopyState.LEFT]
    notes = [f"no topic matches {pattern} yet" for pattern in planned.unmatched]
    notes += [f"skipped {count} ledgers: {reason}" for reason, count in sorted(planned.left.items())]
    notes += [f"skipped ledger {each.ledger_id} of {each.topic}: {each.reason}" for each in refused]
    rows = rows or TableOutcome()
    of_table = {
        "table_ledgers": rows.ledgers,
        "table_rows": rows.rows,
        "table_bytes": rows.size_bytes,
        "table_files": rows.files,
        "table_files_merged": rows.files_merged,
    }
    return Summary(
        kind=KIND,
        outputs=[] if table is None else [table.shown],
        counts={
            "topics": len(planned.topics),
            "ledgers_offloaded": len(done),
            "ledgers_left": len(refused) + sum(planned.left.values()),
            "ledgers_failed": len(failed),
            "entries": sum(each.entries for each in done),
            "size_bytes": sum(each.size_bytes for each in done),
            "stored_bytes": sum(each.data_bytes for each in done),
            "segments_swept": swept.segments,
            **({} if table is None else of_table),
        },
        problems=[
            Problem(
                subject=f"ledger {each.ledger_id} of {each.topic}", reason=each.reason, retry_helps=each.retry_helps
            )
            for each in sorted(failed, key=lambda each: (each.topic, each.ledger_id))
        ]
        + list(unswept)
        + rows.problems,
        notes=notes,
        details={
            "ledgers": [
                {"topic": each.topic, "ledger": each.ledger_id, "state": each.state.value, "seconds": each.seconds}
                for each in results
            ]
        },
        done=len(done) + planned.left.get(Left.OFFLOADED, 0) + rows.ledgers,
    )
