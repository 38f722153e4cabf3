"""`make bench-bookie`: compares stock Java bookies with Quire's under the same stock Java client, in turns.

Prints for each case and figure the medians of both sides over the rounds with the least and the most, and the ratio of
the rounds likewise. Absolute figures depend on the machine; only the ratios are meaningful. `--list` prints the cases,
`--quick` runs one round of 4 s, `--only` selects cases by a part of their names, `--ours` leaves out the Java side.
Needs `make peers` once, and etcd.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.bookie_sides import JavaSide, QuireSide, Side
from benchmarks.servers import PEERS
from quire_bookie.bulk import IS_NATIVE

Figures = dict[str, float]
Measured = dict[str, dict[str, list[Figures]]]
"""By case, then by side, one entry a round."""
READ_ENTRIES_MAX = 200_000


@dataclass(frozen=True, slots=True)
class Plan:
    """The duration of a case and the number of rounds."""

    seconds: int
    warmup: int
    rounds: int


@dataclass(frozen=True, slots=True)
class Case:
    """One row of the table: the work on a side, and the number of bookies it needs."""

    name: str
    bookies: int
    run: Callable[[Side, Plan], Figures]


def client(side: Side, mode: str, *options: str) -> tuple[list[dict[str, Any]], float]:
    """Run the Java client in its own process; return its lines, and the bookies' CPU seconds during the run."""
    command = [str(PEERS / "bench" / "run.sh"), mode, f"uri={side.uri}", *options]
    found: list[dict[str, Any]] = []
    before = side.cpu_s()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        for line in process.stdout:
            if line.startswith("{"):
                found.append(json.loads(line))
                if found[-1]["op"] == "ready":
                    before = side.cpu_s()
        used = side.cpu_s() - before
        errors = process.stderr.read()
    found = [line for line in found if line["op"] != "ready"]
    if process.returncode or not found or any(line["errors"] for line in found):
        raise SystemExit(f"{' '.join(command)} against {side.name} failed: {found} {errors[-2000:]}")
    for phase in found:
        if "size" in phase:
            side.payload_mib += phase.get("total", phase.get("last", -1) + 1) * phase["size"] / 2**20
    return found, used


def adds(size: int, outstanding: int, quorums: str = "1/1/1") -> Callable[[Side, Plan], Figures]:
    """Return a case that adds to one ledger."""
    ensemble, write, ack = quorums.split("/")

    def run(side: Side, plan: Plan) -> Figures:
        options = [f"E={ensemble}", f"Qw={write}", f"Qa={ack}", f"size={size}", f"pipeline={outstanding}"]
        lines, cpu = client(side, "write", *options, f"seconds={plan.seconds}", f"warmup={plan.warmup}")
        line = lines[0]
        # Divides the CPU of all bookies by all adds, warm-up included.
        return {
            "adds_s": line["adds_s"],
            "p50_ms": line["p50_ms"],
            "p99_ms": line["p99_ms"],
            "cpu_us": cpu * 1e6 / (line["last"] + 1),
            "rss_mib": side.rss_mib(),
        }

    return run


def many(ledgers: int, connections: int, size: int, outstanding: int) -> Callable[[Side, Plan], Figures]:
    """Return a case that adds to many open ledgers over many connections."""

    def run(side: Side, plan: Plan) -> Figures:
        options = [f"ledgers={ledgers}", f"conns={connections}", f"size={size}", f"pipeline={outstanding}"]
        lines, cpu = client(side, "many", *options, f"seconds={plan.seconds}", f"warmup={plan.warmup}")
        line = lines[0]
        return {
            "adds_s": line["adds_s"],
            "p50_ms": line["p50_ms"],
            "p99_ms": line["p99_ms"],
            "cpu_us": cpu * 1e6 / line["total"],
            "rss_mib": side.rss_mib(),
        }

    return run


def written_ledger(side: Side, plan: Plan, size: int = 1024) -> int:
    """Write a ledger to read, then restart the side with an empty page cache; return the ledger's id."""
    lines, _ = client(side, "write", f"size={size}", "pipeline=1000", f"seconds={plan.seconds}", "warmup=0")
    for number in list(side.numbers):
        side.stop(number)
        drop_page_cache()
        side.start(number)
    return int(lines[0]["ledger"])


