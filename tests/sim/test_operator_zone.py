"""A pool that loses a whole zone keeps its pods and volumes, also while it is asked to remove some."""

import pytest

from tests.sim.loop import SimLoop, simulate
from tests.sim.operator_zone import WISHES, lose_zone

pytestmark = [pytest.mark.timeout(300)]


@pytest.mark.parametrize("wish", WISHES)
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3))])
def test_nothing_is_removed_while_a_zone_is_away(wish: str, seed: int) -> None:
    async def scenario(loop: SimLoop) -> None:
        await lose_zone(loop, seed, wish)

    simulate(scenario, seed=seed)
