"""The model of one ledger (model/Ledger.tla): its smallest configuration holds, and breaks if a rule is removed.

`make model` performs all runs of model/runs.txt.
"""

import re
import subprocess
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
NO_JAVA = 3
"""Exit code of the script without a Java to run TLC."""


def check(*names: str) -> subprocess.CompletedProcess[str]:
    """Perform these runs of the table; skips the test without Java."""
    ended = subprocess.run(
        [ROOT / "scripts/model/check.sh", *names], capture_output=True, text=True, check=False, cwd=ROOT
    )
    if ended.returncode == NO_JAVA:
        pytest.skip(ended.stderr.strip())
    return ended


def test_the_protocol_holds_in_every_state_of_the_smallest_configuration() -> None:
    ended = check("tiny")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    states = re.search(r"^tiny +holds +(\d+) states", ended.stdout, re.MULTILINE)
    assert states is not None, ended.stdout
    assert int(states[1]) > 1000, "TLC visited fewer states than the protocol has: a step never occurs"


@pytest.mark.parametrize(
    ("rule", "invariant"), [("one ack fewer", "AckedIsKept"), ("recovery without fencing", "EndCoversAcked")]
)
def test_a_protocol_without_one_of_its_rules_breaks_an_invariant(rule: str, invariant: str) -> None:
    ended = check(rule)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert re.search(rf'^"{rule}" +{invariant} ', ended.stdout, re.MULTILINE), ended.stdout


def test_an_unknown_name_of_a_run_is_refused() -> None:
    ended = check("no such run")
    assert ended.returncode == 2
    assert "no such run" in ended.stderr


def test_the_model_knows_every_rule_of_the_table() -> None:
    model = (ROOT / "model/Ledger.tla").read_text()
    asked = {
        line.split(maxsplit=11)[11]
        for line in (ROOT / "model/runs.txt").read_text().splitlines()
        if line and not line.startswith("#")
    }
    known = set(re.findall(r'Is\("([^"]+)"\)', model))
    assert asked - {"none"} == known
