"""The model of one ledger (model/Ledger.tla): it holds at its smallest, and breaks where a rule is left out.

`make model` goes through all runs of model/runs.txt.
"""

import re
import subprocess
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
NO_JAVA = 3
"""Exit code of the script where there is nothing to run TLC with."""


def check(*names: str) -> subprocess.CompletedProcess[str]:
    """Run those lines of the table; skips the test where there is no Java."""
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
    assert int(states[1]) > 1000, "TLC went through fewer states than the protocol has: a step never happens"


@pytest.mark.parametrize(
    ("rule", "invariant"), [("one ack fewer", "AckedIsKept"), ("recovery without fencing", "EndCoversAcked")]
)
def test_a_protocol_without_one_of_its_rules_breaks_an_invariant(rule: str, invariant: str) -> None:
    ended = check(rule)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert re.search(rf'^"{rule}" +{invariant} ', ended.stdout, re.MULTILINE), ended.stdout


def test_a_name_that_the_table_does_not_have_is_refused() -> None:
    ended = check("no such run")
    assert ended.returncode == 2
    assert "no such run" in ended.stderr


def test_every_rule_of_the_table_is_one_that_the_model_knows() -> None:
    model = (ROOT / "model/Ledger.tla").read_text()
    asked = {
        line.split(maxsplit=11)[11]
        for line in (ROOT / "model/runs.txt").read_text().splitlines()
        if line and not line.startswith("#")
    }
    known = set(re.findall(r'Is\("([^"]+)"\)', model))
    assert asked - {"none"} == known
