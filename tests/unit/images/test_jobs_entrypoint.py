"""What a container of `quire-jobs` becomes, and that its Dockerfile holds together."""

import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
IMAGE = ROOT / "images" / "jobs"
HOME = "/opt/spark"
EXECUTOR = {
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@driver:7078",
    "SPARK_EXECUTOR_ID": "3",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_EXECUTOR_MEMORY": "1g",
    "SPARK_APPLICATION_ID": "spark-1",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.7",
    "SPARK_EXECUTOR_POD_NAME": "exec-3",
    "SPARK_RESOURCE_PROFILE_ID": "0",
}


@pytest.fixture(scope="module")
def entrypoint() -> Any:
    spec = importlib.util.spec_from_file_location("jobs_entrypoint", IMAGE / "entrypoint.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_an_executor_gets_all_that_spark_says_and_its_options_in_order(entrypoint: Any) -> None:
    options = {f"SPARK_JAVA_OPT_{number}": f"-Dnumber={number}" for number in (10, 2, 0)}
    command = entrypoint.command_of(["executor"], EXECUTOR | options, HOME)
    assert command[:6] == ["java", "-Dnumber=0", "-Dnumber=2", "-Dnumber=10", "-Xms1g", "-Xmx1g"]
    assert command[6:8] == ["-cp", f"{HOME}/conf:{HOME}/jars/*"]
    said = dict(zip(command[9::2], command[10::2], strict=True))
    assert said == {
        "--driver-url": EXECUTOR["SPARK_DRIVER_URL"],
        "--executor-id": "3",
        "--cores": "2",
        "--app-id": "spark-1",
        "--hostname": "10.0.0.7",
        "--resourceProfileId": "0",
        "--podName": "exec-3",
    }


def test_the_backend_that_an_executor_becomes_is_in_this_spark(entrypoint: Any) -> None:
    pyspark = pytest.importorskip("pyspark")
    jars = Path(pyspark.__file__).parent / "jars"
    (jar,) = jars.glob("spark-kubernetes_*.jar")
    listed = subprocess.run(
        [sys.executable, "-m", "zipfile", "-l", str(jar)], capture_output=True, text=True, check=True
    ).stdout
    backend = next(word for word in entrypoint.command_of(["executor"], EXECUTOR, HOME) if word.startswith("org."))
    assert backend.replace(".", "/") + ".class" in listed


def test_what_the_submitter_adds_comes_before_and_behind_spark_s_own_classes(entrypoint: Any) -> None:
    more = {"SPARK_CLASSPATH": "/a/*", "SPARK_EXTRA_CLASSPATH": "/b/*", "SPARK_CONF_DIR": "/conf"}
    command = entrypoint.command_of(["executor"], EXECUTOR | more, HOME)
    assert command[command.index("-cp") + 1] == f"/conf:/a/*:{HOME}/jars/*:/b/*"


def test_a_driver_of_an_operator_is_spark_submit_and_all_else_is_quire(entrypoint: Any) -> None:
    driver = entrypoint.command_of(["driver", "local:///job.py", "x"], {"SPARK_DRIVER_BIND_ADDRESS": "10.0.0.1"}, HOME)
    assert driver[0] == f"{HOME}/bin/spark-submit" and driver[-2:] == ["local:///job.py", "x"]
    assert "spark.driver.bindAddress=10.0.0.1" in driver
    assert entrypoint.command_of(["jobs", "list"], {}, HOME) == ["quire", "jobs", "list"]
    assert entrypoint.command_of([], {}, HOME) == ["quire"]


def test_a_container_that_spark_did_not_start_says_so() -> None:
    done = subprocess.run(
        [sys.executable, IMAGE / "entrypoint.py", "executor"], capture_output=True, text=True, check=False, env={}
    )
    assert done.returncode == 1
    assert "Spark did not set SPARK_EXECUTOR_MEMORY" in done.stderr


def test_the_dockerfile_copies_what_exists_and_installs_every_distribution_that_jobs_need() -> None:
    text = (IMAGE / "Dockerfile").read_text().replace("\\\n", " ")
    copies = [shlex.split(line)[1:-1] for line in text.splitlines() if line.startswith("COPY") and "--from" not in line]
    for source in [each for line in copies for each in line]:
        assert (ROOT / source).exists(), source
    for distribution in ("bookie", "broker", "jobs"):
        assert len(re.findall(rf"install.py (?:libraries|code).*/src/{distribution}\b", text)) == 2
    assert re.search(r"^USER 10001:10001$", text, re.MULTILINE)


def test_the_versions_of_spark_and_arrow_are_pinned_for_images() -> None:
    pinned = (ROOT / "images" / "constraints.txt").read_text()
    assert re.search(r"^pyspark==4\.", pinned, re.MULTILINE) and re.search(r"^pyarrow==", pinned, re.MULTILINE)
