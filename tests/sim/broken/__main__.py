"""`make sim-broken`: each broken variant must pass without faults and be caught under them; prints the seeds needed."""

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


def objection(variant: Variant, seed: int, *, calm: bool = False) -> str:
    """What the simulator says to the variant; empty when it lets it pass."""
    with variant.applied():
        try:
            run_seed(variant.scenario, seed, Plan(calm=calm))
        except Exception as error:  # noqa: BLE001  whatever it is that the run objects with
            return f"{type(error).__name__}: {error}"
    return ""


def needed_seeds(variant: Variant, first: int, count: int) -> tuple[int, str]:
    """How many seeds from `first` on it takes to catch it, and what is said then; 0 when `count` do not."""
    for number in range(count):
        text = objection(variant, first + number)
        if text:
            return number + 1, text
    return 0, ""


def judge(variant: Variant, first: int, count: int, *, known: bool) -> tuple[bool, str]:
    """Whether the simulator is good enough for one variant, and a line about it."""
    begun = time.monotonic()
    for seed in range(CALM_SEEDS):
        if text := objection(variant, seed, calm=True):
            return False, f"FAILED  {variant.name}: does not pass without faults, seed {seed}: {text}"
    needed, text = needed_seeds(variant, variant.seed, 1) if known and variant.seed is not None else (0, "")
    if not needed:
        needed, text = needed_seeds(variant, first, count)
    took = f"{time.monotonic() - begun:.0f} s"
    if not needed:
        return False, f"FAILED  {variant.name}: {count} seeds of {variant.scenario!r} do not notice it ({took})"
    return True, f"caught  {variant.name}: {needed} seeds of {variant.scenario!r} ({took}): {text[:160]}"


def main() -> int:
    """Run the variants asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim.broken", description=__doc__)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=200, help="how many to try with each variant at most")
    parser.add_argument("--known", action="store_true", help="try the seed first that is known to catch it")
    parser.add_argument("--only", help="variants whose name contains this")
    parser.add_argument("--long", action="store_true", help="those too of which a seed takes tens of seconds")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="so many variants at a time")
    parser.add_argument("--shrink", type=int, metavar="SEED", help="with --only: how this seed catches it, made short")
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
    look = partial(judge, first=options.first, count=options.seeds, known=options.known)
    caught = 0
    for variant, ended in side_by_side(look, chosen, options.jobs):
        good, line = ended.result or (False, f"FAILED  {variant.name}: {ended.trouble}")
        caught += good
        print(line, flush=True)
    print(f"{caught} of {len(chosen)} broken variants caught")
    return 0 if caught == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
