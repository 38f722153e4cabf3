"""Ledgers are created while one of three bookies is away; in the end each has the requested number of copies.

One bookie after another goes away and comes back, or the third starts late, while a client creates ledgers, writes,
closes some, leaves others open, and dies. Auto-recovery processes are killed meanwhile, and responses of the metadata
store are lost. Often an administrator requests a drain that would leave too few bookies. A ledger with too few copies
is marked at every moment, so that readers of the marks never count it as safe. No bookie joins an ensemble before it
has the entries. When no mark is left, two of the three bookies are lost with their disks, and the last one alone serves
every acknowledged entry.
"""

import asyncio

from quire_bookie.errors import QuireError
from quire_bookie.metadata import layout
from quire_bookie.metadata.drains import DRAINS, Drains, Wish, decode_drains, leaving
from quire_bookie.metadata.ledgers import LedgerNodes
from quire_bookie.metadata.under_replication import mark_path
from quire_bookie.model import LedgerId, LedgerMetadata, LedgerState
from quire_bookie.quorum.wanted_copies import WANTED_WRITE_QUORUM
from quire_bookie.recovery.fragments import closed_fragments
from quire_bookie.settings.recovery import RecoverySettings
from tests.sim.autorecovery_scenario import Cluster, feed, lose, replica_shortfall, settle
from tests.sim.faults import Faults, Targets
from tests.sim.history import HistoryError, LedgerHistory
from tests.sim.ledger_scenario import read_all, recover, write
from tests.sim.loop import SimLoop
from tests.sim.metadata import SimMetadataStore
from tests.sim.stored_entries import stored_metadata
from tests.sim.world import SimClient, World, retry

BOOKIES = 3
COPIES = 3
Ledgers = dict[LedgerId, LedgerHistory]


def copies_missing(world: World, ledger: LedgerId) -> bool:
    """Whether a ledger has fewer copies than requested; independent of the rule under test."""
    return stored_metadata(world, ledger).write_quorum < COPIES


def unmarked(world: World, ledgers: Ledgers) -> list[LedgerId]:
    """Return the ledgers with too few copies and without a mark."""
    return [
        ledger for ledger in ledgers if copies_missing(world, ledger) and mark_path(ledger) not in world.metadata.nodes
    ]


async def watch_marks(world: World, ledgers: Ledgers, trouble: list[str]) -> None:
    """Check the marks and the requested drains at every change of the metadata."""
    async for _ in await SimMetadataStore(world.metadata).watch("/"):
        if found := unmarked(world, ledgers):
            trouble.append(f"ledgers with too few copies count as safe: {found}")
            return
        node = world.metadata.nodes.get(DRAINS)
        if node is not None and (gone := leaving(decode_drains(node.value))):
            trouble.append(f"{sorted(gone)} may leave, and {BOOKIES - 1} bookies stay for {COPIES} copies")
            return


async def watch_late_joiners(world: World, ledgers: Ledgers, early: list[str]) -> None:
    """Check, when a closed ledger begins to name a further bookie, whether that bookie has all of the entries."""
    known: dict[LedgerId, LedgerMetadata] = {}
    async for event in await SimMetadataStore(world.metadata).watch(f"{layout.ROOT}/"):
        ledger = layout.ledger_of_path(event.key)
        if ledger is None or event.key not in world.metadata.nodes:
            continue
        before, metadata = known.get(ledger), stored_metadata(world, ledger)
        known[ledger] = metadata
        if before is None or before.state is not LedgerState.CLOSED or ledger not in ledgers:
            continue
        running = {one.running.bookie_id for one in world.bookies.values() if one.running is not None}
        for fragment in closed_fragments(metadata):
            for bookie in (running & set(fragment.ensemble)) - set(before.ensemble_of(fragment.first)):
                position = fragment.ensemble.index(bookie)
                if trouble := await replica_shortfall(world, ledger, metadata, fragment, position, ledgers[ledger]):
                    early.append(trouble)


async def work(world: World, client: SimClient, ledgers: Ledgers, seconds: float) -> None:
    """Create a ledger on the available bookies and write; then close it or leave it open."""
    try:
        writer = await world.on(client, client.ledgers.create_ledger(fewer_bookies=True))
    except QuireError:
        return
    history = ledgers[writer.ledger_id] = LedgerHistory()
    if world.chance.random() < 0.6:
        await feed(world, client, writer, history, seconds)
    else:
        await write(world, client, writer, history, world.loop.time() + seconds)


