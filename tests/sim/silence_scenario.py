"""A bookie is lost permanently, and another one that has the same entries is silent while they are copied.

The ledgers have two copies of each entry, and all are closed. The auto-recovery processes receive no response from the
second bookie for a while, or only sometimes: its entries are *unknown* meanwhile, not missing. No bookie may join an
ensemble without all of its entries, and in the end every replica is complete, copied from the silent bookie.
"""

import asyncio
import random

from quire_bookie.client import LedgerWriter
from quire_bookie.model import LedgerId
from quire_bookie.settings.recovery import RecoverySettings
from tests.sim.autorecovery_scenario import Cluster, feed, holders, lose, settle, watch_replacements
from tests.sim.faults import Faults, Targets
from tests.sim.history import HistoryError, LedgerHistory
from tests.sim.ledger_scenario import read_all, recover
from tests.sim.loop import SimLoop
from tests.sim.plan import Step
from tests.sim.world import World

QUORUMS = ((3, 2, 2), (2, 2, 2), (3, 3, 2))
WORKERS = ("ar1", "ar2")
SILENT_S = 60.0


async def run(loop: SimLoop, seed: int) -> dict[LedgerId, LedgerHistory]:
    """Run one seed. Raises HistoryError or AssertionError if a guarantee is violated."""
    world, script = World(loop, seed), random.Random(seed * 2 + 1)
    await world.start_bookies(script.choice((4, 5)))
    settings = RecoverySettings(
        workers=script.choice((1, 2)),
        lost_bookie_delay_s=0,
        check_interval_s=script.choice((0.0, 60.0)),
        open_ledger_grace_s=10.0,
        retry_s=(3.0, 10.0),
        poll_s=10.0,
    )
    cluster = Cluster(world, settings)
    for host in WORKERS:
        await cluster.start(host)
    writing, reading = [await world.start_client(host) for host in ("writer", "reader")]
    ledgers: dict[LedgerId, LedgerHistory] = {}
    for _ in range(3):
        e, w, a = script.choice(QUORUMS)
        creating = writing.ledgers.create_ledger(ensemble_size=e, write_quorum=w, ack_quorum=a)
        writer: LedgerWriter = await world.on(writing, creating)
        history = ledgers[writer.ledger_id] = LedgerHistory()
        await world.on(writing, feed(world, writing, writer, history, script.uniform(0.2, 1.0)))
        await recover(world, reading, writer.ledger_id, history, "reader")
    early: list[str] = []
    guard = asyncio.ensure_future(watch_replacements(world, ledgers, early))
    faults = Faults(world, Targets(sorted(world.bookies), WORKERS), {"lose": lambda step: lose(world, step.who)})
    seconds = loop.plan.seconds(SILENT_S)
    await faults.run(loop.plan.choose(_steps(script, await holders(world, ledgers))), seconds)
    await faults.heal()
    await settle(world, ledgers)
    if guard.done():
        guard.result()
    guard.cancel()
    if early:
        raise HistoryError(f"a bookie joined an ensemble before it had the entries: {early}")
    for ledger, history in ledgers.items():
        reader = await world.on(reading, reading.ledgers.open_ledger(ledger, recover=False))
        await world.on(reading, read_all(reader, history, "after"))
        history.check()
    return ledgers


def _steps(script: random.Random, hosts: list[str]) -> list[Step]:
    """Draw steps: one bookie is lost; another is silent all the time or at times, in both directions or one."""
    if len(hosts) < 2:
        return []  # not one entry was confirmed
    lost, silent = script.sample(hosts, 2)
    steps = [Step(0.5, "lose", lost)]
    at_s = 0.0
    kind = script.choice(("cut", "cut one way"))
    while at_s < SILENT_S:
        steps += [Step(at_s, kind, silent, worker) for worker in WORKERS]
        at_s += script.choice((8.0, 20.0, 50.0))
        steps.append(Step(at_s, "heal"))
        at_s += script.choice((0.05, 0.5))
    return steps
