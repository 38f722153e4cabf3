"""Provides the tables of analyses: messages through the data source, others from metadata and bookies. On the driver.

The driver sends its requests to the cluster at the beginning and closes its connections before Spark computes.
"""

import os
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from quire_bookie.cli.client_access import client_access
from quire_bookie.cli.client_security_settings import client_security_settings
from quire_bookie.config.sources import load
from quire_bookie.env.chance import SystemChance
from quire_bookie.env.clock import SystemClock
from quire_bookie.env.tls import client_context
from quire_bookie.recovery.access import ClusterAccess
from quire_bookie.settings.client import ClientSettings
from quire_bookie.settings.recovery import RecoverySettings
from quire_jobs.analytics import columns
from quire_jobs.analytics.bookie_tables import PagedQuestions
from quire_jobs.analytics.metadata_tables import MetadataTables, read_tables
from quire_jobs.analytics.parameters import AnalysisParameters, MessageParameters
from quire_jobs.errors import DataLossError, JobOptionsError, NotFoundError, QuireJobError
from quire_jobs.job import job_name
from quire_jobs.source import held, register
from quire_jobs.source.cluster import Cluster, ClusterAddress, SourceConfig, as_job_errors, open_cluster
from quire_jobs.source.loop_thread import shared_loop
from quire_jobs.source.subjects import Subjects, find_topics, subject_option, wanted
from quire_jobs.source.task_cluster import SharedAddress, task_cluster
from quire_jobs.tables import TableFormat, TableTarget, read_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

T = TypeVar("T")
_PLACES: Final = ("s3://", "gs://", "az://", "file://")
_PUBLISHED: Final = "publish_time"


@dataclass(frozen=True, slots=True)
class Messages:
    """The messages that an analysis reads. `unmatched`: patterns that no topic matches yet."""

    rows: "DataFrame"
    unmatched: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ClusterClients:
    """Open clients of a cluster: metadata and ledgers, bookies, and the bookies' admin HTTP."""

    cluster: Cluster
    access: ClusterAccess
    questions: PagedQuestions

    async def tables(self, patterns: tuple[str, ...] = ()) -> MetadataTables:
        """Return the tables of metadata. MetadataError."""
        return await read_tables(self.cluster.metadata, self.cluster.open_ledger, patterns)


def ask_cluster(parameters: AnalysisParameters, work: Callable[[ClusterClients], Coroutine[Any, Any, T]]) -> T:
    """Run `work` with an open cluster. Raises the errors that `as_job_errors` makes."""

    async def opened() -> T:
        async with open_cluster(parameters) as cluster, _clients(cluster, parameters) as clients:
            return await work(clients)

    with as_job_errors():
        return shared_loop().run(opened)


@asynccontextmanager
async def task_clients(where: SharedAddress) -> AsyncIterator[ClusterClients]:
    """Open the clients in a Spark task, with the cluster that the tasks of a process share. Errors as
    `as_job_errors`."""
    with as_job_errors():
        async with task_cluster(where) as cluster, _clients(cluster, where) as clients:
            yield clients


@asynccontextmanager
async def _clients(cluster: Cluster, where: ClusterAddress) -> AsyncIterator[ClusterClients]:
    file = Path(where.config) if where.config else None
    config = load(SourceConfig, flags={}, environment=os.environ, file=file).config
    security = client_security_settings(config)
    access = await ClusterAccess.open(
        cluster.metadata,
        RecoverySettings(),
        config.part(ClientSettings, security=security),
        clock=SystemClock(),
        chance=SystemChance(),
    )
    try:
        tls = security.tls
        context = (
            client_access().context() if tls is None else client_context(tls, check_host_name=security.check_host_name)
        )
        async with PagedQuestions(access, context) as questions:
            yield ClusterClients(cluster, access, questions)
    finally:
        await access.close()


def frame(spark: "SparkSession", rows: Sequence[tuple[Any, ...]], schema: "StructType | str") -> "DataFrame":
    """Return a small table. `schema`: columns, also as DDL.

    Its rows are passed as Arrow, so that no Python process of Spark has to decode them.
    """
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from quire_jobs.spark_columns import arrow_columns

    if isinstance(schema, str):
        parsed = StructType.fromDDL(schema)
        assert isinstance(parsed, StructType)
        schema = parsed
    fields = arrow_columns(schema)
    values = zip(*rows, strict=True) if rows else ([] for _ in fields)
    arrays = [pa.array(each, field.type) for each, field in zip(values, fields, strict=True)]
    table = pa.Table.from_arrays(arrays, schema=fields)
    return spark.createDataFrame(table, schema)


