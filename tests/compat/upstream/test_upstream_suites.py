"""Runs upstream's unchanged client tests on our bookies: one case for each class of `suites.SUITES`.

CI runs the classes marked `core`; QUIRE_UPSTREAM=all runs all classes, QUIRE_UPSTREAM=Name,Name the named ones.
"""

import os
from pathlib import Path

import pytest

from tests.compat.upstream.runs import run_class
from tests.compat.upstream.suites import CLOSE_TIMER, SUITES, Suite

CLASS_TIMEOUT_S = 1700
pytestmark = [
    pytest.mark.compat,
    pytest.mark.slow,
    pytest.mark.timeout(2 * CLASS_TIMEOUT_S + 900),
    pytest.mark.xdist_group("upstream"),  # two JVMs would choose ports from the same range
]


def wanted(name: str, suite: Suite) -> bool:
    asked = os.environ.get("QUIRE_UPSTREAM", "")
    if asked in ("", "all"):
        return suite.core or asked == "all"
    return name.rpartition(".")[2] in asked.split(",")


@pytest.mark.parametrize("name", [name for name, suite in SUITES.items() if wanted(name, suite)])
def test_upstreams_class_passes(name: str, tmp_path: Path) -> None:
    suite = SUITES[name]
    for attempt in ("first", "second"):
        folder = tmp_path / attempt
        folder.mkdir()
        ended = run_class(name, frozenset(suite.excluded), folder, CLASS_TIMEOUT_S)
        failed = [each for each in ended if each.outcome != "passed"]
        if not failed or not all(each.method in suite.racing or CLOSE_TIMER in each.reason for each in failed):
            break
    not_passed = {each.test: each.reason for each in failed}
    assert not not_passed, "\n\n".join(f"{test}: {reason}" for test, reason in not_passed.items())
    assert ended
