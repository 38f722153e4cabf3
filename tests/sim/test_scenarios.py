"""A few seeds of every scenario in the default suite; CI runs more, and `make sim SEEDS=200` many."""

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim.__main__ import SCENARIOS

ROOT = Path(__file__).resolve().parents[2]
SEEDS = (0, 1, 2)
TIMEOUT_S = 600
"""Runs take minutes only if the whole suite runs at the same time."""
pytestmark = pytest.mark.timeout(2 * TIMEOUT_S)
EACH_IN_ONE_PROCESS = [pytest.param(name, marks=pytest.mark.xdist_group(f"sim {name}")) for name in sorted(SCENARIOS)]
"""One process of the test run per scenario, so that results cached by `simulate` are reused."""
PROGRAM = """
import os, sys
from tests.sim.__main__ import run_seed
for seed in sys.argv[2:]:
    print(f"seed {seed}:", end=" ", flush=True)  # the last line if the seed fails
    if (child := os.fork()) == 0:  # a fork per seed, so that each starts from the same state
        print(run_seed(sys.argv[1], int(seed)), flush=True)
        sys.exit(0)
    if os.waitpid(child, 0)[1]:
        sys.exit(1)
"""


@functools.cache
def simulate(scenario: str, *seeds: int) -> list[str]:
    """Run each seed in a separate process, one after the other. Returns a line with the digest of each."""
    answer = subprocess.run(
        [sys.executable, "-c", PROGRAM, scenario, *map(str, seeds)],
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert answer.returncode == 0, f"{scenario}\n{answer.stdout}\n{answer.stderr[-4000:]}"
    return answer.stdout.splitlines()


@pytest.mark.parametrize("scenario", EACH_IN_ONE_PROCESS)
def test_a_cluster_keeps_its_promises_through_crashes_and_partitions(scenario: str) -> None:
    assert len({line.partition(": ")[2] for line in simulate(scenario, *SEEDS)}) == len(SEEDS), "two seeds ran alike"


@pytest.mark.parametrize("scenario", EACH_IN_ONE_PROCESS)
def test_a_seed_replays_the_same_run(scenario: str) -> None:
    assert simulate(scenario, SEEDS[-1]) == simulate(scenario, *SEEDS)[-1:]
