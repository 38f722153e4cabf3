"""Starts the Spark that a job runs on, and turns what Spark raises into one line for a person."""

import os
import re
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from quire_jobs.errors import JobOptionsError, QuireJobError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OURS = re.compile(r"quire_(?:jobs|bookie|broker)[\w.]*\.(\w+): (.+)")
_ALWAYS = {
    "spark.sql.session.timeZone": "UTC",  # hours of tables and reports mean the same on every machine
    "spark.log.level": "ERROR",
    "spark.ui.showConsoleProgress": "false",  # the job shows its own
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}
_LOCAL = {
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}


def start_spark(name: str, master: str | None, settings: Mapping[str, str]) -> "SparkSession":
    """A session; `master` None: what started this process has set it. JobOptionsError, QuireJobError: no Java."""
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    # The Python that runs us has our packages; the one that is first in the path may not.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    given = dict(_ALWAYS)
    if master is not None:
        builder = builder.master(master)
        if master.startswith("local"):
            given |= _LOCAL
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    for key, value in (given | dict(settings)).items():
        builder = builder.config(key, value)
    try:
        spark = builder.getOrCreate()
    except PySparkRuntimeError as error:
        reason = spark_reason(str(error))
        raise QuireJobError(f"Spark did not start; has this machine Java 17 or 21? {reason}") from error
    except spark_faults() as error:
        raise JobOptionsError(f"Spark did not start: {spark_reason(str(error))}") from error
    return spark


def spark_reason(text: str) -> str:
    """The line that matters in what Spark tells: our own error if a task raised one, else the first line."""
    ours = _OURS.findall(text)
    if ours:
        return str(ours[-1][1]).strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0][:500] if lines else "no reason given"


def spark_faults() -> tuple[type[Exception], ...]:
    """What Spark raises on the driver; `spark_reason` has the line that matters of it."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    return (PySparkException, Py4JError)
