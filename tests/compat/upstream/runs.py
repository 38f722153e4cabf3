"""Runs one of upstream's test classes on our bookies, in a JVM with the harness of `java/`."""

import functools
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.compat.upstream.key_files import write_key_files
from tests.support.etcd_server import require_etcd
from tests.support.java_driver import JAVA_OPTIONS, built

HERE = Path(__file__).resolve().parent
PACKAGE = "org.apache.bookkeeper."
PATIENCE = 3  # factor for upstream's time limit of one test
_TEST_ONLY = ["java.base/java.util", "java.base/java.lang.reflect"]  # packages that upstream's build opens too
OPTIONS = [*JAVA_OPTIONS, *(word for package in _TEST_ONLY for word in ("--add-opens", f"{package}=ALL-UNNAMED"))]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one upstream test."""

    test: str
    outcome: str
    """passed, failed or skipped."""
    seconds: float
    reason: str

    @property
    def method(self) -> str:
        """The name of the test without its parameters."""
        return self.test.split("[")[0]


@functools.cache
def class_path() -> str:
    """Return the class path of our harness and upstream's test jars; skip (with CI=true, fail) when it is
    unavailable."""
    return built("upstream suites", "fetch.sh", str(HERE / "java"), "upstream", fatal=(5, 6))


def run_class(name: str, without: frozenset[str], folder: Path, timeout_s: float) -> list[Outcome]:
    """Run the tests of `org.apache.bookkeeper.NAME` except the methods in `without`; return their results.

    Logs of the JVM, the bookies and etcd stay in `folder`. AssertionError when the class does not finish.
    """
    keys = folder / "keys"
    write_key_files(keys)
    forks = "\n".join([sys.executable, str(HERE / "bookie_forks.py")])
    command = ["java", "-Xmx1g", *OPTIONS, f"-Dquire.forks={forks}", f"-Dquire.etcd={require_etcd()}"]
    command += [f"-Dquire.folder={folder}", f"-Dquire.patience={PATIENCE}", f"-Djava.io.tmpdir={folder}"]
    command += ["-cp", f"{keys}:{class_path()}", "dev.quire.upstream.Run", PACKAGE + name, "-"]
    command += sorted(without)
    with (folder / "java.log").open("ab") as log:
        java = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, cwd=folder, start_new_session=True
        )
        try:
            output, _ = java.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            pytest.fail(f"{name} takes longer than {timeout_s:g} s; see {folder}")
        finally:
            _end_group(java.pid)
            java.wait()
    assert java.returncode == 0, f"{name} did not finish; see {folder}"
    return [Outcome(**json.loads(line)) for line in output.splitlines()]


def _end_group(leader: int) -> None:
    """Kill the JVM with its bookies and etcd, if they still run."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        return