async def away(world: World, client: SimClient, ledgers: Ledgers) -> None:
    """Take one bookie down, create ledgers meanwhile, and start the bookie again."""
    host = world.chance.choice(sorted(world.bookies))
    manner = world.chance.choice(("crash", "kill", "stop"))
    world.loop.note(f"{host} goes away: {manner}")
    if manner == "crash":
        world.crash_bookie(host, "random")
    elif manner == "kill":
        world.kill_bookie(host)
    else:
        await world.stop_bookie(host)
    await asyncio.sleep(world.chance.choice((0.5, 5.0, 15.0)))
    count = world.chance.randrange(1, 4)
    await asyncio.gather(*(work(world, client, ledgers, world.chance.uniform(0.1, 3.0)) for _ in range(count)))
    await world.start_bookie(host)
    await asyncio.sleep(world.chance.choice((0.0, 1.0, 30.0)))


async def inject_faults(cluster: Cluster, ledgers: Ledgers) -> None:
    """Run several absences in sequence, each with its own client; then end all faults."""
    world = cluster.world
    world.metadata.unknown_chance = world.chance.choice((0.0, 0.02, 0.1))
    faults = asyncio.ensure_future(cluster.disturb(60.0)) if world.chance.random() < 0.5 else None
    for number in range(world.chance.randrange(1, 4)):
        client = await retry(lambda number=number: world.start_client(f"writer{number}"), seconds=60)
        await away(world, client, ledgers)
        if world.chance.random() < 0.5:
            world.kill_client(client)
    if faults is not None:
        await faults
    await Faults(world, Targets(sorted(world.bookies), ())).heal()


async def close_all(world: World, reading: SimClient, ledgers: Ledgers) -> None:
    """Recover the open ledgers, but leave half of those with too few copies to auto-recovery."""
    nodes = LedgerNodes(SimMetadataStore(world.metadata))
    for ledger, history in ledgers.items():
        metadata = (await nodes.read(ledger)).value
        is_narrow = WANTED_WRITE_QUORUM in metadata.custom
        if metadata.state is LedgerState.CLOSED or not is_narrow or world.chance.random() < 0.5:
            await recover(world, reading, ledger, history, "reader")


async def run(loop: SimLoop, seed: int) -> Ledgers:
    """Run one seed. Raises HistoryError or AssertionError if a guarantee is violated."""
    world = World(loop, seed)
    await world.start_bookies(BOOKIES)
    settings = RecoverySettings(
        workers=world.chance.choice((1, 2)),
        lost_bookie_delay_s=100_000,
        rate_bytes_s=world.chance.choice((0, 1 << 20)),
        open_ledger_grace_s=10.0,
        retry_s=(3.0, 30.0),
        poll_s=10.0,
    )
    cluster = Cluster(world, settings)
    for host in ("ar1", "ar2"):
        await cluster.start(host)
    ledgers: Ledgers = {}
    trouble: list[str] = []
    early: list[str] = []
    guards = [
        asyncio.ensure_future(watch_marks(world, ledgers, trouble)),
        asyncio.ensure_future(watch_late_joiners(world, ledgers, early)),
    ]
    drains, running = Drains(SimMetadataStore(world.metadata)), world.bookies["b2"].running
    assert running is not None
    wanted = running.bookie_id
    late = world.chance.random() < 0.5 and not loop.plan.calm
    first = await world.start_client("writer")
    if late:
        await world.stop_bookie("b3")  # so that every ledger so far has two copies
        await asyncio.sleep(1.0)
    await asyncio.gather(*(work(world, first, ledgers, world.chance.uniform(0.5, 4.0)) for _ in range(2)))
    if ledgers and world.chance.random() < 0.7 and not loop.plan.calm:
        await retry(lambda: drains.wish(wanted, Wish.DRAIN, world.clock.now_ms()), seconds=60)
    if late:
        await world.start_bookie("b3")
        await asyncio.sleep(world.chance.choice((0.0, 60.0)))
    if not loop.plan.calm:
        await inject_faults(cluster, ledgers)
    reading = await world.start_client("reader")
    await retry(lambda: drains.wish(wanted, Wish.CANCEL, world.clock.now_ms()), seconds=60)
    await close_all(world, reading, ledgers)
    if trouble:
        raise HistoryError(f"counted as safe: {trouble}")
    await settle(world, ledgers)
    for guard in guards:
        if guard.done():
            guard.result()
        guard.cancel()
    if trouble or early:
        raise HistoryError(f"counted as safe, or named too early: {trouble} {early}")
    if few := [ledger for ledger in ledgers if copies_missing(world, ledger)]:
        raise HistoryError(f"no mark is left, and ledgers have too few copies: {few}")
    for host in world.chance.sample(sorted(world.bookies), 0 if loop.plan.calm else COPIES - 1):
        lose(world, host)
    for ledger, history in ledgers.items():
        reader = await retry(
            lambda ledger=ledger: world.on(reading, reading.ledgers.open_ledger(ledger, recover=False)), seconds=120
        )
        history.on_close(reader.last_add_confirmed)
        await retry(
            lambda reader=reader, history=history: world.on(reading, read_all(reader, history, "after")), seconds=120
        )
        history.check()
    return ledgers
