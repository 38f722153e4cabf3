"""`make mutants`: draws mutants of each protocol module, runs unit tests and simulator on them, and reports."""

import argparse
import contextlib
import importlib
import json
import logging
import os
import resource
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from tests.mutation.mutants import Mutant, drawn, mutants_of
from tests.mutation.swap import NotAppliedError, apply
from tests.mutation.targets import TARGETS, Target
from tests.sim.__main__ import run_seed

UNIT_FOLDER = Path("tests/unit/bookie")
ALIVE, CAUGHT, INVALID, LEFT_OUT = "alive", "caught", "invalid", "left out"
WALL_FACTOR = 20
"""Wall-clock seconds that a stage may take for each of its CPU seconds, as the machine is shared."""
Outcome = tuple[str, str]
"""One of the constants above, and the test or error that caught the mutant."""


def unit_tests(target: Target, folder: Path) -> Outcome:
    """Run the unit tests of the module."""
    files = [str(UNIT_FOLDER / each) for each in target.tests]
    base = folder / "tmp"
    with open(os.devnull, "w") as nothing, contextlib.redirect_stdout(nothing), contextlib.redirect_stderr(nothing):
        code = pytest.main(["-x", "-q", "-n", "0", "-p", "no:cacheprovider", f"--basetemp={base}", *files])
    return (ALIVE, "") if code == pytest.ExitCode.OK else (CAUGHT, f"pytest: {code!r}")


def simulator(target: Target, seeds_of: Callable[[int], int]) -> Outcome:
    """Run the scenarios of the module, seed after seed."""
    for scenario, seeds in target.scenarios:
        for seed in range(seeds_of(seeds)):
            try:
                run_seed(scenario, seed)
            except BaseException as error:  # noqa: BLE001  a run may fail with any error
                return CAUGHT, f"{scenario} seed {seed}: {type(error).__name__}: {str(error)[:200]}"
    return ALIVE, ""


def _child(module: str, source: str | None, stage: Callable[[], Outcome], limit_s: int, sender: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s))
    try:
        if source is not None:
            apply(module, source)
        outcome = stage()
    except NotAppliedError as error:
        outcome = INVALID, str(error)
    except BaseException as error:  # noqa: BLE001  a root
        outcome = CAUGHT, f"{type(error).__name__}: {error}"
    sender.send(outcome)


