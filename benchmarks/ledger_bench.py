"""`make bench-ledger`: compares our ledger client with the stock Java client on the same bookies (ours), and measures
operations of a cluster.

Three of our bookies, a fourth for the repairs, and etcd, all processes on this machine; for one row also the Java
client with Java bookies. Prints a table of medians (least..most) over the rounds, then the ratios for which issue 5
sets aims. Absolute figures depend on the machine. `--quick` runs short cases, `--only` selects parts by name, `--list`
prints their names, `--no-java` leaves out everything Java. Needs etcd, and `make peers` once.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.bench_bookie import Plan, probe_disk, spread
from benchmarks.bookie_sides import JavaSide, QuireSide, Side
from benchmarks.servers import PEERS, ROOT
from quire_bookie.bulk import IS_NATIVE

Row = dict[str, float]
CLIENT_TIMEOUT_S = 300
OURS, JAVA, ALL_JAVA, ONE = "quire", "java client", "java client and bookies", "quire, 1/1/1"


@dataclass
class Bench:
    """The sides and all measurements so far: by case, then by client, one row a round."""

    plan: Plan
    ours: QuireSide
    java: JavaSide | None
    rows: dict[str, dict[str, list[Row]]] = field(default_factory=dict)

    def note(self, case: str, who: str, row: Row) -> None:
        """Record one measurement and print it."""
        self.rows.setdefault(case, {}).setdefault(who, []).append(row)
        print(f"  {case}: {who} {json.dumps({key: round(value, 3) for key, value in row.items()})}", file=sys.stderr)

    def work(self, mode: str, **options: object) -> dict[str, float]:
        """Run our client once in its own process."""
        words = [f"{key}={value}" for key, value in options.items()]
        command = [sys.executable, "-m", "benchmarks.ledger_work", mode]
        command += [f"metadata=etcd://127.0.0.1:{self.ours.etcd_port}", *words]
        return _line(command, dies=mode == "crash")

    def java_client(self, side: Side, **options: object) -> dict[str, float]:
        """Run the writer of the stock client once; its CPU is that of the measured seconds."""
        words = [f"{key}={value}" for key, value in options.items()]
        line = _line([str(PEERS / "bench" / "run.sh"), "write", f"uri={side.uri}", *words])
        if line["errors"]:
            raise SystemExit(f"the Java client against {side.name} bookies failed: {line}")
        line["client_cpu_us"] = line["client_cpu_cores"] * 1e6 / line["adds_s"] if line["adds_s"] else 0.0
        return line


def _line(command: list[str], *, dies: bool = False) -> dict[str, float]:
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=CLIENT_TIMEOUT_S, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines or bool(done.returncode) is not dies:
        raise SystemExit(f"{' '.join(command)} failed: {done.stdout[-1000:]}{done.stderr[-3000:]}")
    found: dict[str, float] = json.loads(lines[-1])
    return found


def _kept(line: dict[str, float], *names: str) -> Row:
    return {name: line[name] for name in names}


WRITTEN = ("adds_s", "p50_ms", "p99_ms", "client_cpu_us")


def adds(bench: Bench, case: str, size: int, pipeline: int, turn: int) -> None:
    """Add with 3/3/2 and many outstanding, by both clients on our bookies; ours by single calls and by calls of
    fifty."""
    times: dict[str, object] = {"seconds": bench.plan.seconds, "warmup": bench.plan.warmup}

    def ours() -> None:
        line = bench.work("write", size=size, pipeline=pipeline, **times)
        bench.note(case, OURS, _kept(line, *WRITTEN))

    def ours_in_runs() -> None:
        line = bench.work("write", size=size, pipeline=pipeline, run=min(50, pipeline // 4), **times)
        bench.note(case, "quire, entries in runs", _kept(line, *WRITTEN))

    def java() -> None:
        if bench.java is not None:
            # Each run is a new JVM, which compiles during its first seconds under load, so it is warmed up.
            warm = times | {"warmup": 3 * bench.plan.warmup}
            line = bench.java_client(bench.ours, E=3, Qw=3, Qa=2, size=size, pipeline=pipeline, **warm)
            bench.note(case, JAVA, _kept(line, *WRITTEN))

    clients = [ours, ours_in_runs, java]
    for client in clients if turn % 2 == 0 else clients[::-1]:
        client()


def depth_1(bench: Bench, turn: int) -> None:
    """Add one entry at a time: our client on three bookies and on one, and the Java system."""
    case = "1 KiB x 1, 3/3/2"
    times: dict[str, object] = {"seconds": bench.plan.seconds, "warmup": bench.plan.warmup}
    names = ("p50_ms", "p99_ms", "adds_s")
    bench.note(case, OURS, _kept(bench.work("write", pipeline=1, **times), *names))
    bench.note(case, ONE, _kept(bench.work("write", pipeline=1, quorums="1/1/1", **times), *names))
    if bench.java is not None:
        options: dict[str, object] = {"size": 1024, "pipeline": 1, **times, "warmup": 2 * bench.plan.warmup}
        bench.note(case, JAVA, _kept(bench.java_client(bench.ours, E=3, Qw=3, Qa=2, **options), *names))
        bench.note(case, ALL_JAVA, _kept(bench.java_client(bench.java, E=3, Qw=3, Qa=2, **options), *names))


def recovering(bench: Bench, turn: int) -> None:
    """Recover ledgers whose writers died with a tail of 1,000 unconfirmed entries."""
    ledgers = [int(bench.work("crash")["ledger"]) for _ in range(2 if bench.plan.rounds == 1 else 5)]
    line = bench.work("recover", ledgers=",".join(map(str, ledgers)))
    bench.note("recovery, tail of 1,000", OURS, _kept(line, "median_ms", "first_ms", "most_ms", "client_cpu_ms"))


def opening(bench: Bench, turn: int) -> None:
    """Open ledgers without recovery: closed ones, and ones still being written (whose bookies are asked)."""
    count = 1_000 if bench.plan.rounds == 1 else 3_000
    for closed in (True, False):
        created = bench.work("create", count=count, closed=str(closed).lower())
        line = bench.work("open", ledgers=created["ledgers"])
        kind = "closed" if closed else "open"
        bench.note(
            f"opening {kind} ledgers", OURS, {**_kept(line, "opens_s", "client_cpu_us"), **_kept(created, "creates_s")}
        )


def repairing(bench: Bench, turn: int) -> None:
    """Remove a bookie; its replicas are copied to a fourth one, at full speed and at a configured rate."""
    side, times = bench.ours, 1 if bench.plan.rounds == 1 else 3
    for size, entries in ((1024, 40_000 * times), (65536, 2_000 * times)):
        three = ",".join(side.bookie_id(number) for number in (1, 2, 3))
        written: dict[str, object] = {"bookies": three, "size": size, "pipeline": 1000 * 1024 // size + 50}
        ledgers = [int(bench.work("write", entries=entries, run=10, **written)["ledger"]) for _ in range(2)]
        reads = bench.work("read", ledgers=ledgers[0])
        side.stop(1)
        try:
            gone: dict[str, object] = {"bookies": three.split(",")[0]}
            free = bench.work("repair", ledgers=ledgers[0], **gone)
            # A fifth of the full speed, but fast enough that the row takes less than a minute.
            rate = max(free["mib_s"] / 5, free["mib"] / 40)
            slow = bench.work("repair", ledgers=ledgers[1], rate=rate, **gone)
        finally:
            side.start(1)
        row = {"repair_mib_s": free["mib_s"], "batch_read_mib_s": reads["mib_s"], "by_batch_read": 0.0}
        row["by_batch_read"] = free["mib_s"] / reads["mib_s"]
        row |= {"throttled_by_rate": slow["mib_s"] / rate, "cpu_us_kib": free["cpu_us_kib"]}
        bench.note(f"re-replication, entries of {size // 1024} KiB", OURS, row)


def losing(bench: Bench, turn: int) -> None:
    """Kill one of three bookies with 3/3/2 during adds."""
    side = bench.ours
    for number in (1, 2, 3):
        victim = side.pid(number)
        if 4 in side.numbers:
            side.stop(4)
        seconds = 3 if bench.plan.rounds == 1 else 6
        line = bench.work("loss", victim=victim, pipeline=100, seconds=seconds)
        side.stop(number)
        side.start(number)
        bench.note("a bookie of three is killed", OURS, _kept(line, "pause_ms", "gap_before_ms", "adds_s_after"))


PARTS: dict[str, Callable[[Bench, int], None]] = {
    "adds 1 KiB": lambda bench, turn: adds(bench, "1 KiB x 1000, 3/3/2", 1024, 1000, turn),
    "adds 64 KiB": lambda bench, turn: adds(bench, "64 KiB x 100, 3/3/2", 65536, 100, turn),
    "depth 1": depth_1,
    "recovery": recovering,
    "opening": opening,
    "losing a bookie": losing,
    "re-replication": repairing,
}


@dataclass(frozen=True, slots=True)
class Aim:
    """A figure, or the ratio of two, and the value that issue 5 requires."""

    text: str
    case: str
    figure: str
    who: str
    against: str | None
    least: float | None = None
    most: float | None = None


AIMS = (
    Aim("rate against the Java client's", "1 KiB x 1000, 3/3/2", "adds_s", OURS, JAVA, least=1),
    Aim("client CPU against the Java client's", "1 KiB x 1000, 3/3/2", "client_cpu_us", OURS, JAVA, most=1),
    Aim("rate against the Java client's", "64 KiB x 100, 3/3/2", "adds_s", OURS, JAVA, least=1),
    Aim("client CPU against the Java client's", "64 KiB x 100, 3/3/2", "client_cpu_us", OURS, JAVA, most=1),
    Aim("p50 against one bookie's", "1 KiB x 1, 3/3/2", "p50_ms", OURS, ONE, most=2.5),
    Aim("p50 against the Java system's", "1 KiB x 1, 3/3/2", "p50_ms", OURS, ALL_JAVA, most=0.5),
    Aim("ms", "recovery, tail of 1,000", "median_ms", OURS, None, most=300),
    Aim("ledgers a second", "opening closed ledgers", "opens_s", OURS, None, least=1000),
    Aim("ledgers a second", "opening open ledgers", "opens_s", OURS, None, least=1000),
    *(
        aim
        for size in (1, 64)
        for aim in (
            Aim(
                "rate against batch reads",
                f"re-replication, entries of {size} KiB",
                "by_batch_read",
                OURS,
                None,
                least=0.6,
            ),
            Aim(
                "throttled rate against the configured one",
                f"re-replication, entries of {size} KiB",
                "throttled_by_rate",
                OURS,
                None,
                least=0.9,
                most=1.1,
            ),
        )
    ),
)


def print_tables(bench: Bench) -> None:
    """Print all measurements, then the aims."""
    print(f"\nBookies with their steps over whole buffers {'native' if IS_NATIVE else 'in plain Python'}.")
    print("\n| case | who | figure | median (least..most) |\n|---|---|---|---|")
    for case, by_who in bench.rows.items():
        for who, rows in by_who.items():
            for name in rows[0]:
                print(f"| {case} | {who} | {name} | {spread([row[name] for row in rows])} |")
    print("\n| case | aim | wanted | found |\n|---|---|---|---|")
    for aim in AIMS:
        values = _values(bench, aim)
        if not values:
            continue
        wanted = " and ".join(
            f"{word} {bound:g}" for word, bound in (("at least", aim.least), ("at most", aim.most)) if bound is not None
        )
        middle = statistics.median(values)
        held = (aim.least is None or middle >= aim.least) and (aim.most is None or middle <= aim.most)
        print(f"| {aim.case} | {aim.text} | {wanted} | {spread(values)}{'' if held else ' **missed**'} |")


def _values(bench: Bench, aim: Aim) -> list[float]:
    by_who = bench.rows.get(aim.case, {})
    ours = [row[aim.figure] for row in by_who.get(aim.who, [])]
    if aim.against is None:
        return ours
    theirs = [row[aim.figure] for row in by_who.get(aim.against, [])]
    return [one / other for one, other in zip(ours, theirs, strict=False) if other]


def measure(bench: Bench, parts: list[str], folder: Path) -> None:
    """Start the bookies that the parts need, then run the parts in rounds."""
    bench.ours.open()
    for number in (1, 2, 3):
        bench.ours.start(number)
    if bench.java is not None and "depth 1" in parts:
        bench.java.open()
        for number in (1, 2, 3):
            bench.java.start(number)
        # A JVM compiles during its first seconds under load, so it is warmed up.
        bench.java_client(bench.java, E=3, Qw=3, Qa=2, seconds=5, warmup=2 * bench.plan.warmup)
    for turn in range(bench.plan.rounds):
        bench.note("raw append + fdatasync", "disk", probe_disk(folder))
        for part in parts:
            if part == "re-replication" and 4 not in bench.ours.numbers:
                bench.ours.start(4)
            PARTS[part](bench, turn)


def main() -> None:
    """Parse the command line, measure and print."""
    parser = argparse.ArgumentParser(prog="make bench-ledger ARGS=...", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="4 s a case and one round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=10, help="seconds of each case, after --warmup")
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--only", default="", help="a regular expression that the names of the parts contain")
    parser.add_argument("--no-java", action="store_true")
    parser.add_argument("--folder", default=os.environ.get("QUIRE_BENCH_DIR"), help="a folder on the disk to measure")
    parser.add_argument("--json", type=Path, help="also write every measurement to this file")
    parser.add_argument("--list", action="store_true", help="print the names of the parts and exit")
    options = parser.parse_args()
    if options.list:
        print("\n".join(PARTS))
        return
    plan = Plan(4, 2, 1) if options.quick else Plan(options.seconds, options.warmup, options.rounds)
    parts = [part for part in PARTS if re.search(options.only, part)]
    with tempfile.TemporaryDirectory(prefix="quire-bench-", dir=options.folder) as name:
        folder = Path(name)
        java = None if options.no_java else JavaSide(folder / "java")
        bench = Bench(plan, QuireSide(folder / "quire"), java)
        try:
            measure(bench, parts, folder)
        finally:
            bench.ours.close()
            if java is not None and java.folder.exists():
                java.close()
            print_tables(bench)  # prints partial results when a part failed
    if options.json:
        options.json.write_text(json.dumps(bench.rows, indent=1))


if __name__ == "__main__":
    main()
