"""First process of a container of `quire-jobs`: executes `quire`, or an executor for Spark on Kubernetes.

Spark starts executors with the argument `executor` and passes the rest in the environment, as to the entrypoint.sh of
its own image: the variables in `_VARIABLES`, SPARK_EXECUTOR_MEMORY, and JVM options as SPARK_JAVA_OPT_<n>. Spark
operators use `driver`, which runs spark-submit in this container. Anything else is a command of `quire`.
"""

import os
import re
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

_OPTION = re.compile(r"SPARK_JAVA_OPT_(\d+)")
_BACKEND = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
_VARIABLES = (
    ("--driver-url", "SPARK_DRIVER_URL"),
    ("--executor-id", "SPARK_EXECUTOR_ID"),
    ("--cores", "SPARK_EXECUTOR_CORES"),
    ("--app-id", "SPARK_APPLICATION_ID"),
    ("--hostname", "SPARK_EXECUTOR_POD_IP"),
    ("--resourceProfileId", "SPARK_RESOURCE_PROFILE_ID"),
    ("--podName", "SPARK_EXECUTOR_POD_NAME"),
)


def command_of(arguments: list[str], environment: Mapping[str, str], spark_home: str) -> list[str]:
    """Return the command to execute. KeyError with the name of a variable that Spark did not set."""
    kind = arguments[0] if arguments else ""
    if kind == "driver":
        bind = environment["SPARK_DRIVER_BIND_ADDRESS"]
        submit = [f"{spark_home}/bin/spark-submit", "--conf", f"spark.driver.bindAddress={bind}"]
        return [*submit, "--deploy-mode", "client", *arguments[1:]]
    if kind != "executor":
        return ["quire", *arguments]
    found = {int(match[1]): value for key, value in environment.items() if (match := _OPTION.fullmatch(key))}
    options = [found[number] for number in sorted(found)]
    memory = environment["SPARK_EXECUTOR_MEMORY"]
    path = [environment.get("SPARK_CONF_DIR") or f"{spark_home}/conf", environment.get("SPARK_CLASSPATH", "")]
    path += [f"{spark_home}/jars/*", environment.get("SPARK_EXTRA_CLASSPATH", "")]
    passed = [word for flag, name in _VARIABLES for word in (flag, environment[name])]
    classes = ":".join(part for part in path if part)
    return ["java", *options, f"-Xms{memory}", f"-Xmx{memory}", "-cp", classes, _BACKEND, *passed]


def main() -> None:
    """Replace this process by the command."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        sys.exit("pyspark is not installed in this image")
    spark_home = str(Path(spec.origin).parent)
    try:
        command = command_of(sys.argv[1:], os.environ, spark_home)
    except KeyError as error:
        sys.exit(f"Spark did not set {error.args[0]}: `executor` and `driver` must be started by Spark on Kubernetes")
    os.execvpe(command[0], command, os.environ | {"SPARK_HOME": spark_home})


if __name__ == "__main__":
    main()