def drop_page_cache() -> None:
    """Drop the page cache if permitted. Otherwise "cold" only means that the bookie's own caches are empty."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3")
    except OSError as error:
        print(f"  the page cache stays ({error})", file=sys.stderr)


def reads(side: Side, plan: Plan) -> Figures:
    """Read one ledger in order: cold, then warm, then by batch reads."""
    ledger = written_ledger(side, plan)
    options = [f"ledger={ledger}", f"maxread={READ_ENTRIES_MAX}"]
    (cold,), _ = client(side, "read", *options)
    warm, cpu = client(side, "read", *options, "readpasses=3")
    (batch,), batch_cpu = client(side, "read", *options, "readmode=batch")
    return {
        "cold_reads_s": cold["reads_s"],
        "warm_reads_s": statistics.median(line["reads_s"] for line in warm),
        "warm_cpu_us": cpu * 1e6 / sum(line["entries"] for line in warm),
        "batch_reads_s": batch["reads_s"],
        "batch_cpu_us": batch_cpu * 1e6 / batch["entries"],
    }


def mixed(side: Side, plan: Plan) -> Figures:
    """Add at a fixed rate, first alone, then while a reader of an old ledger runs at full speed."""
    ledger = written_ledger(side, plan)
    options = [f"ledger={ledger}", "rate=2000", "size=1024", f"seconds={plan.seconds}", f"warmup={plan.warmup}"]
    (line,), _ = client(side, "mixed", *options)
    return {
        "alone_p99_ms": line["alone_p99_ms"],
        "beside_p99_ms": line["beside_p99_ms"],
        "p99_growth": line["beside_p99_ms"] / line["alone_p99_ms"],
        "reads_s": line["reads_s"],
    }


CASES = (
    Case("1 KiB x 1", 1, adds(1024, 1)),
    Case("1 KiB x 100", 1, adds(1024, 100)),
    Case("1 KiB x 1000", 1, adds(1024, 1000)),
    Case("100 B x 1000", 1, adds(100, 1000)),
    Case("64 KiB x 100", 1, adds(65536, 100)),
    Case("100 connections, 10000 ledgers, 1 KiB x 1000", 1, many(10_000, 100, 1024, 1000)),
    Case("1 connection, 1 ledger, 1 KiB x 1000", 1, many(1, 1, 1024, 1000)),
    Case("reads 1 KiB", 1, reads),
    Case("adds at 2000/s beside reads", 1, mixed),
    Case("3 bookies 3/3/2, 1 KiB x 1000", 3, adds(1024, 1000, "3/3/2")),
    Case("3 bookies 3/3/2, 64 KiB x 100", 3, adds(65536, 100, "3/3/2")),
)


def probe_disk(folder: Path, seconds: float = 1.0) -> Figures:
    """Measure appending 1 KiB with fdatasync on this disk."""
    took = []
    path = folder / "probe"
    with path.open("wb", buffering=0) as file:
        end = time.perf_counter() + seconds
        while (begun := time.perf_counter()) < end:
            file.write(bytes(1024))
            os.fdatasync(file.fileno())
            took.append((time.perf_counter() - begun) * 1000)
    path.unlink()
    took.sort()
    return {"p50_ms": statistics.median(took), "p99_ms": took[len(took) * 99 // 100]}


def run_cases(cases: list[Case], sides: list[Side], plan: Plan, folder: Path, measured: Measured) -> None:
    """Run all cases that need the same number of bookies, in rounds; within a round the sides take turns."""
    for turn in range(plan.rounds):
        measured["raw append + fdatasync"].setdefault("disk", []).append(probe_disk(folder))
        for case in cases:
            # The first side runs on a colder machine, so the order changes every round.
            for side in sides if turn % 2 == 0 else sides[::-1]:
                figures = case.run(side, plan)
                measured[case.name].setdefault(side.name, []).append(figures)
                shown = {name: round(value, 3) for name, value in figures.items()}
                print(f"  {case.name}: {side.name} {json.dumps(shown)}", file=sys.stderr, flush=True)


def measure(cases: list[Case], sides: list[Side], plan: Plan, folder: Path, measured: Measured) -> None:
    """Run the cases on one bookie a side, then those on three."""
    for name in (*(case.name for case in cases), "raw append + fdatasync", "bookie"):
        measured[name] = {}
    for side in sides:
        side.open()
    for bookies in (1, 3):
        now = [case for case in cases if case.bookies == bookies]
        if not now:
            continue
        for side in sides:
            for number in range(1, bookies + 1):
                if number not in side.numbers:
                    side.start(number)
            # A JVM compiles during its first seconds under load, so both sides are warmed up.
            quorums = (f"E={bookies}", f"Qw={bookies}", f"Qa={bookies}")
            client(side, "write", *quorums, "seconds=5", f"warmup={2 * plan.warmup}")
        run_cases(now, sides, plan, folder, measured)
        if bookies == 1:
            for side in sides:
                measured["bookie"][side.name] = [about(side)]


def about(side: Side) -> Figures:
    """Return memory, disk use and start time of the first bookie after all its cases."""
    for _ in range(3):  # no start replays a journal, and the index is in the page cache
        side.stop(1)
        side.start(1)
    journal_mib, ledgers_mib = side.disk_mib()
    return {
        "start_s": statistics.median(side.start_s[1:]),
        "first_start_s": side.start_s[0],
        "journal_mib": journal_mib,
        "ledgers_mib": ledgers_mib,
        "ledgers_by_payload": ledgers_mib / side.payload_mib,
    }


def spread(values: list[float]) -> str:
    """Median (least..most)."""
    if len(values) == 1:
        return number(values[0])
    return f"{number(statistics.median(values))} ({number(min(values))}..{number(max(values))})"


def number(value: float) -> str:
    """Format a number with three significant digits."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def print_table(measured: Measured) -> None:
    """Print both sides and the ratio of the rounds."""
    print(f"\nOurs with its steps over whole buffers {'native' if IS_NATIVE else 'in plain Python'}.")
    print("\n| case | figure | quire | java | quire / java |\n|---|---|---|---|---|")
    for case, by_side in measured.items():
        for name in dict.fromkeys(name for rounds in by_side.values() for figures in rounds for name in figures):
            if "disk" in by_side:
                print(f"| {case} | {name} | {spread([f[name] for f in by_side['disk']])} | | |")
                continue
            ours, theirs = ([f[name] for f in by_side.get(side, [])] for side in ("quire", "java"))
            ratios = [a / b for a, b in zip(ours, theirs, strict=False) if b]
            print(
                f"| {case} | {name} | {spread(ours) if ours else ''} | {spread(theirs) if theirs else ''} | "
                f"{spread(ratios) if ratios else ''} |"
            )


