"""Finds the processes of a Spark that a test has started, below its driver in the kernel's process tree.

Also prepares a Spark whose executors are separate processes (`local-cluster`), on one machine, from the package.
"""

import os
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyspark

from tests.support.polling import until

POLL_S = 0.01  # other processes: there is no event to wait on
MASTER = "local-cluster[2,1,512]"
SETTINGS = {
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.task.maxFailures": "8",
}
"""Settings of a session on MASTER."""


def environment(folder: Path) -> dict[str, str]:
    """Return the environment of a driver on MASTER. Executors start from SPARK_HOME and keep their files in its
    `work`."""
    home = folder / "spark-home"
    if not home.exists():
        home.mkdir()
        for part in Path(pyspark.__file__).parent.iterdir():
            if part.name != "work":
                (home / part.name).symlink_to(part)
    return {**os.environ, "SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1"}


def executors(driver: int) -> list[int]:
    """Return the JVMs that run tasks of this driver."""
    return [pid for pid in _below(driver) if b"CoarseGrainedExecutorBackend" in b" ".join(_command(pid))]


def python_workers(driver: int) -> list[int]:
    """Return the Python processes that run tasks; not those that fork them, nor those that plan."""
    tree = _parents()
    return [pid for pid in _below(driver) if _is_worker(pid) and pid in tree and _is_worker(tree[pid])]


def kill(pids: Iterable[int]) -> int:
    """Send SIGKILL. Return how many of the processes existed."""
    killed = 0
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
        killed += 1
    return killed


def kill_whole(pids: Iterable[int]) -> int:
    """Kill processes with all their descendants, as when a machine dies, and wait. Return how many existed."""
    chosen = list(pids)
    everything = [*chosen, *(each for pid in chosen for each in _below(pid))]
    killed = kill(chosen)
    kill(everything[len(chosen) :])
    until(lambda: not any(map(_command, everything)), "the processes still exist", poll_s=POLL_S)
    return killed


def kill_executors_while_files_come(driver: "subprocess.Popen[bytes]", folder: Path, counts: Iterable[int]) -> int:
    """Kill `count` executors at each new Parquet file below the folder. Return how many times that happened.

    A task that writes a table makes its files one after the other, and they are committed when all tasks are done.
    """
    strikes = 0
    known = set(folder.rglob("*.parquet"))
    for count in counts:
        while not set(folder.rglob("*.parquet")) - known:
            if driver.poll() is not None:
                return strikes
            time.sleep(POLL_S)
        strikes += kill_whole(executors(driver.pid)[:count]) > 0
        known = set(folder.rglob("*.parquet"))
    return strikes


def _is_worker(pid: int) -> bool:
    return [word.decode(errors="replace") for word in _command(pid)][-2:] == ["pyspark.daemon", "pyspark.worker"]


def _command(pid: int) -> list[bytes]:
    try:
        return [word for word in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0") if word]
    except OSError:
        return []  # it ended meanwhile


def _parents() -> dict[int, int]:
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            found[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # it ended meanwhile
    return found


def _below(driver: int) -> Iterator[int]:
    tree = _parents()
    for pid in tree:
        above = pid
        while above in tree and above != driver:
            above = tree[above]
        if above == driver and pid != driver:
            yield pid
