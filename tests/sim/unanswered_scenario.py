"""A registered bookie answers auto-recovery nothing, as when its machine has just died; other ledgers are repaired.

There is one worker. It begins with a long ledger whose mark names the silent bookie. Then another bookie is lost
permanently, and a short ledger misses a replica. The silent bookie must delay the repair of the short ledger by some
timeouts at most, however many entries the long one has. In the end the silence is over, and both are whole.
"""

import asyncio
import random

from quire_bookie.metadata.ledgers import LedgerNodes
from quire_bookie.metadata.under_replication import UnderReplication
from quire_bookie.model import LedgerId
from quire_bookie.settings.recovery import RecoverySettings
from tests.sim.autorecovery_scenario import Cluster, feed, ledger_shortfall, lose, settle
from tests.sim.faults import Faults, Targets
from tests.sim.history import LedgerHistory
from tests.sim.ledger_scenario import read_all, recover
from tests.sim.loop import SimLoop
from tests.sim.metadata import SimMetadataStore
from tests.sim.plan import Step
from tests.sim.world import SimClient, World

WORKER = "ar1"
LOST_AT_S = 5.0
REPAIRED_IN_S = 120.0
"""Time within which the short ledger is whole again: some attempts at the long one, and none of its single entries."""


async def run(loop: SimLoop, seed: int) -> dict[LedgerId, LedgerHistory]:
    """Run one seed. Raises HistoryError or AssertionError if a guarantee is violated."""
    world, script = World(loop, seed), random.Random(seed * 2 + 1)
    await world.start_bookies(5)
    settings = RecoverySettings(
        workers=1,
        lost_bookie_delay_s=0,
        check_interval_s=0.0,
        open_ledger_grace_s=10.0,
        retry_s=(3.0, 10.0),
        poll_s=5.0,
    )
    cluster = Cluster(world, settings)
    await cluster.start(WORKER)
    writing, reading = [await world.start_client(host) for host in ("writer", "reader")]
    ledgers: dict[LedgerId, LedgerHistory] = {}
    long = await _written(world, writing, reading, ledgers, seconds=2.5, pause_s_max=0.02)
    short = await _written(world, writing, reading, ledgers, seconds=0.2, pause_s_max=0.05)
    silent, lost = await _victims(world, script, long, short)
    steps = [Step(0.0, "cut", silent, WORKER), Step(LOST_AT_S, "lose", lost)]
    faults = Faults(world, Targets(sorted(world.bookies), (WORKER,)), {"lose": lambda step: lose(world, step.who)})
    seconds = loop.plan.seconds(LOST_AT_S + REPAIRED_IN_S)
    bookie = world.bookies[silent].running
    assert bookie is not None
    disturbing = asyncio.ensure_future(faults.run(loop.plan.choose(steps), seconds))
    await asyncio.sleep(1.0)
    await UnderReplication(SimMetadataStore(world.metadata), world.clock).mark(long, [bookie.bookie_id])
    await disturbing
    metadata = (await LedgerNodes(SimMetadataStore(world.metadata)).read(short)).value
    trouble = await ledger_shortfall(world, short, metadata, ledgers[short])
    assert not trouble, f"not repaired within {REPAIRED_IN_S:.0f} s: {trouble}"
    await faults.heal()
    await settle(world, ledgers)
    for ledger, history in ledgers.items():
        reader = await world.on(reading, reading.ledgers.open_ledger(ledger, recover=False))
        await world.on(reading, read_all(reader, history, "after"))
        history.check()
    return ledgers


async def _written(
    world: World,
    writing: SimClient,
    reading: SimClient,
    ledgers: dict[LedgerId, LedgerHistory],
    *,
    seconds: float,
    pause_s_max: float,
) -> LedgerId:
    """Write and close a ledger."""
    creating = writing.ledgers.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
    writer = await world.on(writing, creating)
    history = ledgers[writer.ledger_id] = LedgerHistory()
    await world.on(writing, feed(world, writing, writer, history, seconds, pause_s_max))
    await recover(world, reading, writer.ledger_id, history, "reader")
    return writer.ledger_id


async def _victims(world: World, script: random.Random, long: LedgerId, short: LedgerId) -> tuple[str, str]:
    """Draw a bookie of the long ledger and another one of the short ledger, by host."""
    nodes = LedgerNodes(SimMetadataStore(world.metadata))
    hosts = {
        place.running.bookie_id: host for host, place in sorted(world.bookies.items()) if place.running is not None
    }
    silent = script.choice((await nodes.read(long)).value.segments[-1].ensemble)
    others = [bookie for bookie in (await nodes.read(short)).value.segments[-1].ensemble if bookie != silent]
    return hosts[silent], hosts[script.choice(others)]
