"""The kind `table`: keeps a table current with topics, once or continuously. `following` adds the rows.

A run may be killed at any point: the table records the positions that it reached. A continuous run ends by `runFor`, by
a signal, or when every topic has failed.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from pydantic import Field, field_validator, model_validator

from quire_bookie.limits import MIB
from quire_jobs.errors import NotFoundError, QuireJobError, retry_helps
from quire_jobs.job import JobParameters, Problem, Progress, Summary
from quire_jobs.lake.following import Follower, table_layout
from quire_jobs.quantities import Duration, Moment, Size
from quire_jobs.source import register
from quire_jobs.source.cluster import open_cluster
from quire_jobs.source.loop_thread import shared_loop
from quire_jobs.source.offsets import Limit, Offset
from quire_jobs.source.options import Mode
from quire_jobs.source.subjects import Subjects, find_topics, is_pattern, wanted
from quire_jobs.tables import Layout, TableTarget, compact, open_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KIND = "table"
GIB = 1024 * MIB


class Parameters(JobParameters):
    """Keep a table current with topics: typed columns, each message once."""

    topics: tuple[str, ...] = Field(
        min_length=1, description="Topics with all partitions, and patterns such as tenant/namespace/orders-*."
    )
    format: Literal["parquet", "iceberg"] = Field(default="iceberg", description="Format of the table.")
    table: str = Field(
        description="The table: catalog.namespace.table of Iceberg, or a URL such as s3://bucket/folder."
    )
    region: str = Field(default="", description="Region of the bucket, if the environment does not set it.")
    endpoint: str = Field(default="", description="URL of an S3 service other than Amazon's.")
    payload: Literal["typed", "bytes"] = Field(
        default="typed", description="typed: the fields of the topics' schemas as columns; bytes: the payload as it is."
    )
    partition_by: Literal["hour", "day"] = Field(
        default="hour", description="Length of a partition of the table, by publish time in UTC."
    )
    start_time: Moment = Field(
        default=None, description="Of topics that the table does not have yet: begin at this time, ISO 8601."
    )
    batch_size: Size = Field(default=GIB, ge=1, description="Maximum of stored bytes in one commit.")
    batch_entries: int | None = Field(default=None, ge=1, description="Maximum of stored entries in one commit.")
    every: Duration | None = Field(
        default=None, ge=1, description="Continue, and look for new messages this often: 30s, 5m. Default: run once."
    )
    run_for: Duration | None = Field(default=None, gt=0, description="With every: end after this long. [no end]")
    failures_max: int = Field(
        default=10, ge=1, description="With every: consecutive failures of a topic after which it is given up."
    )
    compact: bool = Field(default=True, description="Merge the table's small files.")
    compact_every: Duration = Field(default=3600.0, gt=0, description="With every: time between two merges.")
    file_size: Size = Field(default=128 * MIB, ge=MIB, description="Size at which a file of the table is closed.")
    fail_on_data_loss: bool = Field(
        default=True, description="false: continue after messages that were trimmed before the table had them."
    )
    fail_on_undecodable: bool = Field(
        default=False,
        description="true: stop at a payload that does not match its schema; false: a row with _error.",
    )

    @field_validator("format", "payload", "partition_by", mode="before")
    @classmethod
    def _any_case(cls, value: object) -> object:
        return value.lower() if isinstance(value, str) else value

    @model_validator(mode="after")
    def _complete(self) -> "Parameters":
        self.require("metadata", "http")
        if self.run_for is not None and self.every is None:
            raise ValueError("runFor needs every: without it a run ends when the table is current")
        return self

    @property
    def target(self) -> TableTarget:
        """The table. JobOptionsError."""
        return TableTarget.parse(self.format, self.table, region=self.region, endpoint=self.endpoint)

    @property
    def mode(self) -> Mode:
        """The mode in which the source reads."""
        return Mode.TABLE if self.payload == "typed" else Mode.MESSAGES

    @property
    def source(self) -> dict[str, str]:
        """The options of the source, without topics and mode."""
        given = {"metadata": self.metadata, "config": self.config, "http": self.http}
        if self.start_time is not None:
            given["startTime"] = self.start_time.isoformat()
        flags = {"failOnDataLoss": self.fail_on_data_loss, "failOnUndecodable": self.fail_on_undecodable}
        return {name: value for name, value in given.items() if value} | {
            name: str(flag).lower() for name, flag in flags.items()
        }


@dataclass(slots=True)
class _Run:
    """State of a run: who is followed still, and the work done."""

    parameters: Parameters
    spark: "SparkSession"
    progress: Progress
    followers: list[Follower]
    layout: Layout
    counts: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("commits", "repeated", "rows", "files", "size_bytes", "files_merged"), 0)
    )
    failures: dict[str, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    @property
    def limit(self) -> Limit:
        return Limit(self.parameters.batch_entries, self.parameters.batch_size)

    def catch_up(self, follower: Follower, more: Callable[[], bool]) -> None:
        """Add what the topic has now. A failure becomes a problem; a continuous run repeats it if that may help."""
        try:
            target = follower.ends()
            while more() and self._step(follower, target):
                pass
            self.failures.pop(follower.name, None)
        except QuireJobError as error:
            count = self.failures[follower.name] = self.failures.get(follower.name, 0) + 1
            unmatched = isinstance(error, NotFoundError) and is_pattern(follower.name)
            again = unmatched or (retry_helps(error) and count < self.parameters.failures_max)
            if again and self.parameters.every is not None:
                self.progress.note(f"{follower.name}: {error}; the next round tries again")
                return
            self.problems.append(Problem(subject=follower.name, reason=str(error), retry_helps=retry_helps(error)))
            self.followers.remove(follower)

    def _step(self, follower: Follower, target: Offset) -> bool:
        step = follower.step(self.limit, target)
        if step.done:
            return False
        written = step.written
        self.counts["repeated"] += written.repeated
        self.counts["commits"] += not written.repeated
        self.counts["rows"] += written.rows
        self.counts["files"] += written.files
        self.counts["size_bytes"] += written.size_bytes
        self.progress.advance(written.rows)
        return True

    def merge(self) -> None:
        """Merge small files. The rows are in the table, so a failure is a problem of its own."""
        if not self.parameters.compact:
            return
        try:
            done = compact(self.spark, self.parameters.target, layout=self.layout)
            self.counts["files_merged"] += done.merged
        except QuireJobError as error:
            subject = f"small files of {self.parameters.target.shown}"
            self.problems.append(Problem(subject=subject, reason=str(error), retry_helps=retry_helps(error)))


def run(spark: "SparkSession", parameters: Parameters, progress: Progress) -> Summary:
    """Run the job; see `quire_jobs.job`. After JobOptionsError or NotFoundError nothing was begun."""
    register(spark)
    target, mode = parameters.target, parameters.mode
    open_table(target).marks()  # report an unusable table before anything begins
    layout = table_layout(mode, parameters.partition_by, parameters.file_size)
    found = shared_loop().run(lambda: _found(parameters))
    followers: list[Follower] = []
    try:
        # Topics of a pattern may be created later. Two that match the same one are no harm: the table has its position.
        for name in (*found.disjoint, *(found.unmatched if parameters.every is not None else ())):
            followers.append(Follower(spark, parameters.source, name, mode, target, layout))
        state = _Run(parameters, spark, progress, list(followers), layout)
        progress.begin("table", None, "rows")
        _rounds(state)
    finally:
        for follower in followers:
            follower.close()
    return _summary(state, found, target)


async def _found(parameters: Parameters) -> Subjects:
    asked = wanted(parameters.metadata, parameters.topics)
    async with open_cluster(parameters) as cluster:
        return await find_topics(cluster, asked)


def _rounds(state: _Run) -> None:
    parameters = state.parameters
    began = merged = time.monotonic()

    def in_time() -> bool:
        return parameters.run_for is None or time.monotonic() - began < parameters.run_for

    while True:
        round_began = time.monotonic()
        for follower in list(state.followers):
            state.catch_up(follower, in_time)
        if parameters.every is None or not state.followers or not in_time():
            break
        if time.monotonic() - merged >= parameters.compact_every:
            state.merge()
            merged = time.monotonic()
        left_s = round_began + parameters.every - time.monotonic()
        if parameters.run_for is not None:
            left_s = min(left_s, began + parameters.run_for - time.monotonic())
        time.sleep(max(0.0, left_s))
    state.merge()


def _summary(state: _Run, found: Subjects, target: TableTarget) -> Summary:
    return Summary(
        kind=KIND,
        counts={"topics": len(found.topics), **state.counts},
        outputs=[target.shown],
        problems=state.problems,
        notes=[f"no topic matches {pattern} yet" for pattern in found.unmatched],
        done=len(state.followers),
    )