def in_a_fork(module: str, source: str | None, stage: Callable[[], Outcome], limit_s: int) -> Outcome:
    """Run a stage on a mutated module in a separate process; one that does not end counts as caught."""
    context = get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(module, source, stage, limit_s, sender), daemon=True)
    process.start()
    sender.close()
    outcome: Outcome = CAUGHT, "it did not end in time"
    try:
        if receiver.poll(limit_s * WALL_FACTOR):
            outcome = receiver.recv()
    except EOFError:
        outcome = CAUGHT, f"its process ended, perhaps after {limit_s} s of CPU time"
    process.kill()
    process.join()
    receiver.close()
    return outcome


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Results:
    """Stores one line of JSON for each mutant, so that a run can continue where an earlier one ended."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "results.jsonl"
        self.rows: dict[str, dict[str, str]] = {}
        if self._path.exists():
            for line in self._path.read_text().splitlines():
                row = json.loads(line)
                self.rows[row["key"]] = row

    def add(self, mutant: Mutant, change: str, outcomes: dict[str, Outcome]) -> None:
        """Store the outcomes of a mutant."""
        row = {"key": mutant.key, "module": mutant.module, "change": change}
        for stage, (word, text) in outcomes.items():
            row |= {stage: word, f"{stage} says": text}
        self.rows[mutant.key] = row
        with self._path.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def report(self, *, survivors: bool) -> None:
        """Print a table of counts, and optionally the mutants that were not caught."""
        print("| module | mutants | caught by unit tests | seen by the simulator | caught there | by neither |")
        print("|---|---|---|---|---|---|")
        for target in TARGETS:
            rows = [row for row in self.rows.values() if row["module"] == target.name and row["unit"] != INVALID]
            if rows:
                sim = [row for row in rows if row["sim"] in (ALIVE, CAUGHT)]
                counts = (
                    len(rows),
                    sum(row["unit"] == CAUGHT for row in rows),
                    len(sim),
                    sum(row["sim"] == CAUGHT for row in sim),
                    sum(row["unit"] == row["sim"] == ALIVE for row in rows),
                )
                print(f"| `{target.module}` | " + " | ".join(map(str, counts)) + " |")
        if survivors:
            for row in self.rows.values():
                if row["unit"] == row["sim"] == ALIVE:
                    print(f"{row['key']}: {row['change']}")


def study(target: Target, options: argparse.Namespace, results: Results) -> None:
    """Run all drawn mutants of one module."""
    module = importlib.import_module(target.name)
    assert module.__file__ is not None
    source = Path(module.__file__).read_text()
    mutants = mutants_of(target.name, source)
    chosen = drawn(mutants, options.sample or len(mutants), options.draw)
    stages: dict[str, Callable[[], Outcome]] = {
        "unit": lambda: unit_tests(target, options.folder),
        "sim": lambda: simulator(target, lambda seeds: max(1, int(seeds * options.seeds))),
    }
    limits: dict[str, int] = {}
    for name, stage in stages.items():
        before_s = _children_cpu_s()
        word, text = in_a_fork(target.name, None, stage, options.limit)
        limits[name] = min(options.limit, int(3 * (_children_cpu_s() - before_s)) + 3)
        if word != ALIVE:
            print(f"{target.name}: the {name} stage fails without a mutant: {text}", flush=True)
            return
    for number, mutant in enumerate(chosen):
        if mutant.key in results.rows:
            continue
        text, change = mutant.applied(source)
        outcomes: dict[str, Outcome] = {"unit": in_a_fork(target.name, text, stages["unit"], limits["unit"])}
        outcomes["sim"] = LEFT_OUT, ""
        word = outcomes["unit"][0]
        if word == ALIVE or (word == CAUGHT and number % options.every == 0):
            outcomes["sim"] = in_a_fork(target.name, text, stages["sim"], limits["sim"])
        results.add(mutant, change, outcomes)
        shutil.rmtree(options.folder / "tmp", ignore_errors=True)
        print(f"{outcomes['unit'][0]:8} {outcomes['sim'][0]:8} {mutant.key}: {change[:100]}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the mutants selected by the arguments."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--only", default="", help="modules whose name contains this")
    parser.add_argument(
        "--sample", type=int, default=0, help="number of mutants of each module, drawn by chance; 0: all"
    )
    parser.add_argument("--draw", type=int, default=1, help="seed of the draw")
    parser.add_argument("--every", type=int, default=1, help="simulate each n-th mutant that unit tests catch")
    parser.add_argument("--seeds", type=float, default=1.0, help="factor on the number of seeds of each scenario")
    parser.add_argument(
        "--limit",
        type=int,
        default=60,
        help="maximum CPU seconds of a stage; a mutant gets three times the time of its stage without a mutant",
    )
    parser.add_argument("--folder", type=Path, default=Path("/tmp/quire-mutants"), help="folder of results")
    parser.add_argument(
        "--report", action="store_true", help="only report the results in the folder, with the survivors"
    )
    options = parser.parse_args(arguments)
    if os.environ.get("PYTHONHASHSEED") != "0":
        print("run with PYTHONHASHSEED=0 (make mutants does): set order is part of a seed", file=sys.stderr)
        return 2
    options.folder.mkdir(parents=True, exist_ok=True)
    results = Results(options.folder)
    if not options.report:
        logging.basicConfig(level=logging.CRITICAL + 1)
        begun = time.monotonic()
        for target in TARGETS:
            if options.only in target.name:
                study(target, options, results)
        print(f"{time.monotonic() - begun:.0f} s")
    results.report(survivors=options.report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