def main() -> None:
    """Parse the command line, measure and print."""
    parser = argparse.ArgumentParser(prog="make bench-bookie ARGS=...", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="4 s a case and one round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=10, help="seconds of each case, after --warmup")
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--only", default="", help="a regular expression that the names of the cases contain")
    parser.add_argument("--ours", action="store_true", help="leave out the Java bookies")
    parser.add_argument("--event-loop", default="auto", help="event loop of our bookies: auto, asyncio or uvloop")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting of our bookies; journalWriteData=false with acknowledgeDataLossRisk=true shows the "
        "limit of client and machine",
    )
    parser.add_argument("--folder", default=os.environ.get("QUIRE_BENCH_DIR"), help="a folder on the disk to measure")
    parser.add_argument("--json", type=Path, help="also write every measurement to this file")
    parser.add_argument("--list", action="store_true", help="print the names of the cases and exit")
    options = parser.parse_args()
    if options.list:
        print("\n".join(case.name for case in CASES))
        return
    plan = Plan(4, 2, 1) if options.quick else Plan(options.seconds, options.warmup, options.rounds)
    cases = [case for case in CASES if re.search(options.only, case.name)]
    with tempfile.TemporaryDirectory(prefix="quire-bench-", dir=options.folder) as folder:
        sides: list[Side] = [QuireSide(Path(folder) / "quire", options.event_loop, options.set)]
        if not options.ours:
            sides.append(JavaSide(Path(folder) / "java"))
        measured: Measured = {}
        try:
            measure(cases, sides, plan, Path(folder), measured)
        finally:
            for side in sides:
                side.close()
            print_table(measured)  # prints partial results when a case failed
    if options.json:
        options.json.write_text(json.dumps(measured, indent=1))


if __name__ == "__main__":
    main()
