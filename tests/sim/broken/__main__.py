"""`make sim-broken`: each broken variant must pass without faults and be caught with them; prints the seeds needed."""

import argparse
import logging
import os
import sys
import time
from functools import partial

from tests.sim.__main__ import run_seed
from tests.sim.broken import LONG_VARIANTS, VARIANTS
from tests.sim.broken.variant import Variant
from tests.sim.plan import Plan
from tests.sim.shrink import Shrinker
from tests.sim.side_by_side import side_by_side

CALM_SEEDS = 2


def failure_of(variant: Variant, seed: int, *, calm: bool = False) -> str:
    """Return the simulator's error for a variant; empty if it passes."""
    with variant.applied():
        try:
            run_seed(variant.scenario, seed, Plan(calm=calm))
        except Exception as error:  # noqa: BLE001  any failure of the run
            return f"{type(error).__name__}: {error}"
    return ""


def needed_seeds(variant: Variant, first: int, count: int) -> tuple[int, str]:
    """Return how many seeds from `first` on it takes to catch a variant, and the error; 0 if `count` do not."""
    for number in range(count):
        text = failure_of(variant, first + number)
        if text:
            return number + 1, text
    return 0, ""


def check_variant(variant: Variant, first: int, count: int, *, known: bool) -> tuple[bool, str]:
    """Return whether the simulator catches a variant and passes it without faults, and a line for the report."""
    begun = time.monotonic()
    for seed in range(CALM_SEEDS):
        if text := failure_of(variant, seed, calm=True):
            return False, f"FAILED  {variant.name}: does not pass without faults, seed {seed}: {text}"
    needed, text = needed_seeds(variant, variant.seed, 1) if known and variant.seed is not None else (0, "")
    if not needed:
        needed, text = needed_seeds(variant, first, count)
    took = f"{time.monotonic() - begun:.0f} s"
    if not needed:
        return False, f"FAILED  {variant.name}: {count} seeds of {variant.scenario!r} do not notice it ({took})"
    return True, f"caught  {variant.name}: {needed} seeds of {variant.scenario!r} ({took}): {text[:160]}"


def main() -> int:
    """Run the requested variants."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim.broken", description=__doc__)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=200, help="maximum number of seeds per variant")
    parser.add_argument("--known", action="store_true", help="begin with the seed known to catch the variant")
    parser.add_argument("--only", help="run only variants whose name contains this")
    parser.add_argument("--long", action="store_true", help="include variants of which one seed takes tens of seconds")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="variants that run in parallel")
    parser.add_argument("--shrink", type=int, metavar="SEED", help="with --only: shorten the failing run of this seed")
    options = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":
        print("run with PYTHONHASHSEED=0 (make sim-broken does): set order is part of the seed", file=sys.stderr)
        return 2
    logging.basicConfig(level=logging.CRITICAL + 1)
    among = VARIANTS if options.only is None and not options.long else (*VARIANTS, *LONG_VARIANTS)
    chosen = [variant for variant in among if options.only is None or options.only in variant.name]
    if options.shrink is not None:
        for variant in chosen:
            with variant.applied():
                shrinker = Shrinker(partial(run_seed, variant.scenario, options.shrink), 200)
                print(shrinker.report() if shrinker.shrink() else f"{variant.name}: not caught by {options.shrink}")
        return 0
    checking = partial(check_variant, first=options.first, count=options.seeds, known=options.known)
    caught = 0
    for variant, ended in side_by_side(checking, chosen, options.jobs):
        good, line = ended.result or (False, f"FAILED  {variant.name}: {ended.trouble}")
        caught += good
        print(line, flush=True)
    print(f"{caught} of {len(chosen)} broken variants caught")
    return 0 if caught == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
