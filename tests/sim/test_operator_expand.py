"""A pool gets larger or more volumes while the operator is killed around each of its writes."""

import pytest

from tests.sim.loop import SimLoop, simulate
from tests.sim.operator_expand import CHANGES, expand

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize("name", CHANGES)
def test_an_operator_killed_during_an_expansion_reaches_the_same_final_state(name: str) -> None:
    def count_writes(kill: tuple[int, bool] | None) -> int:
        async def scenario(loop: SimLoop) -> int:
            return await expand(loop, 1, CHANGES[name], kill)

        return simulate(scenario, seed=1)

    for write in range(1, count_writes(None) + 1):
        # For larger volumes kill on both sides of each write; for more volumes, whose roll is long, alternate the side.
        for before in (True, False) if name == "larger" else (bool(write % 2),):
            try:
                count_writes((write, before))
            except Exception as error:
                raise AssertionError(f"killed {'before' if before else 'after'} write {write}") from error
