"""A Spark read while bookies, Python workers and executors are killed. The result is complete, without duplicates."""

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import PIPE

import pytest

pytest.importorskip("pyspark")

import pyarrow.parquet as pq

from quire_bookie.client import LedgerClient
from tests.integration.jobs import spark_processes
from tests.support import spark_session  # noqa: F401  sets Spark's settings for all tests
from tests.support.etcd_cluster import EtcdCluster
from tests.support.polling import until
from tests.support.spark_python import spark_python

ROOT = Path(__file__).resolve().parents[3]
ENTRIES = 6_000
TIMEOUT_S = 900
NOT_STARTED = "Python worker failed to connect back"
"""Spark gives a new Python ten seconds, with no setting for it: too short on a busy machine."""
STARTS_MAX = 5


def payload(entry: int) -> bytes:
    """Return the payload of an entry, different for each entry."""
    return b"entry %d " % entry * 50


@pytest.fixture(scope="module")
def bookies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    """Three bookie processes, and etcd."""
    cluster = EtcdCluster(tmp_path_factory.mktemp("cluster"))
    try:
        cluster.add_bookies(3)
        yield cluster
    finally:
        cluster.close()


@pytest.fixture(scope="module")
def ledger(bookies: EtcdCluster) -> int:
    """A closed ledger with every entry on all three bookies."""

    async def write() -> int:
        async with LedgerClient.connect(f"etcd://{bookies.etcd.endpoint}") as client:
            async with client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=3) as writer:
                for first in range(0, ENTRIES, 500):
                    writer.submit([payload(entry) for entry in range(first, first + 500)])
                    await writer.force()
                assert writer.last_add_confirmed == ENTRIES - 1
            return writer.ledger_id

    return asyncio.run(write())


def read(
    bookies: EtcdCluster, ledger: int, folder: Path, strike: Callable[["subprocess.Popen[str]"], None], **more: str
) -> int:
    """Read the ledger in some twenty tasks, two at a time, call `strike` meanwhile, and check that every entry is
    returned once. Return the number of failed attempts.

    The driver reports how many tasks had not begun at the strike, which shows that it came in the middle.
    """
    size_bytes = sum(len(payload(entry)) for entry in range(ENTRIES))
    options = {"metadata": f"etcd://{bookies.etcd.endpoint}", "ledgers": str(ledger), "mode": "entries"}
    options |= {"splitBytes": str(size_bytes // 20), "batchBytes": "16k"}
    words = [f"{name}={value}" for name, value in (options | more).items()]
    environment = {**spark_processes.environment(folder), "PYSPARK_PYTHON": spark_python(folder)}
    log = folder / "driver.log"
    for start in range(STARTS_MAX):
        out = folder / f"out{start}"
        command = [sys.executable, "-m", "tests.integration.jobs.reading_driver", str(out), *words]
        with log.open("w") as errors:
            driver = subprocess.Popen(
                command, stdin=PIPE, stdout=PIPE, stderr=errors, text=True, cwd=ROOT, env=environment
            )
        lines: list[list[str]] = []
        try:
            assert driver.stdin is not None and driver.stdout is not None
            for line in driver.stdout:
                lines.append(line.split())
                if line == "reading\n":
                    strike(driver)
                    driver.stdin.write("struck\n")
                    driver.stdin.flush()
            status = driver.wait(TIMEOUT_S)
        finally:
            driver.kill()
            driver.wait()
        if status and not lines and NOT_STARTED in log.read_text():
            continue
        assert status == 0, log.read_text()[-6000:]
        (_, waiting), (_, failed) = lines[-2:]
        assert int(waiting) >= 2, "the strike came too late"
        rows = pq.read_table(out).sort_by("entry").to_pylist()
        assert [(row["ledger"], row["entry"]) for row in rows] == [(ledger, entry) for entry in range(ENTRIES)]
        assert all(row["payload"] == payload(row["entry"]) for row in rows)
        return int(failed)
    pytest.fail(f"Spark could not start a Python in {STARTS_MAX} attempts:\n{log.read_text()[-3000:]}")


def test_tasks_of_killed_python_workers_are_repeated(bookies: EtcdCluster, ledger: int, tmp_path: Path) -> None:
    def strike(driver: "subprocess.Popen[str]") -> None:
        for _ in range(2):  # workers that Spark starts again have a task at once
            until(
                lambda: spark_processes.kill(spark_processes.python_workers(driver.pid)),
                "no Python worker runs",
                poll_s=spark_processes.POLL_S,
                process=driver,
            )

    assert read(bookies, ledger, tmp_path, strike) >= 1


def test_tasks_of_killed_executors_are_repeated(bookies: EtcdCluster, ledger: int, tmp_path: Path) -> None:
    def strike(driver: "subprocess.Popen[str]") -> None:
        assert spark_processes.kill(spark_processes.executors(driver.pid)) == 2

    assert read(bookies, ledger, tmp_path, strike, master=spark_processes.MASTER) >= 1


@pytest.mark.timeout(1800)
def test_a_read_continues_with_another_replica_after_bookies_are_killed(
    bookies: EtcdCluster, ledger: int, tmp_path: Path
) -> None:
    def strike(_driver: "subprocess.Popen[str]") -> None:
        for bookie in bookies.bookies[:2]:  # most tasks lose the bookie that they prefer
            bookie.kill()

    assert read(bookies, ledger, tmp_path, strike) == 0, "no task had to be repeated"
    assert [bookie.is_running for bookie in bookies.bookies] == [False, False, True], "the last one has every entry"
