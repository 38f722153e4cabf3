"""Several bookies are to be emptied at once, while everything fails; then they are thrown away with their disks.

A person wants three bookies drained, says so again, and takes wishes back, beside writers, crashes of
anything at any await, partitions and lost answers of the metadata store. Never are so many let go that fewer stay than
an ensemble needs. Once a bookie counts as emptied no ledger names it; all of the emptied ones are then lost together,
with their disks, and every acknowledged entry is still there, every replica whole, every cookie of theirs gone.
"""

import asyncio

from quire_bookie.errors import QuireError
from quire_bookie.metadata import layout
from quire_bookie.metadata.cookies import Cookies
from quire_bookie.metadata.drains import DRAINS, Drains, Wish, decode_drains, leaving
from quire_bookie.metadata.ledgers import LedgerNodes
from quire_bookie.model import BookieId, LedgerId
from quire_bookie.recovery.settings import RecoverySettings
from tests.sim.autorecovery_scenario import Cluster, fill, lose, settle, watch_replacements
from tests.sim.faults import Cast, Faults, disturb
from tests.sim.history import HistoryError, LedgerHistory
from tests.sim.ledger_scenario import read_all, recover
from tests.sim.loop import SimLoop
from tests.sim.metadata import SimMetadataStore
from tests.sim.world import World, insist

PATIENCE_S = 1500.0


async def person(world: World, bookies: list[BookieId], seconds: float) -> None:
    """Says wishes, says them again, takes one back and says it anew.

    Not for good: a decommissioned bookie that is down for a moment when it is empty may not come back.
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


async def watch_room(world: World, count: int, ensemble: int, trouble: list[str]) -> None:
    """Never may fewer bookies stay than an ensemble needs."""
    async for _ in await SimMetadataStore(world.metadata).watch(DRAINS):
        node = world.metadata.nodes.get(DRAINS)
        gone = frozenset() if node is None else leaving(decode_drains(node.value))
        if count - len(gone) < ensemble:
            trouble.append(f"{sorted(gone)} leave at once: {count - len(gone)} bookies stay")


async def names(world: World, bookies: set[BookieId], ledgers: dict[LedgerId, LedgerHistory]) -> list[str]:
    """Ledgers that still name one of these."""
    nodes = LedgerNodes(SimMetadataStore(world.metadata))
    found = []
    for ledger in ledgers:
        metadata = (await nodes.read(ledger)).value
        found += [f"ledger {ledger}: {segment}" for segment in metadata.segments if bookies & set(segment.ensemble)]
    return found


async def emptied(world: World, bookies: list[BookieId], ledgers: dict[LedgerId, LedgerHistory]) -> set[BookieId]:
    """Those that the auditor calls emptied; HistoryError when a ledger names one all the same."""
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
    world: World, bookies: list[BookieId], room: int, ledgers: dict[LedgerId, LedgerHistory]
) -> set[BookieId]:
    """Wait until as many are empty as there is room for."""
    drains = Drains(SimMetadataStore(world.metadata))
    end = world.loop.time() + PATIENCE_S
    while True:
        found = await emptied(world, bookies, ledgers)
        if len(found) >= min(room, len(bookies)):
            return found
        if world.loop.time() > end:
            seen = [await drains.progress_of(bookie) for bookie in bookies]
            raise AssertionError(f"not emptied after {PATIENCE_S:.0f} s: {seen}")
        await asyncio.sleep(5.0)


async def discard(world: World, bookies: set[BookieId]) -> None:
    """Lose all of them with their disks, and wait until the cluster has forgotten them."""
    for host, place in list(world.bookies.items()):
        if place.running is not None and place.running.bookie_id in bookies:
            lose(world, host)
    cookies = Cookies(SimMetadataStore(world.metadata))
    end = world.loop.time() + PATIENCE_S
    while left := bookies & set(await cookies.bookies()):
        assert world.loop.time() < end, f"the cookies of {sorted(left)} are still there"
        await asyncio.sleep(5.0)


async def given_back(world: World, bookies: set[BookieId]) -> None:
    """Wait until those whose drains were taken back are writable again, and nobody is drained any more."""
    drains = Drains(SimMetadataStore(world.metadata))
    end = world.loop.time() + PATIENCE_S
    while left := await drains.read():
        assert world.loop.time() < end, f"still drained: {left}"
        await asyncio.sleep(5.0)
    shut = [bookie for bookie in sorted(bookies) if layout.writable_path(bookie) not in world.metadata.nodes]
    if shut:
        raise HistoryError(f"nobody drains {shut} any more, and they are not writable")


async def run(loop: SimLoop, seed: int) -> dict[LedgerId, LedgerHistory]:
    """One seed. Raises HistoryError or AssertionError when a promise is broken."""
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
    guards = [asyncio.ensure_future(watch_room(world, count, ensemble, crowded))]
    await asyncio.sleep(world.chance.uniform(0.0, 6.0))
    seconds = world.chance.uniform(10.0, 40.0)
    faults = [person(world, wanted, seconds)]
    if not loop.plan.calm:
        faults.append(cluster.disturb(seconds))
        if world.chance.random() < 0.7:
            faults.append(disturb(world, ("writer", "reader", "ar1", "ar2"), seconds, down_max=1))
        else:
            world.metadata.unknown_chance = world.chance.choice((0.0, 0.02, 0.1))
    await asyncio.gather(*faults)
    await Faults(world, Cast(sorted(world.bookies), ())).heal()
    await asyncio.gather(*feeding)
    for ledger, history in ledgers.items():
        await recover(world, reading, ledger, history, "reader")
    guards.append(asyncio.ensure_future(watch_replacements(world, ledgers, early)))
    drains = Drains(SimMetadataStore(world.metadata))
    for bookie in wanted:
        await insist(lambda bookie=bookie: drains.wish(bookie, Wish.DECOMMISSION, world.clock.now_ms()), seconds=60)
    gone = await until_emptied(world, wanted, count - ensemble, ledgers)
    await discard(world, gone)
    for bookie in set(wanted) - gone:
        await drains.wish(bookie, Wish.CANCEL, world.clock.now_ms())
    await given_back(world, set(wanted) - gone)
    await settle(world, ledgers)
    for guard in guards:
        if guard.done():
            guard.result()
        guard.cancel()
    if crowded or early:
        raise HistoryError(f"too many leave, or a bookie took a place too early: {crowded} {early}")
    for ledger, history in ledgers.items():
        reader = await world.on(reading, reading.ledgers.open_ledger(ledger, recover=False))
        await world.on(reading, read_all(reader, history, "after"))
        history.check()
    assert all(layout.cookie_path(bookie) not in world.metadata.nodes for bookie in gone)
    return ledgers
