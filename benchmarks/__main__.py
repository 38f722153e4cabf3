"""`make bench`: compares Quire's standalone with a stock Pulsar, by the same client on the same disk, in turns.

Prints a Markdown table with both sides and their ratio. Absolute figures depend on the machine; only the ratios are
meaningful. `--quick` runs short cases, `--ours` leaves out the stock Pulsar.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.servers import PEERS, Proxy, Pulsar, Quire, cpu_seconds, resident_mb

Side = Quire | Pulsar | Proxy
Results = dict[str, list[dict[str, Any]]]
"""The figures of each run of a case, by the name of the side."""
ADDED = ("msgs_s", "MB_s", "total", "produced", "consumed", "produced_s", "consume_s", "client_cores")
"""Figures that are sums over the clients of a case."""


@dataclass(frozen=True, slots=True)
class Case:
    """One row of the table: a mode of the stock client with its options, and the figures to show."""

    name: str
    mode: str
    options: tuple[str, ...]
    figures: tuple[str, ...]
    clients: int = 1
    """Processes that run the mode at the same time, each on a topic of its own; their counts and rates are added."""
    tls: bool = False
    """Whether clients connect by TLS."""


CASES = (
    Case("publish 1 KiB, batched", "produce", ("batch=1", "size=1024"), ("msgs_s", "cpu_us", "client_cores")),
    Case("publish 1 KiB, unbatched", "produce", ("batch=0", "size=1024"), ("msgs_s", "cpu_us", "client_cores")),
    Case("publish 100 B, batched", "produce", ("batch=1", "size=100"), ("msgs_s", "cpu_us", "client_cores")),
    Case("publish 100 B, unbatched", "produce", ("batch=0", "size=100"), ("msgs_s", "cpu_us", "client_cores")),
    Case("publish 64 KiB, unbatched", "produce", ("batch=0", "size=65536", "pending=200"), ("MB_s", "cpu_us")),
    Case("one at a time, 1 KiB", "sync", ("size=1024",), ("p50_ms", "p99_ms")),
    Case(
        "end to end at 1,000/s, 1 KiB", "latency", ("batch=0", "rate=1000"), ("e2e.p50_ms", "e2e.p95_ms", "e2e.p99_ms")
    ),
    Case("tail consume 1 KiB, batched", "tail", ("batch=1", "size=1024"), ("consume_s", "produced_s")),
    Case("tail consume 1 KiB, unbatched", "tail", ("batch=0", "size=1024"), ("consume_s", "produced_s")),
)


def main() -> None:
    """Parse the command line, measure and print."""
    parser = argparse.ArgumentParser(prog="make bench ARGS=...", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="3 s a case and one round")
    parser.add_argument("--ours", action="store_true", help="leave the stock Pulsar out")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="cases whose name has this text")
    parser.add_argument("--json", type=Path, help="also write every measurement to this file")
    options = parser.parse_args()
    seconds, rounds = (3, 1) if options.quick else (10, options.rounds)
    cases = [case for case in CASES if options.only in case.name]
    with tempfile.TemporaryDirectory(prefix="quire-bench-", dir=os.environ.get("QUIRE_BENCH_DIR")) as folder:
        print(f"append + fdatasync of 1 KiB on this disk: {probe_disk(Path(folder))}", flush=True)
        sides: list[Side] = [Quire(Path(folder))]
        if not options.ours:
            sides.append(Pulsar(Path(folder)))
        try:
            for side in sides:
                side.start()
                print(f"{side.name}: started in {side.start_s:.2f} s", flush=True)
            results = {case.name: measure(case, sides, seconds, rounds) for case in cases}
            for side in sides:
                print(f"{side.name}: {resident_mb(side.pid)} MiB resident at the end", flush=True)
        finally:
            for side in sides:
                side.stop()
    print_table(cases, [side.name for side in sides], results)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


def probe_disk(folder: Path) -> str:
    """Return median and 99th percentile of appending 1 KiB to a file and syncing it, as text."""
    took = []
    with (folder / "probe").open("wb", buffering=0) as file:
        for _ in range(500):
            begun = time.perf_counter()
            file.write(bytes(1024))
            os.fdatasync(file.fileno())
            took.append((time.perf_counter() - begun) * 1000)
    took.sort()
    return f"p50 {statistics.median(took):.3f} ms, p99 {took[len(took) * 99 // 100]:.3f} ms"


def measure(case: Case, sides: list[Side], seconds: int, rounds: int) -> Results:
    """Run a case on each side in turn, `rounds` times; return the results by side."""
    found: Results = {side.name: [] for side in sides}
    for _ in range(rounds):
        for side in sides:
            found[side.name].append(run_client(case, side, seconds))
            print(f"  {case.name}: {side.name} {json.dumps(found[side.name][-1])}", file=sys.stderr, flush=True)
    return found


def run_client(case: Case, side: Side, seconds: int) -> dict[str, Any]:
    """Run the stock clients of a case, each in its own process; add the server's CPU during the run."""
    before = cpu_seconds(side.pid)
    common = [f"url={side.url_tls if case.tls else side.url}", f"secs={seconds}", "warm=2", "keep=1"]
    if case.tls:
        common.append(f"trust={side.trust}")
    command = [sys.executable, str(PEERS / "bench_pulsar.py"), case.mode, *common, *case.options]
    with ThreadPoolExecutor(case.clients) as threads:
        answers = list(threads.map(lambda _: _output(command, 60 + 20 * seconds), range(case.clients)))
    used = cpu_seconds(side.pid) - before
    results = []
    for code, output, errors in answers:
        lines = [line for line in output.splitlines() if line.startswith("{")]
        if code or not lines:
            raise SystemExit(f"{case.name} against {side.name} failed: {errors[-2000:]}")
        results.append(json.loads(lines[-1]))
    result: dict[str, Any] = results[0]
    for each in results[1:]:
        for name in ADDED:
            if name in each:
                result[name] += each[name]
    messages = result.get("total") or result.get("produced") or result.get("received")
    if messages:
        result["cpu_us"] = round(used * 1e6 / messages, 1)
    return result


def _output(command: list[str], limit_s: int) -> tuple[int, str, str]:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=limit_s)
    return done.returncode, done.stdout, done.stderr


def figure(result: dict[str, Any], path: str) -> float:
    """Return a value of nested results by its dotted path."""
    value: Any = result
    for part in path.split("."):
        value = value[part]
    return float(value)


def print_table(cases: list[Case], sides: list[str], results: dict[str, Results]) -> None:
    """Print medians, and the first side's figure divided by the second's."""
    ratio_of = " / ".join(sides)
    print("\n| case | figure | " + " | ".join(sides) + f" | {ratio_of} |")
    print("|---|---|" + "---|" * (len(sides) + 1))
    for case in cases:
        for name in case.figures:
            medians = [statistics.median(figure(r, name) for r in results[case.name][side]) for side in sides]
            ratio = f"{medians[0] / medians[1]:.2f}" if len(medians) == 2 and medians[1] else ""
            print(f"| {case.name} | {name} | " + " | ".join(f"{m:,.6g}" for m in medians) + f" | {ratio} |")


if __name__ == "__main__":
    main()
