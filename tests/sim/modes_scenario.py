"""One bookie does not sync its journal, or has none, and loses power while a ledger is written and taken over.

It comes back in limbo: what it lost is *unknown*, so that recovery finds every confirmed entry on the others instead of
ending the ledger where this bookie would have denied one. Another bookie has several journal and ledger folders.
"""

import asyncio
from dataclasses import replace

from tests.sim.disk import Survival
from tests.sim.history import LedgerHistory
from tests.sim.ledger_scenario import take_over, write
from tests.sim.loop import SimLoop
from tests.sim.world import World

QUORUMS = ((3, 3, 2), (3, 2, 2), (3, 3, 3), (2, 2, 2))
"""Two copies of whatever is confirmed: one bookie may lose all it has."""


async def run(loop: SimLoop, seed: int) -> LedgerHistory:
    """One seed. Raises HistoryError or AssertionError when a promise is broken."""
    world = World(loop, seed)
    risky = "b1"
    journaled = world.chance.random() < 0.6
    world.changes_of[risky] = {
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
    faults = asyncio.ensure_future(disturb(world, risky, begun + seconds))
    await asyncio.sleep(world.chance.uniform(0.5, seconds))
    openers = {"opener": opening, "other": other}
    await take_over(world, writing, openers, writer.ledger_id, history, feeding, faults)
    history.check()
    return history


async def disturb(world: World, risky: str, end_s: float) -> None:
    """The risky bookie loses power once at least, is killed and stopped in between; the others crash as well."""
    await asyncio.sleep(world.chance.uniform(0.1, 2.0))
    await cut_power_of(world, risky)
    while world.loop.time() < end_s:
        await asyncio.sleep(world.chance.uniform(0.05, 1.5))
        match world.chance.randrange(6):
            case 0:
                await cut_power_of(world, risky)
            case 1:
                await end_process_of(world, risky, clean=False)
            case 2:
                await end_process_of(world, risky, clean=True)
            case 3:
                safe = world.chance.choice([host for host in sorted(world.bookies) if host != risky])
                world.crash_bookie(safe, "random")
                await asyncio.sleep(world.chance.uniform(0.0, 1.0))
                await world.start_bookie(safe)
            case 4:
                world.loop.network.break_connections(world.chance.choice(sorted(world.bookies)))
            case _:
                world.loop.network.stall_chance = world.chance.choice((0.0, 0.0, 0.01, 0.05))
    await world.heal()


async def cut_power_of(world: World, host: str) -> None:
    """Power off and on again: from then on the bookie is in limbo."""
    survival: Survival = world.chance.choice(("none", "random", "random"))
    world.crash_bookie(host, survival)
    await asyncio.sleep(world.chance.uniform(0.0, 1.0))
    await world.start_bookie(host)
    running = world.bookies[host].running
    assert running is not None and running.storage.in_limbo, "it may have lost what it acknowledged"


async def end_process_of(world: World, host: str, *, clean: bool) -> None:
    """Only the process ends; limbo that was entered before stays."""
    if clean:
        await world.stop_bookie(host)
    else:
        world.kill_bookie(host)
    await asyncio.sleep(world.chance.uniform(0.0, 1.0))
    await world.start_bookie(host)
    running = world.bookies[host].running
    assert running is not None and running.storage.in_limbo
