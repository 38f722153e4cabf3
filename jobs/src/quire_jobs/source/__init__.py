"""The Spark data source `quire`: topics and ledgers as tables, from bookies and offloaded objects (docs/spark.md)."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING
from uuid import uuid4

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["held", "register"]

_PUSH_DOWN = "spark.sql.python.filterPushdown.enabled"


def register(spark: "SparkSession") -> None:
    """Register `format("quire")` in this session and enable filter push-down to it.

    The session becomes the active session of this thread, because Spark looks there for sources of writes.
    """
    from quire_jobs.source.data_source import QuireDataSource
    from quire_jobs.source.known_sources import register_source

    spark.conf.set(_PUSH_DOWN, "true")
    register_source(spark, QuireDataSource)


@contextmanager
def held(options: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Keep the data of a read from being trimmed until the block ends, by the cursor `quire.job.<id>` on each topic.

    `options` are the options of the read, with `http`; a missing `jobId` is generated. Yields the options for
    `spark.read`. Raises JobOptionsError, NotFoundError and SourceUnavailableError. After an error the cursor may
    remain; the error text contains its name.
    """
    from quire_jobs.source.loop_thread import shared_loop
    from quire_jobs.source.options import parse_options
    from quire_jobs.source.planning import hold_job, release_job

    if not any(name.lower() == "jobid" for name in options):
        options = {**options, "jobId": uuid4().hex[:12]}
    parsed = parse_options(options)
    try:
        shared_loop().run(lambda: hold_job(parsed))
        yield dict(options)
    finally:
        shared_loop().run(lambda: release_job(parsed))
