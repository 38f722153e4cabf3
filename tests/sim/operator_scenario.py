"""The operator's plans on simulated production bookies and auditors: scaled, drained, rolled, and nodes lost.

The operator is killed around any of its writes, and meets conflicts; Kubernetes is simulated. Clients write and read
all the while. No pod and no claim goes while a ledger names its bookie, unless the bookie was lost before; in the end
every acknowledged entry is there, every replica whole, and nobody knows the bookies any more that left.
"""

import asyncio

from quire_bookie.metadata.cookies import Cookies
from quire_bookie.metadata.rack_map import RACK_MAP, decode_rack_map
from quire_bookie.model import LedgerId
from quire_bookie.recovery.settings import RecoverySettings
from quire_operator.builders.naming import REPLACE_ANNOTATION
from tests.sim.autorecovery_scenario import Cluster, fill, settle
from tests.sim.history import LedgerHistory
from tests.sim.ledger_scenario import read_all, recover
from tests.sim.loop import SimLoop
from tests.sim.metadata import SimMetadataStore
from tests.sim.operator_pool import NAME, POOL, Pool, host_of
from tests.sim.world import World

PATIENCE_S = 3000.0
WISHES = ("more", "fewer", "roll", "lost", "lost at once", "replace a living one", "crash")


async def until_quiet(pool: Pool, what: str) -> None:
    """Until what was asked for is done, and stays so for a while: what was just lost shows later."""
    loop = pool.world.loop
    end, quiet_since = loop.time() + PATIENCE_S, loop.time()
    while loop.time() - quiet_since < 30.0:  # virtual time
        assert loop.time() < end, f"{what}: {pool.status}"
        await asyncio.sleep(1.0)
        pool.check()
        if not pool.is_quiet():
            quiet_since = loop.time()


def wish(pool: Pool, what: str) -> None:
    """What a person asks for, or what happens."""
    world, replicas = pool.world, pool.kube.objects[POOL]["spec"]["replicas"]
    pod = f"{NAME}-bookie-{world.chance.randrange(replicas)}"
    world.loop.note(f"{what}: {pod}")
    if what == "more":
        pool.change(replicas=replicas + 1)
    elif what == "fewer":
        pool.change(replicas=max(4, replicas - 1))
    elif what == "roll":
        pool.change(image=f"quire:{world.chance.randrange(1000)}")
    elif what == "lost":
        pool.lose_node(pod)
    elif what == "lost at once":
        pool.lose_node(pod)
        world.loop.call_later(10.0, pool.ask_when_there, pod, REPLACE_ANNOTATION)
    elif what == "replace a living one":
        pool.annotate(pod, REPLACE_ANNOTATION)
    else:
        world.crash_bookie(host_of(pod), "random")


async def run(loop: SimLoop, seed: int) -> dict[LedgerId, LedgerHistory]:
    """One seed. Raises HistoryError or AssertionError when a promise is broken."""
    world = World(loop, seed)
    settings = RecoverySettings(
        workers=world.chance.choice((1, 2)),
        lost_bookie_delay_s=20,
        rate_bytes_s=world.chance.choice((0, 1 << 16)),
        check_interval_s=60.0,
        open_ledger_grace_s=10.0,
        retry_s=(3.0, 30.0),
        poll_s=10.0,
    )
    cluster = Cluster(world, settings)
    pool = Pool.make(world, cluster, world.chance.choice((4, 5)), zones=world.chance.choice((1, 2, 3)))
    if not loop.plan.calm:
        pool.kube.conflict_chance = 0.1
        pool.kube.kill_at = world.chance.randrange(1, 40)
    pool.start()
    while not world.bookies or not all(place.running for place in world.bookies.values()):  # noqa: ASYNC110  virtual
        await asyncio.sleep(1.0)
    for host in ("ar1", "ar2"):
        await cluster.start(host)
    await until_quiet(pool, "first")
    writing, reading = [await world.start_client(host) for host in ("writer", "reader")]
    everything: dict[LedgerId, LedgerHistory] = {}
    for what in world.chance.sample(WISHES, 3):
        ledgers, feeding = await fill(world, writing, world.chance.randrange(3, 6))
        everything |= ledgers
        await asyncio.sleep(world.chance.uniform(0.0, 6.0))
        wish(pool, what)
        await asyncio.gather(*feeding)
        for ledger, history in ledgers.items():
            await recover(world, reading, ledger, history, "reader")
        await until_quiet(pool, what)
    await settle(world, everything)
    for ledger, history in everything.items():
        reader = await world.on(reading, reading.ledgers.open_ledger(ledger, recover=False))
        await world.on(reading, read_all(reader, history, "after"))
        history.check()
    there = {place.running.bookie_id for place in world.bookies.values() if place.running is not None}
    known = set(await Cookies(SimMetadataStore(world.metadata)).bookies())
    assert known == there, f"known are {sorted(known)}, there are {sorted(there)}"
    places = decode_rack_map(world.metadata.nodes[RACK_MAP].value)
    assert set(places) == there, f"places of {sorted(places)}, there are {sorted(there)}"
    pool.stop()
    return everything
