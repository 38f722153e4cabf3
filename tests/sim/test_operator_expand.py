"""A pool whose volumes grow, or get more, under an operator that is killed around each of its writes."""

import pytest

from tests.sim.loop import SimLoop, simulate
from tests.sim.operator_expand import CHANGES, expand

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize("name", CHANGES)
def test_an_operator_that_is_killed_amid_an_expansion_goes_on_to_the_same_end(name: str) -> None:
    def told(kill: tuple[int, bool] | None) -> int:
        async def scenario(loop: SimLoop) -> int:
            return await expand(loop, 1, CHANGES[name], kill)

        return simulate(scenario, seed=1)

    for write in range(1, told(None) + 1):
        # Of larger volumes both sides of each write; of more of them, whose roll is long, the sides in turns.
        for before in (True, False) if name == "larger" else (bool(write % 2),):
            try:
                told((write, before))
            except Exception as error:
                raise AssertionError(f"killed {'before' if before else 'after'} write {write}") from error
