"""One change of a pool's volumes, with the operator killed once around a chosen write of it.

The same pool, controllers and production code as in `operator_scenario`, without clients. Checked is only whether an
operator that starts during the change reaches the same final state, whatever its predecessor had done.
"""

import asyncio
from dataclasses import dataclass

from quire_bookie.settings.recovery import RecoverySettings
from tests.sim.autorecovery_scenario import Cluster
from tests.sim.history import HistoryError
from tests.sim.loop import SimLoop
from tests.sim.operator_pool import NAME, Pool
from tests.sim.operator_scenario import until_quiet
from tests.sim.world import World

REPLICAS = 3


@dataclass(frozen=True, slots=True)
class Change:
    """A requested change of the ledger volumes, and whether it may restart pods."""

    size_gib: int
    volumes: int
    restarts: bool


CHANGES = {
    "larger": Change(200, 1, restarts=False),
    "more": Change(100, 2, restarts=True),
}


async def expand(loop: SimLoop, seed: int, change: Change, kill: tuple[int, bool] | None) -> int:
    """Perform a change and return its number of writes. `kill`: the write at which to kill, and whether before it.

    Raises HistoryError or AssertionError if a guarantee is violated.
    """
    world = World(loop, seed)
    settings = RecoverySettings(workers=1, lost_bookie_delay_s=20, poll_s=10.0)
    cluster = Cluster(world, settings)
    pool = Pool.make(world, cluster, REPLICAS, zones=1)
    pool.operators.kills_max = 1
    pool.start()
    while len(world.bookies) < REPLICAS or not all(place.running for place in world.bookies.values()):  # noqa: ASYNC110  virtual
        await asyncio.sleep(1.0)
    for host in ("ar1", "ar2"):
        await cluster.start(host)
    await until_quiet(pool, "first")
    pods, writes = _pods(pool), pool.kube.writes
    if kill is not None:
        pool.kube.kill_at, pool.kube.kill_before = writes + kill[0], kill[1]
    pool.change_storage(size_gib=change.size_gib, volumes=change.volumes)
    await until_quiet(pool, "volumes")
    pool.check_volumes()
    if change.restarts == (_pods(pool) == pods):
        raise HistoryError(f"pods were {sorted(pods)}, they are {sorted(_pods(pool))}")
    assert pool.operators.kills == (kill is not None), "the operator was not killed"
    pool.stop()
    return pool.kube.writes - writes


def _pods(pool: Pool) -> set[str]:
    found = [one["metadata"] for _, one in pool.kube.of_kind("pods")]
    return {one["uid"] for one in found if one["name"].startswith(f"{NAME}-bookie-")}
