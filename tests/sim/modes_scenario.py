"""One bookie does not sync its journal, or has none, and loses power while a ledger is written and recovered.

It comes back in limbo: its answer for lost entries is *unknown*, so that recovery finds every confirmed entry on the
other bookies instead of ending the ledger where this bookie has lost one. Another bookie has several journal and ledger
folders.
"""

import asyncio
import random
from dataclasses import replace

from tests.sim.faults import WEIGHTS, Faults, Targets, draw, drawn
from tests.sim.history import LedgerHistory
from tests.sim.ledger_scenario import take_over, write
from tests.sim.loop import SimLoop
from tests.sim.world import World

QUORUMS = ((3, 3, 2), (3, 2, 2), (3, 3, 3), (2, 2, 2))
"""Confirmed entries have two copies: one bookie may lose all of its entries."""
RISKY = "b1"
ONCE_MORE = ("kill", "stop", "start", "start")
KINDS = {**WEIGHTS, "kill": 4, "stop": 4}


async def run(loop: SimLoop, seed: int) -> LedgerHistory:
    """Run one seed. Raises HistoryError or AssertionError if a guarantee is violated."""
    world = World(loop, seed)
    journaled = world.chance.random() < 0.6
    world.changes_of[RISKY] = {
        "journal": replace(world.journal_settings, sync_data=False, write_data=journaled),
    }
    world.changes_of["b2"] = {"journal_dirs": ("/data/j0", "/data/j1"), "ledger_dirs": ("/data/l0", "/data/l1")}
    await world.start_bookies(world.chance.choice((3, 4)))
    writing, opening, other = [await world.start_client(host) for host in ("writer", "opener", "other")]
    e, w, a = world.chance.choice(QUORUMS)
    created = writing.ledgers.create_ledger(ensemble_size=e, write_quorum=w, ack_quorum=a)
    writer = await world.on(writing, created)
    history = LedgerHistory()
    seconds = world.chance.uniform(2.0, 10.0)
    begun = loop.time()
    feeding = world.on(writing, write(world, writing, writer, history, begun + seconds))
    faults = asyncio.ensure_future(disturb(world, seconds))
    await asyncio.sleep(world.chance.uniform(0.5, seconds))
    openers = {"opener": opening, "other": other}
    await take_over(world, writing, openers, writer.ledger_id, history, feeding, faults)
    history.check()
    return history


async def disturb(world: World, seconds: float) -> None:
    """Cut the power of the risky bookie at least once, amid all other faults; from then on it is in limbo."""
    faults = Faults(world, Targets(sorted(world.bookies), ("writer", "opener", "other"), down_max=2))
    script = random.Random(world.chance.randrange(1 << 30))
    seconds = world.loop.plan.seconds(seconds)
    steps = draw(script, faults.targets, seconds, KINDS)
    steps += [replace(drawn(script, faults.targets, script.uniform(0.1, 2.0), "crash"), who=RISKY)]
    steps += [
        replace(drawn(script, faults.targets, script.uniform(0.1, seconds), kind), who=RISKY) for kind in ONCE_MORE
    ]
    await faults.run(world.loop.plan.choose(steps), seconds)
    await faults.heal()
    risky = world.bookies[RISKY]
    assert risky.running is not None
    if risky.power_cuts:
        assert risky.running.storage.in_limbo, "it may have lost acknowledged entries"
