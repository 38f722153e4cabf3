"""`make bench-spark`: compares the Spark source with reading the same bytes from raw files, by the same Spark.

One bookie, etcd and a local Spark of two cores, all on this machine. Three tables of the same payload: entries of 1 KiB
and 16 KiB as they are stored, and messages of 1 KiB unpacked from entries (one each, and batches of fifty). A Python
data source reads the raw files too: length and bytes of each entry, converted to the same columns by the same function.
Rows go into Spark's `noop` sink. The first two rounds warm up workers and code and are not counted. Spark connects to
its Python workers by Unix sockets, as in `quire jobs run`.

Prints medians (least..most) over the rounds: MB/s of payload, and CPU in us per row of the Python workers, of all of
Spark, and of the bookie; then each aim of issue 7 with the measured value. CPU and ratios are meaningful on a shared
machine too, MB/s only on an idle one; the load of other processes is printed. `--quick` runs short cases, `--json FILE`
stores the numbers.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field
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

LEDGERS = 4
"""Ledgers of a case: the eight tasks have the same size, like the raw files."""
_SUBMIT = 256
BATCH = 50
WARM = 2
"""Rounds that warm up the Python workers and Java's code; they are not counted."""
WORKER_MIB_MAX = 400
"""A worker holds Python, Arrow and gRPC (about 120 MiB), and a few runs of 4 MiB with the rows made from them."""


@dataclass(frozen=True)
class Case:
    """`rows` of `row_bytes` of payload each, `per_entry` in an entry."""

    name: str
    mode: str
    row_bytes: int
    rows: int
    per_entry: int = 1

    def entries(self) -> Iterator[bytes]:
        """Yield the entries. They are created once and repeated, since their content does not affect the CPU here."""
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


