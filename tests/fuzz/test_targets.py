"""Hostile examples, the same in each run, for each target of `tests.fuzz`: by default a quarter, as slow tests all.

`make fuzz` draws others.
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from tests.fuzz.targets import TARGETS, Target
from tests.fuzz.watch import watched
from tests.support.sampling import one_in

EXAMPLES = {"broker http": 150, "pulsar": 150, "guarded": 150, "bookie http": 250, "bookkeeper": 250}


@one_in(4)
@pytest.mark.parametrize("kind", TARGETS, ids=lambda kind: kind.name)
def test_hostile_input_breaks_nothing(kind: type[Target], every: int, tmp_path: Path) -> None:
    with asyncio.Runner() as runner, watched(runner.get_loop()) as findings:
        target = kind(tmp_path, findings)
        runner.run(target.start())

        @settings(
            max_examples=EXAMPLES[kind.name] // every,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(target.strategy)
        def run_example(example: Any) -> None:
            runner.run(target.send(example))

        try:
            run_example()
            runner.run(target.check_all())
        finally:
            runner.run(target.stop())
        findings.check()
