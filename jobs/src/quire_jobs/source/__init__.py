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
    """Make `format("quire")` known to this session, and let Spark hand filters to it.

    The session becomes the active one of this thread: there Spark looks for sources that are written.
    """
    from quire_jobs.source.data_source import QuireDataSource
    from quire_jobs.source.known_sources import make_known

    spark.conf.set(_PUSH_DOWN, "true")
    make_known(spark, QuireDataSource)


@contextmanager
def held(options: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Options of a read whose data stays from now until the block ends, by the cursor `quire.job.<id>` on each topic.

    `options` are those of the read, `http` among them; `jobId` is made up where it is missing. What is given back are
    the options for `spark.read`. JobOptionsError, NotFoundError, SourceUnavailableError: the cursor may be left behind,
    its name is in the text.
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
