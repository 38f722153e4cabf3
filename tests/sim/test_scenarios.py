"""One seed of every scenario in the default suite, most of them twice; CI runs 10, and `make sim SEEDS=200` many."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from tests.sim.__main__ import SCENARIOS

ROOT = Path(__file__).resolve().parents[2]
SEED = 0
pytestmark = pytest.mark.timeout(1200)
"""Runs take minutes only if the whole suite runs at the same time."""
EACH_IN_ONE_PROCESS = [pytest.param(name, marks=pytest.mark.xdist_group(f"sim {name}")) for name in sorted(SCENARIOS)]
"""One process of the test run per scenario, so that the runs of the first test are reused by the second."""
LONG = {"autorecovery", "bookie", "brokers", "damage", "stalled"}
"""Scenarios that take seconds: by default they run once."""
REPLAYED = [
    pytest.param(*each.values, marks=[*each.marks, *([pytest.mark.slow] if each.values[0] in LONG else [])])
    for each in EACH_IN_ONE_PROCESS
]
PROGRAM = """
import gc, os, sys
from tests.sim.__main__ import run_seed
gc.collect()
gc.freeze()  # the children's collections skip the objects that exist now
for line in sys.stdin:
    scenario, _, seed = line.rstrip().rpartition(" ")
    if (child := os.fork()) == 0:  # a fork per seed, so that each starts from the same state
        print(run_seed(scenario, int(seed)), flush=True)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        print("failed", flush=True)
"""


class Simulator:
    """A process that has imported all scenarios and runs a seed on request; it remembers the digest of each."""

    def __init__(self, errors: IO[bytes]) -> None:
        self._errors = errors
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            cwd=ROOT,
            env=os.environ | {"PYTHONHASHSEED": "0"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self._digests: dict[tuple[str, int], str] = {}

    def run(self, scenario: str, seed: int) -> str:
        """Return the digest of a run."""
        if (scenario, seed) not in self._digests:
            assert self._process.stdin is not None and self._process.stdout is not None
            self._errors.truncate(0)
            print(scenario, seed, file=self._process.stdin, flush=True)
            digest = self._process.stdout.readline().strip()
            if digest in ("", "failed"):
                self._errors.seek(0)
                pytest.fail(f"{scenario} seed {seed}\n{self._errors.read().decode()[-4000:]}")
            self._digests[scenario, seed] = digest
        return self._digests[scenario, seed]

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()


@pytest.fixture(scope="module")
def simulators() -> Iterator[tuple[Simulator, Simulator]]:
    """Two processes: a run that depends on the addresses of objects differs between them."""
    with tempfile.TemporaryFile() as errors, tempfile.TemporaryFile() as others:
        both = Simulator(errors), Simulator(others)
        yield both
        for each in both:
            each.close()


@pytest.mark.parametrize("scenario", EACH_IN_ONE_PROCESS)
def test_a_cluster_keeps_its_promises_through_crashes_and_partitions(
    scenario: str, simulators: tuple[Simulator, Simulator]
) -> None:
    first, _ = simulators
    assert first.run(scenario, SEED)


@pytest.mark.parametrize("scenario", REPLAYED)
def test_a_seed_replays_the_same_run(scenario: str, simulators: tuple[Simulator, Simulator]) -> None:
    first, second = simulators
    assert first.run(scenario, SEED) == second.run(scenario, SEED)


def test_seeds_of_a_scenario_differ(simulators: tuple[Simulator, Simulator]) -> None:
    first, _ = simulators
    assert len({first.run("ids", seed) for seed in range(3)}) == 3
