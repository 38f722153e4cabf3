"""One managed ledger over several owners: killed, closed, or cut off and still alive when the next one takes over.

Every owner appends and consumes by one durable cursor with holes, over three bookies that crash. At the end the log
holds every acknowledged append once, in order, and the cursor neither skips nor resurrects.
"""

import asyncio
from dataclasses import dataclass

from quire_bookie.errors import QuireError
from quire_broker.managed_ledger import EARLIEST, Cursor, ManagedLedger, ManagedLedgerFactory, Position, StoredEntry
from quire_broker.managed_ledger.settings import UNLIMITED, ManagedLedgerSettings
from tests.sim.history import LogHistory
from tests.sim.loop import SimLoop
from tests.sim.world import SimChance, SimClient, World, insist

NAME = "public/default/persistent/simulated"
CURSOR = "subscription"


@dataclass(slots=True)
class Owner:
    """A broker process as far as managed ledgers go."""

    client: SimClient
    factory: ManagedLedgerFactory
    ledger: ManagedLedger
    cursor: Cursor


async def take_over(world: World, number: int, settings: ManagedLedgerSettings) -> Owner:
    """A new process opens the managed ledger, as often as it needs."""
    client = await world.start_client(f"owner{number}")
    chance = SimChance(world.chance.randrange(1 << 30))

    async def build() -> ManagedLedgerFactory:
        return ManagedLedgerFactory(client.ledgers, client.session, settings, world.clock, chance)

    factory = await world.on(client, build())
    ledger: ManagedLedger = await insist(lambda: world.on(client, factory.open(NAME)), seconds=600)
    cursor: Cursor = await insist(lambda: world.on(client, ledger.open_cursor(CURSOR, EARLIEST)), seconds=600)
    return Owner(client, factory, ledger, cursor)


async def produce(world: World, owner: Owner, history: LogHistory, number: int, end_s: float) -> None:
    """Append numbered entries until the end, or until an append fails."""
    failed = asyncio.Event()
    count = 0

    def append(payload: bytes) -> None:
        def done(position: Position | None, error: QuireError | None) -> None:
            if position is None:
                failed.set()
            else:
                history.on_appended(payload, (position.ledger_id, position.entry_id))

        history.on_append(payload)
        owner.ledger.append(payload, done)

    while world.loop.time() < end_s and not failed.is_set():
        for _ in range(world.chance.choice((1, 1, 3, 10))):
            append(b"%d-%d:" % (number, count) + bytes(world.chance.choice((0, 100, 3000))))
            count += 1
        await asyncio.sleep(world.chance.uniform(0.0, 0.1))


async def consume(world: World, owner: Owner, history: LogHistory, end_s: float) -> None:
    """Read, acknowledge most of it in any order, flush now and then."""
    acked: set[bytes] = set()
    while world.loop.time() < end_s:
        try:
            entries = await owner.cursor.read(entries_max=20, bytes_max=1 << 20)
            chosen = [entry for entry in entries if world.chance.random() < 0.8]
            world.chance.shuffle(chosen)
            payloads = {bytes(entry.data) for entry in chosen}
            history.consumed |= payloads
            owner.cursor.acknowledge([entry.position for entry in chosen])
            acked |= payloads  # only now: a closed cursor refuses
            if world.chance.random() < 0.2:
                settled = set(acked)
                await owner.cursor.flush()
                history.consumed_durably |= settled
        except QuireError:
            await asyncio.sleep(0.2)
        await asyncio.sleep(world.chance.uniform(0.0, 0.2))


async def leave(world: World, owner: Owner, history: LogHistory) -> None:
    """The owner goes: killed, closed in order, or cut off from the metadata and still alive."""
    manner = world.chance.randrange(3)
    if manner == 0:
        world.kill_client(owner.client)
    elif manner == 1:
        try:
            await world.on(owner.client, owner.ledger.close())
        except QuireError:
            return  # a close that fails is a crash to the next owner
    else:
        owner.client.session.cut = True


async def check(world: World, history: LogHistory, settings: ManagedLedgerSettings) -> None:
    """Read the whole log and what the cursor still delivers, as a last owner."""
    owner = await take_over(world, 99, settings)

    async def whole() -> list[StoredEntry]:
        found: list[StoredEntry] = []
        position = owner.ledger.first_position()
        while entries := await owner.ledger.read(position, entries_max=100, bytes_max=1 << 22):
            found += entries
            position = owner.ledger.next_position(entries[-1].position)
        return found

    found: list[StoredEntry] = await insist(lambda: world.on(owner.client, whole()), seconds=300)
    history.check_log([((entry.position[0], entry.position[1]), bytes(entry.data)) for entry in found])

    async def rest() -> set[bytes]:
        owner.cursor.rewind()
        delivered: set[bytes] = set()
        while entries := await owner.cursor.read(entries_max=100, bytes_max=1 << 22):
            delivered |= {bytes(entry.data) for entry in entries}
        return delivered

    delivered: set[bytes] = await insist(lambda: world.on(owner.client, rest()), seconds=300)
    history.check_cursor(delivered, [bytes(entry.data) for entry in found])


async def run(loop: SimLoop, seed: int) -> LogHistory:
    """One seed. Raises HistoryError or AssertionError when a promise is broken."""
    world = World(loop, seed)
    await world.start_bookies(3)
    settings = ManagedLedgerSettings(
        ledger_entries_max=world.chance.choice((15, 60, 300)),
        rollover_age_min_s=0.0,
        cursor_ledger_entries_max=world.chance.choice((5, 50)),
        retention_s=UNLIMITED,
        retention_bytes=UNLIMITED,
        tick_interval_s=0.3,
    )
    history = LogHistory()
    for number in range(world.chance.randrange(2, 5)):
        owner = await take_over(world, number, settings)
        seconds = world.chance.uniform(1.0, 6.0)
        end_s = loop.time() + seconds
        work = [
            world.on(owner.client, produce(world, owner, history, number, end_s + 3.0)),
            world.on(owner.client, consume(world, owner, history, end_s)),
        ]
        world.metadata.unknown_chance = world.chance.choice((0.0, 0.0, 0.05))
        await world.disturb([f"owner{number}", "b1", "b2", "b3"], seconds, down_at_most=1)
        await leave(world, owner, history)
        if not owner.client.node.dead:
            await asyncio.sleep(world.chance.uniform(0.0, 5.0))
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)
    await world.heal()
    await check(world, history, settings)
    return history
