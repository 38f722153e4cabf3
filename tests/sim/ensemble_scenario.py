"""Five bookies, a writer that replaces lost ones, openers that recover: nothing confirmed is lost, holes are known.

Faults come one by one, so that the writer has something to replace, and in bursts: bookies crash and return, are cut
off from the writer alone, hang up, stall; the metadata store goes away and leaves outcomes unknown. In half of the runs
the writer closes the ledger itself, and then every replica that lacks a confirmed entry must be marked. In the others
it is fenced or dies, and two openers must agree.
"""

import asyncio

from quire_bookie.client import LedgerWriter
from quire_bookie.client.bookie_link import Purpose
from quire_bookie.errors import LedgerError, NoSuchEntryError, NoSuchLedgerError
from quire_bookie.metadata.under_replication import UnderReplication
from quire_bookie.model import BookieId, Buffer, EntryId, LedgerId, LedgerMetadata
from quire_bookie.quorum.write_set import write_set
from tests.sim.history import HistoryError, LedgerHistory
from tests.sim.ledger_scenario import read_all, take_over, write
from tests.sim.loop import SimLoop
from tests.sim.world import SimClient, World, insist

_QUORUMS = ((3, 3, 2), (3, 3, 2), (3, 2, 2), (3, 2, 1), (3, 3, 3), (4, 3, 2), (2, 2, 1), (3, 3, 1))


async def run(loop: SimLoop, seed: int) -> LedgerHistory:
    """One seed. Raises HistoryError or AssertionError when a promise is broken."""
    world = World(loop, seed)
    chance = world.chance
    await world.start_bookies(chance.choice((3, 4, 5, 5, 6)))
    slow = {
        "slow_replica_bytes_max": chance.choice((1 << 14, 1 << 24)),
        "slow_replica_grace_s": chance.choice((0.05, 2.0)),
        "slow_replica_s": chance.choice((0.5, 10.0)),
        "suspect_s": chance.choice((2.0, 30.0)),
        "delay_ensemble_change": chance.random() < 0.15,
        "ensemble_changes_max": chance.choice((1000, 1000, 3)),
    }
    writing = await world.start_client("writer", **slow)
    opening, other = [await world.start_client(host, **slow) for host in ("opener", "other")]
    e, w, a = chance.choice([q for q in _QUORUMS if q[0] <= len(world.bookies)])
    created = writing.ledgers.create_ledger(ensemble_size=e, write_quorum=w, ack_quorum=a)
    writer = await world.on(writing, created)
    history = LedgerHistory()
    seconds = chance.uniform(3.0, 25.0)
    feeding = world.on(writing, write(world, writing, writer, history, loop.time() + seconds))
    faults = asyncio.ensure_future(_disturb(world, seconds))
    if chance.random() < 0.5:
        await faults
        await feeding
        await _close(world, writing, writer, history)
    else:
        await asyncio.sleep(chance.uniform(0.5, seconds))
        openers = {"opener": opening, "other": other}
        await take_over(world, writing, openers, writer.ledger_id, history, feeding, faults)
    reader = await insist(
        lambda: world.on(opening, opening.ledgers.open_ledger(writer.ledger_id, recover=True)), seconds=300
    )
    history.on_close(reader.last_add_confirmed)
    await insist(lambda: world.on(opening, read_all(reader, history, "opener")), seconds=300)
    history.check()
    return history


async def _disturb(world: World, seconds: float) -> None:
    """Faults, now one, now several at once; then heal."""
    loop, chance = world.loop, world.chance
    end = loop.time() + seconds
    calm_s = chance.choice((0.1, 1.0, 4.0))
    while loop.time() < end:
        await asyncio.sleep(chance.uniform(0.01, calm_s))
        for _ in range(chance.choice((1, 1, 1, 2, 3))):
            await _fault(world)
    await world.heal()


async def _fault(world: World) -> None:
    chance, network = world.chance, world.loop.network
    down = [host for host, place in world.bookies.items() if place.node is None]
    up = [host for host in world.bookies if host not in down]
    match chance.randrange(10):
        case 0 | 1 if len(down) < 2:
            world.crash_bookie(chance.choice(up), chance.choice(("none", "all", "random")))
        case 2 | 3 | 4 if down:
            world.loop.create_task(world.start_bookie(chance.choice(down)))
        case 5:
            network.partition(chance.choice(sorted(world.bookies)), chance.choice(("writer", "writer", "opener")))
        case 6:
            network.heal()
        case 7:
            network.break_connections(chance.choice(sorted(world.bookies)))
        case 8:
            network.stall_chance = chance.choice((0.0, 0.0, 0.02, 0.1))
        case 9 if world.starting == 0:
            if chance.random() < 0.5:
                world.metadata.unknown_chance = chance.choice((0.0, 0.3, 0.9))
            else:
                world.metadata.away = not world.metadata.away


async def _close(world: World, client: SimClient, writer: LedgerWriter, history: LedgerHistory) -> None:
    """The writer closes the ledger, then whatever a replica lacks must be marked."""

    async def attempt() -> LedgerMetadata:
        try:
            return await world.on(client, writer.close())
        except LedgerError as error:
            raise AssertionError(f"nobody else touched the ledger, yet its close failed: {error}") from error

    metadata: LedgerMetadata = await insist(attempt, seconds=300)
    history.on_close(metadata.last_entry)
    await asyncio.sleep(60)  # the last replicas, and the marks
    marks = UnderReplication(client.session, world.clock)
    mark = await insist(lambda: world.on(client, marks.read(writer.ledger_id)), seconds=300)
    marked: set[BookieId] = set() if mark is None else set(mark.bookies)
    for entry in range(metadata.last_entry + 1):
        ensemble = metadata.ensemble_of(EntryId(entry))
        held = 0
        for position in write_set(EntryId(entry), metadata.ensemble_size, metadata.write_quorum):
            bookie = ensemble[position]
            if await world.on(client, _holds(client, writer.ledger_id, bookie, EntryId(entry))):
                held += 1
            elif bookie not in marked:
                raise HistoryError(f"entry {entry} is not on {bookie}, and nobody was told; marked: {sorted(marked)}")
        if held < metadata.ack_quorum:
            raise HistoryError(f"entry {entry} has {held} copies of {metadata.ack_quorum} that were acknowledged")


async def _holds(client: SimClient, ledger: LedgerId, bookie: BookieId, entry: EntryId) -> bool:
    """Asked of the bookie itself, until it answers one way or the other."""

    async def ask() -> bool:
        answered: asyncio.Future[Buffer | LedgerError] = asyncio.get_running_loop().create_future()
        link = client.ledgers._pool.link(bookie, Purpose.READ)
        link.read(ledger, entry, answered.set_result)
        answer = await answered
        if isinstance(answer, NoSuchEntryError | NoSuchLedgerError):
            return False
        if isinstance(answer, LedgerError):
            raise answer
        return True

    found: bool = await insist(ask, seconds=120)
    return found