async def write_ledgers(metadata: str, case: Case, count: int = LEDGERS) -> list[int]:
    """Write the rows of a case into `count` ledgers of the same size on one bookie."""
    ledgers: list[int] = []
    entries = case.entries()
    per_ledger = -(-(case.rows // case.per_entry) // count)
    async with LedgerClient.connect(metadata) as client:
        for _ in range(count):
            async with client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1) as writer:
                mine = islice(entries, per_ledger)
                while some := list(islice(mine, _SUBMIT)):
                    writer.submit(some)
                    if not writer.is_writable:
                        await writer.force()
            ledgers.append(writer.ledger_id)
    return ledgers


def write_files(folder: Path, case: Case, count: int) -> None:
    """Write the rows of a case into files of about the same size."""
    folder.mkdir()
    per_file = -(-(case.rows // case.per_entry) // count)
    entries = case.entries()
    for number in range(count):
        with (folder / f"{number:03}").open("wb") as file:
            for entry in islice(entries, per_file):
                file.write(LENGTH.pack(len(entry)) + entry)


@dataclass(frozen=True)
class Cpu:
    """CPU seconds so far, including ended child processes. `others`: of all other processes on the machine."""

    java: float
    python: float
    servers: float
    others: float

    def since(self, before: "Cpu") -> "Cpu":
        """Return the CPU used since `before`."""
        return Cpu(*(now - then for now, then in zip(astuple(self), astuple(before), strict=True)))


@dataclass(frozen=True)
class _Process:
    name: str
    parent: int
    seconds: float


def _processes() -> dict[int, _Process]:
    found: dict[int, _Process] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue  # it ended meanwhile
        fields = text.rpartition(")")[2].split()
        name = text[text.index("(") + 1 : text.rindex(")")]
        found[int(stat.parent.name)] = _Process(name, int(fields[1]), sum(map(int, fields[11:15])) / CLOCK_TICKS)
    return found


def _below(parent: int, processes: Mapping[int, _Process]) -> Iterator[int]:
    for pid, process in processes.items():
        if process.parent == parent:
            yield pid
            yield from _below(pid, processes)


def _workers(processes: Mapping[int, _Process]) -> list[int]:
    """Return the Python processes below the JVM of this process."""
    ours = list(_below(os.getpid(), processes))
    java = [pid for pid in ours if processes[pid].name == "java"]
    return [pid for each in java for pid in _below(each, processes) if processes[pid].name.startswith("python")]


def cpu_now(servers: Sequence[int]) -> Cpu:
    """Return the CPU of the JVM below this process, its Python workers, and the processes of the cluster."""
    processes = _processes()
    java = sum(processes[pid].seconds for pid in _below(os.getpid(), processes) if processes[pid].name == "java")
    python = sum(processes[pid].seconds for pid in _workers(processes))
    cluster = sum(processes[pid].seconds for pid in servers if pid in processes)
    user, nice, system, _idle, _io, irq, softirq = map(int, Path("/proc/stat").read_text().split()[1:8])
    machine = (user + nice + system + irq + softirq) / CLOCK_TICKS
    return Cpu(java, python, cluster, machine - java - python - cluster)


def worker_peak_mib() -> float:
    """Return the highest peak memory of a Python worker so far, in MiB."""
    peaks = [0]
    for pid in _workers(_processes()):
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue  # it ended meanwhile
        peaks += [int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")]
    return max(peaks) / 1024


@dataclass
class Results:
    """Rows by case and source, one a round."""

    rows: dict[str, list[dict[str, float]]] = field(default_factory=dict)

    def median(self, case: str, name: str) -> float:
        """Return the median over the rounds."""
        return statistics.median(row[name] for row in self.rows[case])

    def show(self) -> None:
        """Print one line a case."""
        print(f"{'case':46} {'MB/s':>16}  us of CPU a row: {'Python':>8} {'Spark':>8} {'bookie':>8} tasks")
        for case, rows in self.rows.items():
            rates = [row["mb_s"] for row in rows]
            spread = f"{statistics.median(rates):.0f} ({min(rates):.0f}..{max(rates):.0f})"
            used = [self.median(case, name) for name in ("python_us", "spark_us", "bookie_us")]
            columns = " ".join(f"{each:8.1f}" for each in used)
            print(f"{case:46} {spread:>16} {'':17} {columns} {rows[0]['tasks']:5.0f}")
        busy = statistics.median(row["others_cores"] for rows in self.rows.values() for row in rows)
        print(f"everything else on this machine took {busy:.1f} of its {os.cpu_count()} cores meanwhile")

    def aims(self) -> Iterator[tuple[str, str, float, bool]]:
        """Yield name, aim and measured value, and whether the aim is met."""
        for kind in ("one", str(BATCH)):
            case = f"messages 1 KiB, {kind} an entry, quire, 8 tasks"
            used, rate = self.median(case, "spark_us"), self.median(case, "mb_s")
            yield f"messages of 1 KiB, {kind} an entry: us of Spark's CPU each", "<= 8", used, used <= 8
            yield f"messages of 1 KiB, {kind} an entry: MB/s", ">= 100", rate, rate >= 100
        rate = self.median("entries 16 KiB, quire, 8 tasks", "mb_s")
        yield "entries of 16 KiB: MB/s", ">= 400", rate, rate >= 400
        for size in ("1 KiB", "16 KiB"):
            ours, raw = f"entries {size}, quire, 8 tasks", f"entries {size}, raw files, 8 tasks"
            ratio = self.median(ours, "mb_s") / self.median(raw, "mb_s")
            yield f"entries of {size}: rate by that of raw files", ">= 0.70", ratio, ratio >= 0.7
            ratio = self.median(raw, "spark_us") / self.median(ours, "spark_us")
            yield f"entries of {size}: Spark's CPU for raw files by that for ours", "none", ratio, True
        one, eight = (self.median(f"entries 1 KiB, quire, {tasks} tasks", "spark_us") for tasks in (1, 8))
        yield "CPU per MiB, 8 tasks by 1", "0.80 to 1.20", eight / one, 0.8 <= eight / one <= 1.2
        peak = max(row["peak_mib"] for rows in self.rows.values() for row in rows)
        yield "most memory of a Python worker, MiB", f"<= {WORKER_MIB_MAX}", peak, peak <= WORKER_MIB_MAX


def measure(results: Results, name: str, case: Case, frame: Any, servers: Sequence[int]) -> None:
    """Read a table once into the noop sink and record the figures."""
    tasks = frame.rdd.getNumPartitions()
    before = cpu_now(servers)
    began = time.monotonic()
    frame.write.format("noop").mode("overwrite").save()
    took = time.monotonic() - began
    used = cpu_now(servers).since(before)
    row = {
        "mb_s": case.rows * case.row_bytes / took / 1e6,
        "python_us": used.python / case.rows * 1e6,
        "spark_us": (used.python + used.java) / case.rows * 1e6,
        "bookie_us": used.servers / case.rows * 1e6,
        "others_cores": used.others / took,
        "peak_mib": worker_peak_mib(),
        "tasks": tasks,
    }
    results.rows.setdefault(name, []).append(row)
    print(f"  {name}: {json.dumps({key: round(value, 2) for key, value in row.items()})}", file=sys.stderr)


def session(folder: Path) -> SparkSession:
    """Start a local Spark session with two cores."""
    os.environ["PYSPARK_PYTHON"] = spark_python(folder)
    found = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "2g")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .getOrCreate()
    )
    found.sparkContext.setLogLevel("ERROR")
    register(found)
    found.dataSource.register(RawFiles)
    return found


def run(cases: list[Case], rounds: int, limit_s: float, folder: Path) -> Results:
    """Run all cases. No counted round except the first begins after `limit_s`."""
    began_s = time.monotonic()
    results = Results()
    (folder / "etcd").mkdir()
    etcd = EtcdServer(require_etcd(), folder / "etcd")
    etcd.start()
    metadata = f"etcd://{etcd.endpoint}"
    cluster = StandaloneProcess(folder, bookies=1, metadata=metadata)
    spark = None
    try:
        cluster.start()
        spark = session(folder)  # starts Java by a fork, so it must precede gRPC's threads
        written = {case.name: asyncio.run(write_ledgers(metadata, case)) for case in cases}
        for case in cases:
            if case.mode == "entries":
                write_files(folder / case.name.replace(" ", "-"), case, 8)
        for round_ in range(WARM + rounds):
            if round_ > WARM and time.monotonic() - began_s > limit_s:
                print(f"  {limit_s:.0f} s are over after {round_ - WARM} rounds", file=sys.stderr)
                break
            if round_ == WARM:
                results.rows.clear()
            for case in cases:
                ledgers = ",".join(map(str, written[case.name]))
                read = spark.read.format("quire").options(metadata=metadata, mode=case.mode, ledgers=ledgers)
                total = case.rows * case.row_bytes
                for tasks in (1, 8) if case.name == "entries 1 KiB" else (8,):
                    frame = read.option("splitBytes", str(total * 11 // 10 // tasks)).load()
                    measure(results, f"{case.name}, quire, {tasks} tasks", case, frame, [cluster.pid])
                if case.mode == "entries":
                    files = spark.read.format("rawfiles").load(str(folder / case.name.replace(" ", "-")))
                    measure(results, f"{case.name}, raw files, 8 tasks", case, files, [cluster.pid])
    finally:
        if spark is not None:
            spark.stop()
        cluster.close()
        etcd.kill()
    return results


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="64 MiB a case and one round")
    parser.add_argument("--mib", type=int, default=768, help="payload of a case")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--limit-s", type=float, default=270, help="no round begins after this number of seconds")
    parser.add_argument("--json", type=Path, help="file for the numbers")
    given = parser.parse_args()
    size = (64 if given.quick else given.mib) << 20
    cases = [
        Case("entries 1 KiB", "entries", 1024, size >> 10),
        Case("entries 16 KiB", "entries", 16384, size >> 14),
        Case("messages 1 KiB, one an entry", "messages", 1024, size >> 10),
        Case(f"messages 1 KiB, {BATCH} an entry", "messages", 1024, (size >> 10) // BATCH * BATCH, BATCH),
    ]
    with tempfile.TemporaryDirectory(prefix="quire-bench-spark-") as folder:
        results = run(cases, 1 if given.quick else given.rounds, given.limit_s, Path(folder))
    results.show()
    print(f"\n{'aim':64} {'wanted':>14} {'measured':>9}")
    for name, wanted, measured, is_met in results.aims():
        print(f"{name:64} {wanted:>14} {measured:9.2f} {'' if is_met else 'MISSED'}")
    if given.json:
        given.json.write_text(json.dumps(results.rows, indent=1))


if __name__ == "__main__":
    main()
