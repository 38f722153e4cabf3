"""The operator's plans on simulated production bookies and auditors: scaled, drained, rolled, nodes lost, deleted.

Two processes of the operator wait for one lease; they are killed around any write, stand still, and meet conflicts and
a metadata store that is away; what people ask for meets what is under way. Kubernetes is simulated. Clients write and
read all the while. What must never happen is in `operator_checks`; in the end every acknowledged entry is there, every
replica whole, and nobody knows the bookies any more that left. Without faults there are plain requests, one by one.
"""

import asyncio
import contextlib

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
from tests.sim.operator_pool import ENSEMBLE, NAME, POOL, Pool, host_of
from tests.sim.world import World

PATIENCE_S = 3000.0
PLAIN = ("more", "fewer", "roll")
HARMFUL = ("lost", "lost at once", "replace a living one")
"""Of these one at a time: an acknowledgement needs two bookies."""
SECOND = (*PLAIN, "crash", "call off", "pause", "too few", "metadata away", "stand still", "stand still", "delete")
FEWEST = 4


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


async def wish(pool: Pool, what: str) -> None:
    """What a person asks for, or what happens."""
    world, replicas = pool.world, pool.kube.objects[POOL]["spec"]["replicas"]
    pod = f"{NAME}-bookie-{world.chance.randrange(replicas)}"
    world.loop.note(f"{what}: {pod}")
    if what == "more":
        pool.change(replicas=replicas + 1)
    elif what == "fewer":
        pool.change(replicas=max(FEWEST, replicas - 1))
    elif what == "roll":
        pool.change(image=f"quire:{world.chance.randrange(1000)}")
    elif what.startswith("lost"):
        pool.lose_node(pod)
        if what == "lost at once":
            world.loop.call_later(10.0, pool.ask_when_there, pod, REPLACE_ANNOTATION)
    elif what == "replace a living one":
        pool.annotate(pod, REPLACE_ANNOTATION)
    elif what == "crash":
        world.crash_bookie(host_of(pod), "random")
    else:
        await trouble(pool, what, replicas)


async def trouble(pool: Pool, what: str, replicas: int) -> None:
    """What goes on for a while, and is over when this returns."""
    world, seconds = pool.world, pool.world.chance.uniform(5.0, 60.0)
    for _ in range(world.chance.randrange(4)):  # in the midst of an operation: right behind one of its steps
        pool.promises.step.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(pool.promises.step.wait(), 60.0)
    if what == "call off":
        pool.change(replicas=max(FEWEST, replicas - 1))
        await asyncio.sleep(seconds)
        pool.change(replicas=replicas)
    elif what == "pause":
        pool.change(paused=True)
        await asyncio.sleep(seconds)
        pool.change(paused=False)
    elif what == "too few":
        pool.change(replicas=ENSEMBLE - 1)
        end_s = world.loop.time() + PATIENCE_S
        while not any(one["reason"] == "BelowEnsemble" for one in pool.status.get("conditions", ())):
            assert world.loop.time() < end_s, f"nobody says that these are too few: {pool.status}"
            await asyncio.sleep(1.0)
            pool.check()
        pool.change(replicas=FEWEST)
    elif what == "metadata away":
        pool.promises.metadata_goes(away=True)
        await asyncio.sleep(seconds)
        pool.promises.metadata_goes(away=False)
    elif what == "stand still":
        await asyncio.sleep(world.chance.uniform(0.0, 3.0))
        pool.operators.stand_still(seconds)
    else:
        assert what == "delete"
        await pool.delete_and_apply(PATIENCE_S)


Rounds = tuple[tuple[str, ...], tuple[str, ...]]
"""What each round begins with, one of them, and what happens in the midst of it."""
ANY: Rounds = ((*PLAIN, *PLAIN, *HARMFUL), SECOND)
DRAINS: Rounds = (("fewer",), ("metadata away", "too few", "delete", "lost", "call off", "crash"))
ROLLS: Rounds = (("roll",), ("stand still", "metadata away", "lost", "more"))


def drawn(pool: Pool, rounds: Rounds) -> list[tuple[str, ...]]:
    """What happens, one after the other."""
    chance, (firsts, seconds) = pool.world.chance, rounds
    count = 3 if rounds is ANY else 2
    if pool.world.loop.plan.calm:
        return [(what,) for what in (chance.sample(PLAIN, count) if rounds is ANY else firsts * count)]
    found = [chance.choice(firsts) for _ in range(count)]
    more = () if rounds is not ANY else HARMFUL
    return [(what, chance.choice(seconds if what in HARMFUL else (*seconds, *more))) for what in found]


async def run_drains(loop: SimLoop, seed: int) -> dict[LedgerId, int]:
    """A pool that gets smaller and smaller, amid what meets a drain."""
    return await run(loop, seed, DRAINS)


async def run_rolls(loop: SimLoop, seed: int) -> dict[LedgerId, int]:
    """One new image after the other, amid what meets a roll."""
    return await run(loop, seed, ROLLS)


async def run(loop: SimLoop, seed: int, rounds: Rounds = ANY) -> dict[LedgerId, int]:
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
    replicas = 6 if rounds is DRAINS else world.chance.choice((4, 5))
    pool = Pool.make(world, cluster, replicas, zones=world.chance.choice((1, 2, 3)))
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
    for wishes in drawn(pool, rounds):
        ledgers, feeding = await fill(world, writing, world.chance.randrange(2, 5))
        everything |= ledgers
        for what in wishes:
            await asyncio.sleep(world.chance.choice((world.chance.uniform(0.0, 6.0), world.chance.uniform(0.0, 60.0))))
            pool.check()
            await wish(pool, what)
        await asyncio.gather(*feeding)
        for ledger, history in ledgers.items():
            await recover(world, reading, ledger, history, "reader")
        await until_quiet(pool, ", ".join(wishes))
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
    return {ledger: history.confirmed_up_to for ledger, history in everything.items()}
