import pytest
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from quire_bookie.env.machine import machine_cpus
from quire_jobs.errors import JobOptionsError, QuireJobError
from quire_jobs.main.kinds import MODULES, load_kind
from quire_jobs.main.spark_session import local_cores, settings_of, spark_reason, start_spark

OURS = """An error occurred while calling o1.collect.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 3 in stage 0.0 failed 1 times
  File "source/reading.py", line 20, in read
quire_jobs.errors.DataLossError: ledger 7 is gone

	at org.apache.spark.api.python.BasePythonRunner.handlePythonException(PythonRunner.scala:1)
"""


OF_PLANNING = """[PYTHON_DATA_SOURCE_ERROR] Failed to initialize: Traceback (most recent call last):
  File "pyspark/worker.py", line 20, in main
    reader = source.reader(schema=schema)
ModuleNotFoundError: No module named 'x'
 SQLSTATE: 38000
"""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (OURS, "ledger 7 is gone"),
        (
            OF_PLANNING,
            "[PYTHON_DATA_SOURCE_ERROR] Failed to initialize: ModuleNotFoundError: No module named 'x'",
        ),
        ("quire_bookie.client.x.errors.QuorumError: one\nquire_bookie.errors.QuorumError: two", "two"),
        ("\n  [JAVA_GATEWAY_EXITED] Java gateway process exited before sending its port number.\nmore", None),
        ("An error occurred while calling None.JavaSparkContext.\n: java.lang.X: y\n\tat z", "java.lang.X: y"),
        ("", "no reason given"),
    ],
)
def test_the_most_useful_line_is_found(text: str, reason: str | None) -> None:
    expected = reason or "[JAVA_GATEWAY_EXITED] Java gateway process exited before sending its port number."
    assert spark_reason(text) == expected


POD = {"POD_IP": "10.0.0.7", "POD_NAMESPACE": "orders", "POD_NAME": "run-1-abcde", "HOME": "/tmp"}


def test_a_driver_in_a_pod_sets_the_address_for_its_executors_and_owns_them() -> None:
    said = settings_of("k8s://https://kubernetes.default.svc", POD)
    assert said["spark.driver.host"] == said["spark.driver.bindAddress"] == "10.0.0.7"
    assert said["spark.kubernetes.namespace"] == "orders"
    assert said["spark.kubernetes.driver.pod.name"] == "run-1-abcde"
    assert said["spark.driver.port"] != said["spark.driver.blockManager.port"]


def test_settings_of_a_pod_are_only_used_in_a_pod() -> None:
    assert not {key for key in settings_of("k8s://https://x", {}) if "host" in key or "pod.name" in key}
    for master in ("spark://x:7077", "local[2]", None):
        assert not {key for key in settings_of(master, POD) if key.startswith("spark.kubernetes")}
    assert settings_of("local[*]", POD)["spark.driver.host"] == "127.0.0.1"


@pytest.mark.parametrize(
    ("fault", "once_more"),
    [
        ("java.lang.IllegalStateException: Spark context stopped while waiting for backend", True),
        ("org.apache.spark.SparkException: External scheduler cannot be instantiated", True),
        ("java.lang.IllegalArgumentException: spark.executor.cores should be int, but was x", False),
        ("java.lang.NumberFormatException: Size must be specified as bytes", False),
        ("org.apache.spark.SparkException: Could not parse Master URL: 'nowhere'", False),
    ],
)
def test_a_start_failure_of_spark_is_final_only_for_wrong_settings(
    fault: str, once_more: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_builder: object) -> None:
        raise Py4JError(f"An error occurred while calling None.JavaSparkContext.\n: {fault}\n\tat a.b")

    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", refuse)
    with pytest.raises(QuireJobError) as refused:
        start_spark("run", "spark://127.0.0.1:1", {})
    assert isinstance(refused.value, JobOptionsError) is not once_more
    assert fault in str(refused.value) and "\n" not in str(refused.value)
    assert ("no executor started" in str(refused.value)) is ("backend" in fault)


@pytest.mark.parametrize(
    ("master", "tasks"), [("local", "2"), ("local[3]", "6"), ("local[3, 2]", "6"), ("local[500]", "200")]
)
def test_a_machine_gets_as_many_tasks_as_its_cores_need(master: str, tasks: str) -> None:
    assert settings_of(master, {})["spark.sql.shuffle.partitions"] == tasks


def test_all_cores_are_those_that_the_process_may_use() -> None:
    assert local_cores("local[*]") == max(1, int(machine_cpus()))


@pytest.mark.parametrize("master", ["spark://x:7077", "k8s://https://x", None])
def test_a_cluster_keeps_the_number_of_tasks_and_the_jvm_that_spark_chooses(master: str | None) -> None:
    found = settings_of(master, {}, quick=True)
    assert "spark.sql.shuffle.partitions" not in found and "spark.driver.defaultJavaOptions" not in found


def test_a_quick_job_on_a_machine_starts_a_jvm_that_compiles_little() -> None:
    quick, thorough = settings_of("local[2]", {}, quick=True), settings_of("local[2]", {})
    assert "TieredStopAtLevel=1" in quick["spark.driver.defaultJavaOptions"]
    assert quick["spark.sql.codegen.wholeStage"] == "false"
    assert not {"spark.driver.defaultJavaOptions", "spark.sql.codegen.wholeStage"} & thorough.keys()


def test_analyses_are_quick_and_jobs_that_write_ledgers_are_not() -> None:
    quick = {name for name in MODULES if load_kind(name).parameters.model_construct().computes_little}
    assert quick == set(MODULES) - {"offload", "compact", "table"}
