"""Where analyses get their tables: messages through the data source, the rest of metadata and bookies. On the driver.

Everything of the cluster is read at the beginning; its connections are closed before Spark computes.
"""

import os
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from quire_bookie.backup.holdings import BookieQuestions
from quire_bookie.cli.client_access import client_access
from quire_bookie.cli.client_security_settings import client_security_settings
from quire_bookie.cli.client_settings import client_settings
from quire_bookie.config.sources import load
from quire_bookie.env.chance import SystemChance
from quire_bookie.env.clock import SystemClock
from quire_bookie.env.tls import client_context
from quire_bookie.recovery.access import ClusterAccess
from quire_bookie.recovery.settings import RecoverySettings
from quire_jobs.analytics import columns
from quire_jobs.analytics.metadata_tables import MetadataTables, read_tables
from quire_jobs.analytics.parameters import AnalysisParameters, MessageParameters
from quire_jobs.errors import JobOptionsError
from quire_jobs.source.cluster import Cluster, SourceConfig, open_cluster, told
from quire_jobs.source.loop_thread import shared_loop

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

T = TypeVar("T")
TIME_OPTIONS: Final = (("startTime", "start_time"), ("endTime", "end_time"))


@dataclass(frozen=True, slots=True)
class Ways:
    """The open ways to a cluster: its metadata and ledgers, its bookies, and their admin HTTP."""

    cluster: Cluster
    access: ClusterAccess
    questions: BookieQuestions

    async def tables(self, patterns: tuple[str, ...] = ()) -> MetadataTables:
        """The tables of metadata. MetadataError."""
        return await read_tables(self.cluster.metadata, self.cluster.open_ledger, patterns)


def ask_cluster(parameters: AnalysisParameters, work: Callable[[Ways], Coroutine[Any, Any, T]]) -> T:
    """Do `work` with the cluster open. Errors as `quire_jobs.source.cluster.told` makes them."""

    async def opened() -> T:
        async with _ways(parameters) as ways:
            return await work(ways)

    with told():
        return shared_loop().run(opened)


@asynccontextmanager
async def _ways(parameters: AnalysisParameters) -> AsyncIterator[Ways]:
    async with open_cluster(parameters) as cluster:
        file = Path(parameters.config) if parameters.config else None
        config = load(SourceConfig, flags={}, environment=os.environ, file=file).config
        security = client_security_settings(config)
        access = await ClusterAccess.open(
            cluster.metadata,
            RecoverySettings(),
            client_settings(config, security),
            clock=SystemClock(),
            chance=SystemChance(),
        )
        try:
            tls = security.tls
            context = (
                client_access().context()
                if tls is None
                else client_context(tls, check_host_name=security.check_host_name)
            )
            async with BookieQuestions(access, context) as questions:
                yield Ways(cluster, access, questions)
        finally:
            await access.close()


def frame(spark: "SparkSession", rows: list[tuple[Any, ...]], schema: "StructType") -> "DataFrame":
    """A small table."""
    return spark.createDataFrame(rows, schema)


def read_messages(spark: "SparkSession", parameters: MessageParameters, names: tuple[str, ...]) -> "DataFrame":
    """The columns `names` of the messages that the parameters mean. JobOptionsError: the table lacks some of them."""
    from pyspark.sql import functions as F

    if parameters.messages:
        found = _parquet(spark, parameters.messages, names)
    else:
        found = _from_cluster(spark, parameters, names)
    published = F.col("publish_time")
    if parameters.start_time is not None:
        found = found.where(published >= F.lit(parameters.start_time))
    if parameters.end_time is not None:
        found = found.where(published < F.lit(parameters.end_time))
    return found.select(*(F.col(name).cast(columns.MESSAGES[name].dataType).alias(name) for name in names))


def _parquet(spark: "SparkSession", url: str, names: tuple[str, ...]) -> "DataFrame":
    from pyspark.errors import AnalysisException

    from quire_jobs.analytics.publishing import hadoop_url

    try:
        found = spark.read.parquet(hadoop_url(url))
    except AnalysisException as error:
        raise JobOptionsError(f"messages = {url!r}: {str(error).partition(chr(10))[0]}") from error
    # A table of typed columns has the metadata of its messages with an underscore before the name.
    chosen = {name: name if name in found.columns else f"_{name}" for name in names}
    lacking = [name for name, column in chosen.items() if column not in found.columns]
    if lacking:
        raise JobOptionsError(f"messages = {url!r}: the table has no column {', '.join(lacking)}")
    return found.selectExpr(*(f"`{column}` as `{name}`" for name, column in chosen.items()))


def _from_cluster(spark: "SparkSession", parameters: MessageParameters, names: tuple[str, ...]) -> "DataFrame":
    from functools import reduce

    from pyspark.sql import DataFrame

    from quire_jobs.source.data_source import QuireDataSource

    spark.dataSource.register(QuireDataSource)
    frames = []
    for topic in parameters.topics:
        reader = spark.read.format("quire").option("metadata", parameters.metadata).option("mode", "messages")
        pattern = "*" in topic or "?" in topic
        options = {"topics" if pattern else "topic": topic, "columns": ",".join(names), "config": parameters.config}
        options |= {"http": parameters.http, "jobId": parameters.run_id if parameters.http else ""}
        for option, name in TIME_OPTIONS:
            moment = getattr(parameters, name)
            if moment is not None:
                options[option] = moment.isoformat()
        frames.append(reader.options(**{key: value for key, value in options.items() if value}).load())
    return reduce(DataFrame.unionByName, frames)
