"""`make bench-spark`: the Spark source against the same bytes from raw files, by the same Spark in the same run.

One bookie, etcd and a local Spark of two cores, all on this machine. Three tables of the same payload: entries of 1 KiB
and 16 KiB as they are stored, and messages of 1 KiB unpacked out of entries (one each, and batches of fifty). The raw
files are read by a Python data source too: length and bytes of each entry, to the same columns by the same function.
Rows go into Spark's `noop` sink.

Printed are medians (least..most) over the rounds: MB/s of payload, CPU of the Python workers and of all of Spark in us
per row, and the ratios that issue 7 sets aims for. `--quick` takes a look, `--json FILE` keeps the numbers.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from benchmarks.servers import CLOCK_TICKS
from benchmarks.spark_raw_files import LENGTH, RawFiles
from quire_bookie.client import LedgerClient
from quire_broker.wire.entry import seal
from quire_broker.wire.proto.pulsar_pb2 import MessageMetadata, SingleMessageMetadata
from quire_jobs.source import register
from tests.support.etcd_server import EtcdServer, require_etcd
from tests.support.spark_python import spark_python
from tests.support.standalone import StandaloneProcess

_LEDGER_BYTES = 256 << 20
_SUBMIT = 256
BATCH = 50


@dataclass(frozen=True)
class Case:
    """`rows` of `row_bytes` of payload each, `per_entry` in an entry."""

    name: str
    mode: str
    row_bytes: int
    rows: int
    per_entry: int = 1

    def entries(self) -> Iterator[bytes]:
        """The entries, made once and repeated: what is in them costs no CPU here."""
        if self.mode == "entries":
            entry = os.urandom(self.row_bytes)
        elif self.per_entry == 1:
            metadata = MessageMetadata(producer_name="bench", sequence_id=1, publish_time=1_700_000_000_000)
            entry = seal(metadata, os.urandom(self.row_bytes))
        else:
            metadata = MessageMetadata(producer_name="bench", sequence_id=1, publish_time=1_700_000_000_000)
            metadata.num_messages_in_batch = self.per_entry
            entry = seal(metadata, b"".join(_single(os.urandom(self.row_bytes)) for _ in range(self.per_entry)))
        for _ in range(self.rows // self.per_entry):
            yield entry


def _single(payload: bytes) -> bytes:
    head = SingleMessageMetadata(payload_size=len(payload)).SerializeToString()
    return LENGTH.pack(len(head)) + head + payload


async def write_ledgers(metadata: str, case: Case) -> list[int]:
    """The case in ledgers of 256 MiB and less, on one bookie."""
    ledgers: list[int] = []
    entries = case.entries()
    async with LedgerClient.connect(metadata) as client:
        while True:
            taken = 0
            async with client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1) as writer:
                while taken < _LEDGER_BYTES:
                    some = list(islice(entries, _SUBMIT))
                    if not some:
                        break
                    writer.submit(some)
                    taken += sum(map(len, some))
                    if not writer.is_writable:
                        await writer.force()
            if not taken:
                return ledgers
            ledgers.append(writer.ledger_id)


def write_files(folder: Path, case: Case, count: int) -> None:
    """The case in files of about the same size."""
    folder.mkdir()
    per_file = -(-(case.rows // case.per_entry) // count)
    entries = case.entries()
    for number in range(count):
        with (folder / f"{number:03}").open("wb") as file:
            for entry in islice(entries, per_file):
                file.write(LENGTH.pack(len(entry)) + entry)


def _cpu_of(parents: set[int]) -> tuple[float, float]:
    """CPU seconds so far of the JVM under these processes, and of the Python workers under it."""
    children: dict[int, list[int]] = {}
    times: dict[int, tuple[str, float]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue
        pid, name = int(stat.parent.name), text[text.index("(") + 1 : text.rindex(")")]
        fields = text.rpartition(")")[2].split()
        children.setdefault(int(fields[1]), []).append(pid)
        times[pid] = (name, sum(map(int, fields[11:15])) / CLOCK_TICKS)  # with children that ended
    java = python = 0.0
    waiting = [child for parent in parents for child in children.get(parent, [])]
    while waiting:
        pid = waiting.pop()
        waiting += children.get(pid, [])
        name, seconds = times[pid]
        if name == "java":
            java += seconds
        elif name.startswith("python") or name == "quire":
            python += seconds
    return java, python


@dataclass
class Results:
    """By case and source, one row a round."""

    rows: dict[str, list[dict[str, float]]] = field(default_factory=dict)

    def median(self, case: str, name: str) -> float:
        """Of the rounds."""
        return statistics.median(row[name] for row in self.rows[case])

    def show(self) -> None:
        """One line a case."""
        print(f"{'case':36} {'MB/s':>22} {'us/row, Python':>16} {'us/row, Spark':>16} tasks")
        for case, rows in self.rows.items():
            rates = [row["mb_s"] for row in rows]
            spread = f"{statistics.median(rates):.0f} ({min(rates):.0f}..{max(rates):.0f})"
            print(
                f"{case:36} {spread:>22} {self.median(case, 'python_us'):16.1f} {self.median(case, 'all_us'):16.1f} "
                f"{rows[0]['tasks']:5.0f}"
            )


def measure(results: Results, name: str, case: Case, frame: Any) -> None:
    """One pass into the noop sink."""
    tasks = frame.rdd.getNumPartitions()
    java, python = _cpu_of({os.getpid()})
    began = time.monotonic()
    frame.write.format("noop").mode("overwrite").save()
    took = time.monotonic() - began
    java_now, python_now = _cpu_of({os.getpid()})
    row = {
        "mb_s": case.rows * case.row_bytes / took / 1e6,
        "python_us": (python_now - python) / case.rows * 1e6,
        "all_us": (python_now + java_now - python - java) / case.rows * 1e6,
        "tasks": tasks,
    }
    results.rows.setdefault(name, []).append(row)
    print(f"  {name}: {json.dumps({key: round(value, 2) for key, value in row.items()})}", file=sys.stderr)


def session(folder: Path) -> SparkSession:
    """Two cores, nothing else."""
    os.environ["PYSPARK_PYTHON"] = spark_python(folder)
    found = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "2g")
        .getOrCreate()
    )
    found.sparkContext.setLogLevel("ERROR")
    register(found)
    found.dataSource.register(RawFiles)
    return found


def run(cases: list[Case], rounds: int, folder: Path) -> Results:
    """All of it."""
    results = Results()
    (folder / "etcd").mkdir()
    etcd = EtcdServer(require_etcd(), folder / "etcd")
    etcd.start()
    metadata = f"etcd://{etcd.endpoint}"
    cluster = StandaloneProcess(folder, bookies=1, metadata=metadata)
    spark = None
    try:
        cluster.start()
        written = {case.name: asyncio.run(write_ledgers(metadata, case)) for case in cases}
        for case in cases:
            if case.mode == "entries":
                write_files(folder / case.name.replace(" ", "-"), case, 8)
        spark = session(folder)
        for round_ in range(rounds + 1):
            if round_ == 1:
                results.rows.clear()  # the first one made the workers and the code warm
            for case in cases:
                ledgers = ",".join(map(str, written[case.name]))
                read = spark.read.format("quire").options(metadata=metadata, mode=case.mode, ledgers=ledgers)
                total = case.rows * case.row_bytes
                for tasks in (1, 8) if case.name == "entries 1 KiB" else (8,):
                    frame = read.option("splitBytes", str(total // tasks + (1 << 20))).load()
                    measure(results, f"{case.name}, quire, {tasks} tasks", case, frame)
                if case.mode == "entries":
                    files = spark.read.format("rawfiles").load(str(folder / case.name.replace(" ", "-")))
                    measure(results, f"{case.name}, raw files, 8 tasks", case, files)
    finally:
        if spark is not None:
            spark.stop()
        cluster.close()
        etcd.kill()
    return results


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="64 MiB a case and one round")
    parser.add_argument("--mib", type=int, default=512, help="payload of a case")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="a file for the numbers")
    given = parser.parse_args()
    size = (64 if given.quick else given.mib) << 20
    cases = [
        Case("entries 1 KiB", "entries", 1024, size >> 10),
        Case("entries 16 KiB", "entries", 16384, size >> 14),
        Case("messages 1 KiB, one an entry", "messages", 1024, size >> 10),
        Case(f"messages 1 KiB, {BATCH} an entry", "messages", 1024, (size >> 10) // BATCH * BATCH, BATCH),
    ]
    with tempfile.TemporaryDirectory(prefix="quire-bench-spark-") as folder:
        results = run(cases, 1 if given.quick else given.rounds, Path(folder))
    results.show()
    for case in ("entries 1 KiB", "entries 16 KiB"):
        ratio = results.median(f"{case}, quire, 8 tasks", "mb_s") / results.median(
            f"{case}, raw files, 8 tasks", "mb_s"
        )
        print(f"{case}: {ratio:.2f} of the rate of raw files (aim 0.70)")
    one, eight = (results.median(f"entries 1 KiB, quire, {tasks} tasks", "python_us") for tasks in (1, 8))
    print(f"CPU per MiB from 1 to 8 tasks: {eight / one:.2f} (aim 0.80 to 1.20)")
    if given.json:
        given.json.write_text(json.dumps(results.rows, indent=1))


if __name__ == "__main__":
    main()
