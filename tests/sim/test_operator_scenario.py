"""The operator on simulated bookies: seeds of `operator_scenario`, with kills around its writes."""

import pytest

from tests.sim import operator_scenario
from tests.sim.loop import SimLoop, simulate
from tests.sim.plan import Plan


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [1])
def test_the_operator_loses_no_acknowledged_entry_and_removes_nothing_too_early(seed: int) -> None:
    async def scenario(loop: SimLoop) -> None:
        loop.plan = Plan()
        await operator_scenario.run(loop, seed)
        assert loop.failures == []

    simulate(scenario, seed=seed)
