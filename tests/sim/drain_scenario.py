"""Several bookies are drained at once amid all faults; then they are removed together with their disks.

An administrator requests drains of three bookies, repeats requests, and cancels some, beside writers, crashes of any
process at any await, partitions and lost responses of the metadata store. The number of bookies that stay is never
smaller than an ensemble. Once a bookie counts as emptied, no ledger names it. All emptied bookies are then lost
together, with their disks; afterwards every acknowledged entry is readable, every replica complete, and the cookies of
the lost bookies are removed.
"""

import asyncio

from quire_bookie.errors import QuireError
from quire_bookie.metadata import layout
from quire_bookie.metadata.cookies import Cookies
from quire_bookie.metadata.drains import DRAINS, Drains, Wish, decode_drains, leaving
from quire_bookie.metadata.ledgers import LedgerNodes
from quire_bookie.model import BookieId, LedgerId
from quire_bookie.settings.recovery import RecoverySettings
from tests.sim.autorecovery_scenario import Cluster, fill, lose, settle, watch_replacements
from tests.sim.faults import Faults, Targets, disturb
from tests.sim.history import HistoryError, LedgerHistory
from tests.sim.ledger_scenario import read_all, recover
from tests.sim.loop import SimLoop
from tests.sim.metadata import SimMetadataStore
from tests.sim.world import World, retry

PATIENCE_S = 1500.0


async def request_drains(world: World, bookies: list[BookieId], seconds: float) -> None:
    """Request drains, repeat, cancel and request them again, at random.

    Never requests a decommission: a bookie that is briefly down when it becomes empty could then not come back.
    """
    drains = Drains(SimMetadataStore(world.metadata))
    end = world.loop.time() + seconds
    while world.loop.time() < end:
        bookie = world.chance.choice(bookies)
        wish = world.chance.choice((Wish.DRAIN, Wish.DRAIN, Wish.CANCEL))
        try:
            await drains.wish(bookie, wish, world.clock.now_ms())
        except QuireError:
            continue
        await asyncio.sleep(world.chance.uniform(0.5, 10.0))


async def watch_remaining(world: World, count: int, ensemble: int, trouble: list[str]) -> None:
    """Record in `trouble` whenever fewer bookies stay than an ensemble needs."""
    async for _ in await SimMetadataStore(world.metadata).watch(DRAINS):
        node = world.metadata.nodes.get(DRAINS)
        gone = frozenset() if node is None else leaving(decode_drains(node.value))
        if count - len(gone) < ensemble:
            trouble.append(f"{sorted(gone)} leave at once: {count - len(gone)} bookies stay")


async def names(world: World, bookies: set[BookieId], ledgers: dict[LedgerId, LedgerHistory]) -> list[str]:
    """Describe the segments that still name one of `bookies`."""
    nodes = LedgerNodes(SimMetadataStore(world.metadata))
    found = []
    for ledger in ledgers:
        metadata = (await nodes.read(ledger)).value
        found += [f"ledger {ledger}: {segment}" for segment in metadata.segments if bookies & set(segment.ensemble)]
    return found


async def emptied(world: World, bookies: list[BookieId], ledgers: dict[LedgerId, LedgerHistory]) -> set[BookieId]:
    """Return the bookies that the auditor reports as emptied. HistoryError if a ledger still names one of them."""
    drains = Drains(SimMetadataStore(world.metadata))
    found: set[BookieId] = set()
    for bookie in bookies:
        seen = await drains.progress_of(bookie)
        if seen is not None and seen.state == "emptied" and bookie in leaving(await drains.read()):
            found.add(bookie)
    left = await names(world, found, ledgers)
    if left:
        raise HistoryError(f"{sorted(found)} count as emptied: {left}")
    return found


async def until_emptied(
    world: World, bookies: list[BookieId], spare_count: int, ledgers: dict[LedgerId, LedgerHistory]
) -> set[BookieId]:
    """Wait until `spare_count` of the bookies are emptied, or all if there are fewer."""
    drains = Drains(SimMetadataStore(world.metadata))
    end = world.loop.time() + PATIENCE_S
    while True:
        found = await emptied(world, bookies, ledgers)
        if len(found) >= min(spare_count, len(bookies)):
            return found
        if world.loop.time() > end:
            seen = [await drains.progress_of(bookie) for bookie in bookies]
            raise AssertionError(f"not emptied after {PATIENCE_S:.0f} s: {seen}")
        await asyncio.sleep(5.0)


