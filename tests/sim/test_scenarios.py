"""A few seeds of every scenario in the default suite; `make sim SEEDS=200` runs many."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim.__main__ import SCENARIOS

ROOT = Path(__file__).resolve().parents[2]


def simulate(*arguments: str) -> str:
    """Run the simulator as `make sim` does and return what it printed."""
    environment = os.environ | {"PYTHONHASHSEED": "0"}
    answer = subprocess.run(
        [sys.executable, "-m", "tests.sim", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr[-4000:]
    return answer.stdout


@pytest.mark.parametrize("scenario", sorted(SCENARIOS))
def test_a_cluster_keeps_its_promises_through_crashes_and_partitions(scenario: str) -> None:
    assert "4 passed, 0 failed" in simulate("--scenario", scenario, "--seeds", "4")


@pytest.mark.parametrize("scenario", sorted(SCENARIOS))
def test_a_seed_replays_the_same_run(scenario: str) -> None:
    first = simulate("--scenario", scenario, "--seed", "3").splitlines()[0]
    assert first == simulate("--scenario", scenario, "--seed", "3").splitlines()[0]
    assert first != simulate("--scenario", scenario, "--seed", "4").splitlines()[0].replace("seed 4", "seed 3")


def test_a_closed_cursor_does_not_call_saved_what_nobody_saved() -> None:
    simulate("--scenario", "topic", "--seed", "38")  # acknowledged after the close, then flushed "successfully"


def test_a_new_cursor_loses_nothing_to_a_trimming_that_runs_while_it_is_stored() -> None:
    simulate("--scenario", "topic", "--seed", "1")