@contextmanager
def read_messages(
    spark: "SparkSession", kind: str, parameters: MessageParameters, names: tuple[str, ...]
) -> "Iterator[Messages]":
    """Yield the columns `names` of the selected messages. With `http` nothing of them is trimmed until the block ends.

    JobOptionsError: the table lacks some columns. NotFoundError: a name that is not a pattern has no topic. Errors of
    `quire_jobs.source.held`. A DataLossError of the block becomes a QuireJobError.
    """
    from pyspark.sql import functions as F

    start, end = parameters.bounds
    bounded = start is not None or end is not None
    needed = (*names, _PUBLISHED) if bounded and _PUBLISHED not in names else names
    named = Subjects({}) if parameters.messages else _named(parameters)
    with ExitStack() as holding:
        if parameters.messages:
            found = _from_table(spark, parameters, needed)
        else:
            found = _from_cluster(spark, kind, parameters, named.disjoint, needed, holding)
        published = F.col(_PUBLISHED)
        if start is not None:
            found = found.where(published >= F.lit(start))
        if end is not None:
            found = found.where(published < F.lit(end))
        rows = found.select(*(F.col(name).cast(columns.MESSAGES[name].dataType).alias(name) for name in names))
        try:
            yield Messages(rows, named.unmatched)
        except DataLossError as error:
            # The error is not final: an analysis has no position at which it must begin.
            raise QuireJobError(
                f"{error}; the next run lists the ledgers again and reads the remaining ones"
            ) from error


def _named(parameters: MessageParameters) -> Subjects:
    """Return the selected topics. NotFoundError if a named topic does not exist."""
    asked = wanted(parameters.metadata, parameters.topics)

    async def work() -> Subjects:
        async with open_cluster(parameters) as cluster:
            return await find_topics(cluster, asked)

    with as_job_errors():
        return shared_loop().run(work)


def _from_table(spark: "SparkSession", parameters: MessageParameters, names: tuple[str, ...]) -> "DataFrame":
    ours = _ours(spark, parameters)
    found = _parquet(spark, parameters.messages) if ours is None else ours
    # In a table of typed columns, the metadata of messages have an underscore before their names.
    chosen = {name: name if name in found.columns else f"_{name}" for name in names}
    lacking = [name for name, column in chosen.items() if column not in found.columns]
    if lacking:
        raise JobOptionsError(f"messages = {parameters.messages!r}: the table has no column {', '.join(lacking)}")
    return found.selectExpr(*(f"`{column}` as `{name}`" for name, column in chosen.items()))


def _ours(spark: "SparkSession", parameters: MessageParameters) -> "DataFrame | None":
    """Return a table that the offload job or a stream wrote, read by its own log; None if it is not such a table."""
    url = re.sub("^s3a://", "s3://", parameters.messages)
    if "://" in url and not url.startswith(_PLACES):
        return None  # Spark may support it
    kind = TableFormat.PARQUET if "://" in url else TableFormat.ICEBERG
    target = TableTarget.parse(kind, url, region=parameters.region, endpoint=parameters.endpoint)
    try:
        return read_frame(spark, target)
    except NotFoundError as error:
        if kind is TableFormat.ICEBERG:
            raise JobOptionsError(f"messages = {parameters.messages!r}: {error}") from error
        return None


def _parquet(spark: "SparkSession", url: str) -> "DataFrame":
    """Return any other folder of Parquet files, read by Spark."""
    from pyspark.errors import AnalysisException

    try:
        return spark.read.parquet(re.sub("^s3://", "s3a://", url))
    except AnalysisException as error:
        raise JobOptionsError(f"messages = {url!r}: {str(error).partition(chr(10))[0]}") from error


def cursor_owner(kind: str, parameters: MessageParameters) -> str:
    """Return the id in the cursor that keeps the messages: the job's, the same for all runs and slots.

    So the next run removes the cursor that a killed run left. A job with other parameters, such as the same analysis
    over a day instead of an hour, has its own cursor; otherwise the first to end would remove the other's.
    """
    return job_name(kind, parameters.model_copy(update={"as_of": None}))


def _from_cluster(
    spark: "SparkSession",
    kind: str,
    parameters: MessageParameters,
    topics: Sequence[str],
    names: tuple[str, ...],
    holding: ExitStack,
) -> "DataFrame":
    """Return the messages of existing topics; no rows if there are none."""
    from functools import reduce

    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    if not topics:
        return frame(spark, [], StructType([columns.MESSAGES[name] for name in names]))
    register(spark)
    usual = {"metadata": parameters.metadata, "mode": "messages", "columns": ",".join(names)}
    usual |= {"config": parameters.config, "http": parameters.http}
    for option, moment in zip(("startTime", "endTime"), parameters.bounds, strict=True):
        usual[option] = "" if moment is None else moment.isoformat()
    frames = []
    for topic in topics:
        options = subject_option(topic) | {key: value for key, value in usual.items() if value}
        if parameters.http:
            options = holding.enter_context(held({**options, "jobId": cursor_owner(kind, parameters)}))
        frames.append(spark.read.format("quire").options(**options).load())
    return reduce(DataFrame.unionByName, frames)
