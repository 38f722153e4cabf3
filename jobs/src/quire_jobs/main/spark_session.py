"""Starts the Spark session of a job, and reduces errors of Spark to one line for the user."""

import os
import re
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from quire_bookie.env.machine import machine_cpus
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
    "spark.sql.session.timeZone": "UTC",  # so that hours in tables and reports do not depend on the machine
    "spark.log.level": "ERROR",
    "spark.ui.showConsoleProgress": "false",  # the job shows its own progress
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Over TCP each task waits 40 ms for an acknowledgement that the kernel delays. Older Spark versions ignore this.
    "spark.python.unix.domain.socket.enabled": "true",
}
_DRIVER_PORT, _BLOCKS_PORT = 7078, 7079
_LOCAL = {
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}
_TASKS_OF_A_CORE = 2
_TASKS_MAX = 200  # Spark's own default for every machine
_QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""The JVM of a job that ends soon: optimizing its code again and again would take longer than the job."""
_QUICK_QUERIES = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""Spark interprets queries instead of compiling classes for each: six seconds less of 22, and no slower with 500,000
messages, since most of their time is the decoding."""

_KUBERNETES = {
    "spark.ui.enabled": "false",
    # Fixed ports, for network policies and for users who inspect a pod.
    "spark.driver.port": str(_DRIVER_PORT),
    "spark.driver.blockManager.port": str(_BLOCKS_PORT),
    # Without ConfigMaps and Services the driver needs no permission for them: executors get their settings as
    # variables.
    "spark.kubernetes.executor.disableConfigMap": "true",
    "spark.kubernetes.driver.service.deleteOnTermination": "false",
}
_OF_POD = {
    "POD_IP": ("spark.driver.host", "spark.driver.bindAddress"),
    "POD_NAMESPACE": ("spark.kubernetes.namespace",),
    "POD_NAME": ("spark.kubernetes.driver.pod.name",),
}
"""Settings from the driver's own pod, by variables of the downward API. The pod owns the executors: they end with
it."""


def settings_of(master: str | None, environment: Mapping[str, str], *, quick: bool = False) -> dict[str, str]:
    """Return the Spark settings for this master. Settings of the user take precedence over them.

    `quick`: for a job that computes little, so that most of its time is the start.
    """
    given = dict(_ALWAYS)
    if master is not None and master.startswith("local"):
        given |= _LOCAL
        # A cached table keeps all of its tasks, however few rows it has: 200 of them take ten seconds.
        given["spark.sql.shuffle.partitions"] = str(min(_TASKS_MAX, _TASKS_OF_A_CORE * local_cores(master)))
        if quick:
            given |= {"spark.driver.defaultJavaOptions": _QUICK_JVM} | _QUICK_QUERIES
    elif master is not None and master.startswith("k8s://"):
        given |= _KUBERNETES
        for name, keys in _OF_POD.items():
            given |= dict.fromkeys(keys, environment[name]) if environment.get(name) else {}
    return given


def local_cores(master: str) -> int:
    """Return the number of cores of a local master: local, local[2], local[*], local[2,3]."""
    match = re.fullmatch(r"local\[(\*|\d+)(?:,\s*\d+)?\]", master)
    if match is None:
        return 1
    return max(1, int(machine_cpus()) if match[1] == "*" else int(match[1]))


def start_spark(name: str, master: str | None, settings: Mapping[str, str], *, quick: bool = False) -> "SparkSession":
    """Return a session. `master` None: the process that started this one has set it. `quick`: as in `settings_of`.

    Raises JobOptionsError for wrong settings, QuireJobError if Spark does not start, for example without Java.
    """
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    # This interpreter has the packages of Quire; the first `python3` in PATH may not have them.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
        if master.startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    for key, value in (settings_of(master, os.environ, quick=quick) | dict(settings)).items():
        builder = builder.config(key, value)
    try:
        spark = builder.getOrCreate()
    except PySparkRuntimeError as error:
        reason = spark_reason(str(error))
        raise QuireJobError(f"Spark did not start; install Java 17 or 21 if this machine has none: {reason}") from error
    except spark_faults() as error:
        raise _start_error(str(error)) from error
    return spark


def _start_error(text: str) -> QuireJobError:
    """Return JobOptionsError for a wrong setting, and QuireJobError, which is retryable, for all other failures."""
    reason = spark_reason(text)
    if _BACKEND_GONE in text:
        reason += "; no executor started: see the lines above, or the events of the executors' pods"
    kind = JobOptionsError if _WRONG_SETTING.search(text) else QuireJobError
    return kind(f"Spark did not start: {reason}")


def spark_reason(text: str) -> str:
    """Return the most useful line of an error text of Spark: the error of Quire that a task raised, else the last line
    of a Python traceback, else the first line."""
    ours = _OURS.findall(text)
    if ours:
        return str(ours[-1][1]).strip()
    before, _, traced = text.partition(_TRACED)
    raised = _RAISED.findall(traced)
    if raised:
        return f"{before.strip().rpartition(chr(10))[2]} {raised[-1]}".strip()[:1000]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].startswith(_CALLING):
        lines = [lines[1].removeprefix(": ")]  # the second line is the exception
    return lines[0][:500] if lines else "no reason given"


def spark_faults() -> tuple[type[Exception], ...]:
    """Return the exceptions that Spark raises on the driver; `spark_reason` extracts the useful line."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    return (PySparkException, Py4JError)
