"""The operator's plans on simulated production bookies and auditors: scaled, drained, rolled, nodes lost, deleted.

Two processes of the operator compete for one lease; they are killed around any write and suspended, and meet conflicts
and an unreachable metadata store; requests of administrators arrive during other operations. Kubernetes is simulated.
Clients write and read all the time. `operator_checks` has the guarantees; in the end every acknowledged entry is
readable, every replica complete, and no trace of the removed bookies is left. Without faults there are plain requests,
one by one.
"""

import asyncio
import random
from dataclasses import dataclass

from quire_bookie.metadata.cookies import Cookies
from quire_bookie.metadata.rack_map import RACK_MAP, decode_rack_map
from quire_bookie.model import LedgerId
from quire_bookie.settings.recovery import RecoverySettings
from tests.sim.autorecovery_scenario import Cluster, fill, settle
from tests.sim.history import LedgerHistory
from tests.sim.ledger_scenario import read_all, recover
from tests.sim.loop import SimLoop
from tests.sim.metadata import SimMetadataStore
from tests.sim.operator_pool import Pool
from tests.sim.operator_trouble import DRAIN_STEPS, EXPAND_STEPS, PATIENCE_S, REPLACE_STEPS, ROLL_STEPS, Trouble
from tests.sim.world import World

PLAIN = ("more", "fewer", "roll")
VOLUMES = ("larger volumes", "more volumes")
HARMFUL = ("lost", "lost at once", "replace a living one")
"""Only one of these at a time, as an acknowledgement needs two bookies."""
SECOND = (*PLAIN, "crash", "call off", "pause", "too few", "metadata away", "stand still", "stand still", "delete")
PAUSE_S_MAX = 0.5
"""Longest pause between two appends: the number of entries does not matter to the operator, but costs time."""


async def until_quiet(pool: Pool, what: str) -> None:
    """Wait until the requests are done and stay so for a while, as a loss shows only later."""
    loop = pool.world.loop
    end, quiet_since = loop.time() + PATIENCE_S, loop.time()
    while loop.time() - quiet_since < 30.0:  # virtual time
        assert loop.time() < end, f"{what}: {pool.status}"
        await asyncio.sleep(1.0)
        pool.check()
        if not pool.is_quiet():
            quiet_since = loop.time()


@dataclass(frozen=True, slots=True)
class Rounds:
    """The events that may begin a round, those that may occur during it, and the steps at which they occur."""

    count: int
    firsts: tuple[str, ...]
    seconds: tuple[str, ...]
    steps: tuple[str, ...]
    harmful: tuple[str, ...] = ()
    """Further events during a round, unless it began with one of them."""


ANY = Rounds(3, (*PLAIN, *PLAIN, *HARMFUL), SECOND, (*DRAIN_STEPS, *ROLL_STEPS, *REPLACE_STEPS), HARMFUL)
DRAINS = Rounds(
    2,
    ("fewer", "fewer", "full, and fewer"),
    ("metadata away", "metadata away", "too few", "delete", "delete", "lost", "call off", "crash"),
    DRAIN_STEPS,
)
EXPANDS = Rounds(
    2,
    VOLUMES,
    ("stand still", "metadata away", "lost", "more", "fewer", "roll", "larger volumes", "delete", "crash"),
    EXPAND_STEPS,
)
ROLLS = Rounds(2, ("roll",), ("stand still", "stand still", "unrepaired", "metadata away", "lost", "more"), ROLL_STEPS)


Wish = tuple[str, str]
"""An event, and the step of an operation at which it occurs."""


def drawn(seed: int, rounds: Rounds, *, calm: bool) -> list[list[Wish]]:
    """Draw the events of each round, in order. They depend only on the seed, so they are known without a run."""
    chance = random.Random(seed)
    if calm:
        plain = [what for what in (*PLAIN, *VOLUMES) if what in rounds.firsts]
        count = rounds.count if rounds is ANY else 1
        return [[(what, "")] for what in chance.sample(plain, min(count, len(plain)))]
    found = []
    for _ in range(rounds.count):
        first = chance.choice(rounds.firsts)
        seconds = (*rounds.seconds, *(() if first in HARMFUL else rounds.harmful))
        found.append([(first, ""), (chance.choice(seconds), chance.choice(rounds.steps))])
    return found


async def run_drains(loop: SimLoop, seed: int) -> dict[LedgerId, int]:
    """Run one seed of a shrinking pool, with events that affect a drain."""
    return await run(loop, seed, DRAINS)


async def run_rolls(loop: SimLoop, seed: int) -> dict[LedgerId, int]:
    """Run one seed of consecutive new images, with events that affect a roll."""
    return await run(loop, seed, ROLLS)


async def run_expands(loop: SimLoop, seed: int) -> dict[LedgerId, int]:
    """Run one seed of more and larger volumes, with events that affect the recreation of the StatefulSet."""
    return await run(loop, seed, EXPANDS)


async def run(loop: SimLoop, seed: int, rounds: Rounds = ANY) -> dict[LedgerId, int]:
    """Run one seed. Raises HistoryError or AssertionError if a guarantee is violated."""
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
    fresh: dict[LedgerId, LedgerHistory] = {}
    feeding: list[asyncio.Task[None]] = []

    async def more_ledgers() -> None:
        made, fed = await fill(world, writing, world.chance.randrange(2, 5), pause_s_max=PAUSE_S_MAX)
        fresh.update(made)
        feeding.extend(fed)

    trouble = Trouble(pool, more_ledgers)
    for wishes in drawn(seed, rounds, calm=loop.plan.calm):
        await more_ledgers()
        for what, step in wishes:
            await asyncio.sleep(world.chance.uniform(0.0, 6.0))
            pool.check()
            await trouble.wish(what, step)
        await asyncio.gather(*feeding)
        for ledger, history in fresh.items():
            await recover(world, reading, ledger, history, "reader")
        everything |= fresh
        fresh.clear()
        feeding.clear()
        await until_quiet(pool, ", ".join(what for what, _ in wishes))
    pool.check_volumes()
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