async def discard(world: World, bookies: set[BookieId]) -> None:
    """Lose these bookies with their disks, and wait until their cookies are removed."""
    for host, place in list(world.bookies.items()):
        if place.running is not None and place.running.bookie_id in bookies:
            lose(world, host)
    cookies = Cookies(SimMetadataStore(world.metadata))
    end = world.loop.time() + PATIENCE_S
    while left := bookies & set(await cookies.bookies()):
        assert world.loop.time() < end, f"the cookies of {sorted(left)} are still there"
        await asyncio.sleep(5.0)


async def until_undrained(world: World, bookies: set[BookieId]) -> None:
    """Wait until no bookie is drained any more; bookies with cancelled drains must then be writable."""
    drains = Drains(SimMetadataStore(world.metadata))
    end = world.loop.time() + PATIENCE_S
    while left := await drains.read():
        assert world.loop.time() < end, f"still drained: {left}"
        await asyncio.sleep(5.0)
    shut = [bookie for bookie in sorted(bookies) if layout.writable_path(bookie) not in world.metadata.nodes]
    if shut:
        raise HistoryError(f"the drains of {shut} were cancelled, and the bookies are not writable")


async def run(loop: SimLoop, seed: int) -> dict[LedgerId, LedgerHistory]:
    """Run one seed. Raises HistoryError or AssertionError if a guarantee is violated."""
    world = World(loop, seed)
    count = world.chance.choice((5, 6))
    await world.start_bookies(count)
    settings = RecoverySettings(
        workers=world.chance.choice((1, 2)),
        lost_bookie_delay_s=world.chance.choice((0, 40)),
        rate_bytes_s=world.chance.choice((0, 1 << 20)),
        check_interval_s=0.0,
        open_ledger_grace_s=10.0,
        retry_s=(3.0, 30.0),
        poll_s=10.0,
    )
    cluster = Cluster(world, settings)
    for host in ("ar1", "ar2"):
        await cluster.start(host)
    writing, reading = [await world.start_client(host) for host in ("writer", "reader")]
    ledgers, feeding = await fill(world, writing, world.chance.randrange(2, 6))
    nodes = LedgerNodes(SimMetadataStore(world.metadata))
    ensemble = max([(await nodes.read(ledger)).value.ensemble_size for ledger in ledgers])
    hosts = world.chance.sample(sorted(world.bookies), 3)
    wanted = [running.bookie_id for host in hosts if (running := world.bookies[host].running) is not None]
    crowded: list[str] = []
    early: list[str] = []
    guards = [asyncio.ensure_future(watch_remaining(world, count, ensemble, crowded))]
    await asyncio.sleep(world.chance.uniform(0.0, 6.0))
    seconds = world.chance.uniform(10.0, 40.0)
    faults = [request_drains(world, wanted, seconds)]
    if not loop.plan.calm:
        faults.append(cluster.disturb(seconds))
        if world.chance.random() < 0.7:
            faults.append(disturb(world, ("writer", "reader", "ar1", "ar2"), seconds, down_max=1))
        else:
            world.metadata.unknown_chance = world.chance.choice((0.0, 0.02, 0.1))
    await asyncio.gather(*faults)
    await Faults(world, Targets(sorted(world.bookies), ())).heal()
    await asyncio.gather(*feeding)
    for ledger, history in ledgers.items():
        await recover(world, reading, ledger, history, "reader")
    guards.append(asyncio.ensure_future(watch_replacements(world, ledgers, early)))
    drains = Drains(SimMetadataStore(world.metadata))
    for bookie in wanted:
        await retry(lambda bookie=bookie: drains.wish(bookie, Wish.DECOMMISSION, world.clock.now_ms()), seconds=60)
    gone = await until_emptied(world, wanted, count - ensemble, ledgers)
    await discard(world, gone)
    for bookie in set(wanted) - gone:
        await drains.wish(bookie, Wish.CANCEL, world.clock.now_ms())
    await until_undrained(world, set(wanted) - gone)
    await settle(world, ledgers)
    for guard in guards:
        if guard.done():
            guard.result()
        guard.cancel()
    if crowded or early:
        raise HistoryError(f"too many bookies leave, or one joined an ensemble too early: {crowded} {early}")
    for ledger, history in ledgers.items():
        reader = await world.on(reading, reading.ledgers.open_ledger(ledger, recover=False))
        await world.on(reading, read_all(reader, history, "after"))
        history.check()
    assert all(layout.cookie_path(bookie) not in world.metadata.nodes for bookie in gone)
    return ledgers
