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
_TRACED = "Traceback (most recent call last):"
_RAISED = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception|Warning|Exit|Interrupt)\b.*$", re.MULTILINE)
_CALLING = "An error occurred while calling"
_BACKEND_GONE = "Spark context stopped while waiting for backend"
_WRONG_SETTING = re.compile(
    r"^: (?:java\.lang\.(?:IllegalArgument|NumberFormat)Exception|org\.apache\.spark\.SparkIllegalArgumentException)"
    r"|[Mm]aster URL",
    re.MULTILINE,
)
_ALWAYS = {
    "spark.sql.session.timeZone": "UTC",  # hours of tables and reports mean the same on every machine
    "spark.log.level": "ERROR",
    "spark.ui.showConsoleProgress": "false",  # the job shows its own
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Over TCP each task waits 40 ms for an acknowledgement that the kernel delays. Older Sparks do not know it.
    "spark.python.unix.domain.socket.enabled": "true",
}
_DRIVER_PORT, _BLOCKS_PORT = 7078, 7079
_LOCAL = {
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}

_KUBERNETES = {
    "spark.ui.enabled": "false",
    # Known ones, as network policies and whoever looks at a pod want them.
    "spark.driver.port": str(_DRIVER_PORT),
    "spark.driver.blockManager.port": str(_BLOCKS_PORT),
    # With these the driver needs no right to ConfigMaps and Services: executors are told everything in their variables.
    "spark.kubernetes.executor.disableConfigMap": "true",
    "spark.kubernetes.driver.service.deleteOnTermination": "false",
}
_OF_POD = {
    "POD_IP": ("spark.driver.host", "spark.driver.bindAddress"),
    "POD_NAMESPACE": ("spark.kubernetes.namespace",),
    "POD_NAME": ("spark.kubernetes.driver.pod.name",),
}
"""What the driver's own pod says, by variables of the downward API. Executors belong to that pod and go with it."""


def settings_of(master: str | None, environment: Mapping[str, str]) -> dict[str, str]:
    """Spark's settings for the place where it runs; what a person gives counts more."""
    given = dict(_ALWAYS)
    if master is not None and master.startswith("local"):
        given |= _LOCAL
    elif master is not None and master.startswith("k8s://"):
        given |= _KUBERNETES
        for name, keys in _OF_POD.items():
            given |= dict.fromkeys(keys, environment[name]) if environment.get(name) else {}
    return given


def start_spark(name: str, master: str | None, settings: Mapping[str, str]) -> "SparkSession":
    """A session; `master` None: what started this process has set it. JobOptionsError, QuireJobError: no Java."""
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    # The Python that runs us has our packages; the one that is first in the path may not.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
        if master.startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    for key, value in (settings_of(master, os.environ) | dict(settings)).items():
        builder = builder.config(key, value)
    try:
        spark = builder.getOrCreate()
    except PySparkRuntimeError as error:
        reason = spark_reason(str(error))
        raise QuireJobError(f"Spark did not start; has this machine Java 17 or 21? {reason}") from error
    except spark_faults() as error:
        raise _start_error(str(error)) from error
    return spark


def _start_error(text: str) -> QuireJobError:
    """Settings that are wrong are the user's; all else may be better the next time."""
    reason = spark_reason(text)
    if _BACKEND_GONE in text:
        reason += "; no executor came up: the lines above say why, or the events of the executors' pods"
    kind = JobOptionsError if _WRONG_SETTING.search(text) else QuireJobError
    return kind(f"Spark did not start: {reason}")


def spark_reason(text: str) -> str:
    """The line that matters in what Spark tells: our own error if a task raised one, the end of another traceback of
    Python's, else the first line."""
    ours = _OURS.findall(text)
    if ours:
        return str(ours[-1][1]).strip()
    before, _, traced = text.partition(_TRACED)
    raised = _RAISED.findall(traced)
    if raised:
        return f"{before.strip().rpartition(chr(10))[2]} {raised[-1]}".strip()[:1000]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].startswith(_CALLING):
        lines = [lines[1].removeprefix(": ")]  # the exception itself is in the second line
    return lines[0][:500] if lines else "no reason given"


def spark_faults() -> tuple[type[Exception], ...]:
    """What Spark raises on the driver; `spark_reason` has the line that matters of it."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    return (PySparkException, Py4JError)
