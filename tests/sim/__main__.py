"""`make sim SEEDS=n`: runs seeds of every scenario; for a failing seed it prints the command that repeats it."""

import argparse
import hashlib
import logging
import os
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any

from tests.sim import (
    autorecovery_scenario,
    bookie_scenario,
    brokers_scenario,
    churn_scenario,
    collection_scenario,
    compaction_scenario,
    damage_scenario,
    delayed_scenario,
    drain_scenario,
    ensemble_scenario,
    fault_scenario,
    file_scenario,
    filled_scenario,
    forwarding_scenario,
    gap_scenario,
    ids_scenario,
    key_shared_scenario,
    ledger_scenario,
    metadata_files_scenario,
    modes_scenario,
    narrow_scenario,
    operator_scenario,
    ownership_scenario,
    reads_scenario,
    resting_scenario,
    restore_scenario,
    shadow_scenario,
    silence_scenario,
    stalled_scenario,
    topic_scenario,
    unanswered_scenario,
    unused_scenario,
)
from tests.sim.loop import SimLoop, simulate
from tests.sim.plan import Plan
from tests.sim.shrink import Shrinker
from tests.sim.side_by_side import side_by_side

SCENARIOS: dict[str, Callable[[SimLoop, int], Coroutine[Any, Any, Any]]] = {
    "autorecovery": autorecovery_scenario.run,
    "bookie": bookie_scenario.run,
    "brokers": brokers_scenario.run,
    "churn": churn_scenario.run,
    "collection": collection_scenario.run,
    "compaction": compaction_scenario.run,
    "damage": damage_scenario.run,
    "delayed": delayed_scenario.run,
    "duel": ensemble_scenario.run_bare,
    "drain": drain_scenario.run,
    "ensemble": ensemble_scenario.run,
    "faults": fault_scenario.run,
    "files": file_scenario.run,
    "filled": filled_scenario.run,
    "forwarding": forwarding_scenario.run,
    "full": churn_scenario.run_on_full_disks,
    "gaps": gap_scenario.run,
    "ids": ids_scenario.run,
    "keys": key_shared_scenario.run,
    "ledger": ledger_scenario.run,
    "metadata files": metadata_files_scenario.run,
    "modes": modes_scenario.run,
    "narrow": narrow_scenario.run,
    "ownership": ownership_scenario.run,
    "handover": ownership_scenario.run_with_handovers,
    "reads": reads_scenario.run,
    "resting": resting_scenario.run,
    "restore": restore_scenario.run,
    "shadow": shadow_scenario.run,
    "silence": silence_scenario.run,
    "stalled": stalled_scenario.run,
    "topic": topic_scenario.run,
    "unanswered": unanswered_scenario.run,
    "unused": unused_scenario.run,
}


PROGRESS_SEEDS = 50
"""Seeds of each scenario between two lines of progress."""
LONG: dict[str, Callable[[SimLoop, int], Coroutine[Any, Any, Any]]] = {
    "operator": operator_scenario.run,
    "operator expands": operator_scenario.run_expands,
    "operator drains": operator_scenario.run_drains,
    "operator rolls": operator_scenario.run_rolls,
}
"""Scenarios of which one seed takes tens of seconds: run only when named."""


def run_seed(name: str, seed: int, plan: Plan | None = None, *, digest: bool = True) -> str:
    """Run one seed and raise its first error, including failures of background tasks.

    Returns a digest of the history, or "" without `digest`: formatting the history takes a fifth of some runs.
    """

    async def scenario(loop: SimLoop) -> str:
        loop.plan = plan or Plan()
        history = await (SCENARIOS | LONG)[name](loop, seed)
        if loop.failures:
            raise AssertionError(f"{len(loop.failures)} unhandled errors, first: {loop.failures[0]}")
        if not digest:
            return ""
        happened = f"{loop.time()} {loop.network.chance.getstate()} {history}"
        return hashlib.sha256(happened.encode()).hexdigest()[:16]

    return simulate(scenario, seed=seed, time_limit_s=7200.0)


def shrink(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Print the shortest plan found with which a seed still fails."""
    if options.seed is None or len(options.scenario or ()) != 1:
        parser.error("--shrink needs --seed and one --scenario")
    logging.basicConfig(level=logging.CRITICAL + 1)
    (name,) = options.scenario
    shrinker = Shrinker(lambda plan: run_seed(name, options.seed, plan), options.runs)
    if not shrinker.shrink():
        print(f"{name} seed {options.seed} does not fail")
        return 0
    print(shrinker.report())
    return 1


def main() -> int:
    """Run the requested seeds and report the results."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="number of seeds, starting at --first")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, help="run only this seed, with its log")
    parser.add_argument("--scenario", choices=sorted(SCENARIOS | LONG), action="append")
    parser.add_argument("--shrink", action="store_true", help="with --seed and one --scenario: shorten the failing run")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="seeds that run in parallel")
    parser.add_argument("--runs", type=int, default=300, help="maximum number of runs of --shrink")
    options = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":
        print("run with PYTHONHASHSEED=0 (make sim does): set order is part of the seed", file=sys.stderr)
        return 2
    if options.shrink:
        return shrink(parser, options)
    seeds = range(options.first, options.first + options.seeds) if options.seed is None else [options.seed]
    logging.basicConfig(level=logging.DEBUG if options.seed is not None else logging.CRITICAL + 1, stream=sys.stderr)
    begun, passed, failed = time.monotonic(), 0, 0
    names = options.scenario or sorted(SCENARIOS)
    # Seed by seed, so that an interrupted run has tried equally many seeds of each scenario.
    tasks = [(name, seed) for seed in seeds for name in names]
    alone = options.seed is not None
    for (name, seed), ended in side_by_side(lambda task: run_seed(*task, digest=alone), tasks, options.jobs):
        if ended.trouble:
            failed += 1
            print(ended.trouble, file=sys.stderr)
            print(f"repeat with: make sim ARGS='--scenario {name} --seed {seed}'", flush=True)
        else:
            passed += 1
            if alone:
                print(f"{name} seed {seed}: {ended.result}")
        if (passed + failed) % (PROGRESS_SEEDS * len(names)) == 0:
            print(f"{(passed + failed) // len(names)} seeds of each, {time.monotonic() - begun:.0f} s", flush=True)
    print(f"simulated in {time.monotonic() - begun:.0f} s")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
