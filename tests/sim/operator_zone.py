"""A pool loses a whole zone for a while, with something to do meanwhile, and gets it back with its volumes.

The same pool, controllers and production code as in `operator_scenario`. Checked is that the operator removes nothing
while the zone is away, that its bookies come back as themselves, and that every acknowledged entry is there in the end.
"""

import asyncio
from collections.abc import Callable

from quire_bookie.settings.recovery import RecoverySettings
from tests.sim.autorecovery_scenario import Cluster, fill, settle
from tests.sim.history import HistoryError
from tests.sim.ledger_scenario import read_all, recover
from tests.sim.loop import SimLoop
from tests.sim.operator_pool import NAME, Pool, host_of
from tests.sim.operator_scenario import PAUSE_S_MAX, until_quiet
from tests.sim.world import World

REPLICAS, ZONES = 6, 3
AWAY_S = 300.0
WISHES: dict[str, Callable[[Pool], None]] = {
    "nothing": lambda pool: None,
    "fewer": lambda pool: pool.change(replicas=REPLICAS - 1),
    "image": lambda pool: pool.change(image="q:2"),
}


async def lose_zone(loop: SimLoop, seed: int, wish: str) -> None:
    """Lose a zone. Raises HistoryError or AssertionError if a guarantee is violated."""
    world = World(loop, seed)
    settings = RecoverySettings(workers=2, lost_bookie_delay_s=20, open_ledger_grace_s=10.0, poll_s=10.0)
    cluster = Cluster(world, settings)
    pool = Pool.make(world, cluster, REPLICAS, zones=ZONES)
    pool.start()
    while len(world.bookies) < REPLICAS or not all(place.running for place in world.bookies.values()):  # noqa: ASYNC110  virtual
        await asyncio.sleep(1.0)
    for host in ("ar1", "ar2"):
        await cluster.start(host)
    await until_quiet(pool, "first")
    writing, reading = [await world.start_client(host) for host in ("writer", "reader")]
    histories, feeding = await fill(world, writing, 4, pause_s_max=PAUSE_S_MAX)
    rows = pool.status["bookies"]
    zone = world.chance.choice(sorted({row["zone"] for row in rows}))
    lost = {row["pod"]: row["id"] for row in rows if row["zone"] == zone}
    assert len(lost) == REPLICAS // ZONES, rows
    there = _objects(pool)
    for pod in lost:
        pool.held.add(host_of(pod))
        world.crash_bookie(host_of(pod), "random")
    await asyncio.sleep(world.chance.uniform(3.0, 30.0))  # the operator notices
    WISHES[wish](pool)
    end_s = loop.time() + AWAY_S
    while loop.time() < end_s:  # virtual time
        await asyncio.sleep(1.0)
        pool.check()
        if _objects(pool) != there:
            raise HistoryError(f"pods or claims were removed while {zone} was away: {pool.status}")
    reasons = {one["type"]: one["reason"] for one in pool.status["conditions"]}
    assert reasons["Degraded"] in ("ZoneLost", "LedgersUnreadable"), reasons
    pool.held.clear()
    await asyncio.gather(*feeding)
    for ledger, history in histories.items():
        await recover(world, reading, ledger, history, "reader")
    await until_quiet(pool, f"{zone} is back, {wish}")
    after = {row["pod"]: row["id"] for row in pool.status["bookies"]}
    changed = {pod: one for pod, one in lost.items() if after.get(pod, one) != one}
    assert not changed, f"{changed} of {zone} came back as {after}"
    await settle(world, histories)
    for ledger, history in histories.items():
        reader = await world.on(reading, reading.ledgers.open_ledger(ledger, recover=False))
        await world.on(reading, read_all(reader, history, "after"))
        history.check()
    pool.stop()


def _objects(pool: Pool) -> set[str]:
    """Return the uids of the pods and claims of the pool, and of those that are being deleted with a mark."""
    found = [*pool.kube.of_kind("pods"), *pool.kube.of_kind("persistentvolumeclaims")]
    return {
        f"{one['metadata']['uid']} {one['metadata'].get('deletionTimestamp', '')}"
        for _, one in found
        if f"{NAME}-bookie-" in one["metadata"]["name"]
    }
