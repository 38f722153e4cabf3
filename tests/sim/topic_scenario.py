"""One managed ledger with several owners: killed, closed, or cut off and still alive when the next one takes over.

Every owner appends, and consumes through durable cursors with individually acknowledged ranges, partial batches and
seeks, on three bookies that crash and a metadata store that is unreachable for seconds; cursors are created and
deleted. At the end the log has every acknowledged append once, in order, except entries that were trimmed because every
cursor had consumed them. No cursor skips an entry or delivers a consumed one again.
"""

import asyncio
from dataclasses import dataclass

from quire_bookie.errors import QuireError
from quire_broker.managed_ledger import EARLIEST, Cursor, ManagedLedger, ManagedLedgerFactory, Position, StoredEntry
from quire_broker.settings.managed_ledger import UNLIMITED, ManagedLedgerSettings
from tests.sim.faults import disturb
from tests.sim.history import CursorHistory, LogHistory
from tests.sim.loop import SimLoop
from tests.sim.world import SimChance, SimClient, World, retry

NAME = "public/default/persistent/simulated"
CURSORS = ("subscription", "slow")
BATCH = 3  # messages per entry for partial acknowledgements


@dataclass(slots=True)
class Owner:
    """A broker process, reduced to its managed ledger."""

    client: SimClient
    factory: ManagedLedgerFactory
    ledger: ManagedLedger


async def take_over(world: World, number: int, settings: ManagedLedgerSettings, history: LogHistory) -> Owner:
    """Start a process that opens the managed ledger, with retries."""
    host = f"owner{number}"
    client = await world.start_client(host)
    chance = SimChance(world.chance.randrange(1 << 30))

    async def build() -> ManagedLedgerFactory:
        return ManagedLedgerFactory(client.ledgers, client.session, settings, world.clock_of(host), chance)

    factory = await world.on(client, build())
    ledger: ManagedLedger = await retry(lambda: world.on(client, factory.open(NAME)), seconds=600)
    for name in CURSORS:
        await retry(lambda name=name: world.on(client, open_cursor(ledger, name, history)), seconds=600)
    return Owner(client, factory, ledger)


async def open_cursor(ledger: ManagedLedger, name: str, history: LogHistory) -> Cursor:
    """Open the durable cursor of that name. A new one must deliver everything from the current begin of the log."""
    fresh = name not in history.cursors
    cursor = await ledger.open_cursor(name, EARLIEST)
    if fresh:
        history.cursors[name] = CursorHistory(ledger.first_position())
    return cursor


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


async def consume(
    world: World, ledger: ManagedLedger, name: str, history: LogHistory, end_s: float, share: float
) -> None:
    """Read, acknowledge some entries in any order and way, seek, and sometimes flush."""
    cursor, known, chance = ledger.cursors[name], history.cursors[name], world.chance
    acked: set[bytes] = set()
    while world.loop.time() < end_s:
        try:
            entries = await cursor.read(entries_max=20, bytes_max=1 << 20)
            for entry in entries:
                history.on_seen(bytes(entry.data), entry.position)
            chosen = [entry for entry in entries if chance.random() < share]
            chance.shuffle(chosen)
            acked |= acknowledge(world, cursor, known, chosen)
            if chance.random() < 0.2:
                settled = set(acked)
                await cursor.flush()
                known.durably |= settled
            elif chance.random() < 0.1:
                cursor.rewind()
            elif entries and chance.random() < 0.1:
                acked = await seek(ledger, cursor, history, chance.choice(entries).position, acked)
        except QuireError:
            await asyncio.sleep(0.2)
        await asyncio.sleep(chance.uniform(0.0, 0.2))


def acknowledge(world: World, cursor: Cursor, known: CursorHistory, chosen: list[StoredEntry]) -> set[bytes]:
    """Acknowledge whole entries and parts of batches. Returns the payloads acknowledged completely."""
    whole: list[StoredEntry] = []
    parts: list[StoredEntry] = []
    for entry in chosen:
        (parts if world.chance.random() < 0.2 else whole).append(entry)
    known.consumed |= {bytes(entry.data) for entry in whole}
    cursor.acknowledge([entry.position for entry in whole])
    acked = {bytes(entry.data) for entry in whole}  # recorded only now, as a closed cursor refuses
    for entry in parts:
        for message in world.chance.sample(range(BATCH), world.chance.randrange(1, BATCH + 1)):
            remaining = (cursor.ack_set(entry.position) or (2**BATCH - 1,))[0] & ~(1 << message)
            if not remaining:
                known.consumed.add(bytes(entry.data))
            if cursor.acknowledge_batch(entry.position, [2**BATCH - 1 - (1 << message)], BATCH):
                if bytes(entry.data) not in known.consumed:
                    raise AssertionError("a batch counts as acknowledged although some of its messages remain")
                acked.add(bytes(entry.data))
    return acked


async def seek(
    ledger: ManagedLedger, cursor: Cursor, history: LogHistory, position: Position, acked: set[bytes]
) -> set[bytes]:
    """Seek to the first entry, or to one just read. Returns the payloads that stay acknowledged."""
    target = position if len(acked) % 2 else ledger.first_position()
    history.on_seek(cursor.name, target)
    await cursor.reset(target)
    history.on_sought(cursor.name, target, ledger.first_position())
    return {payload for payload in acked if history.seen[payload] < target}


async def come_and_go(world: World, owner: Owner, history: LogHistory, number: int, end_s: float) -> None:
    """Create cursors, read a little, and delete or abandon them."""
    count = 0
    while world.loop.time() < end_s:
        name = f"passing{number}-{count}"
        count += 1
        try:
            await open_cursor(owner.ledger, name, history)
            stays_s = world.chance.uniform(0.1, 2.0)
            await consume(world, owner.ledger, name, history, world.loop.time() + stays_s, 0.5)
            if world.chance.random() < 0.8:
                history.cursors[name].gone = True
                await owner.ledger.delete_cursor(name)
        except QuireError:
            await asyncio.sleep(0.5)
        await asyncio.sleep(world.chance.uniform(0.2, 2.0))


async def leave(world: World, owner: Owner, history: LogHistory) -> None:
    """End the owner: kill it, close it, or cut it off from the metadata store while it stays alive."""
    manner = world.chance.randrange(3)
    if manner == 0:
        world.kill_client(owner.client)
    elif manner == 1:
        try:
            await world.on(owner.client, owner.ledger.close())
        except QuireError:
            return  # to the next owner a failed close is a crash
    else:
        owner.client.session.cut = True


async def check(world: World, history: LogHistory, settings: ManagedLedgerSettings) -> None:
    """As a last owner, read the whole log and the undelivered entries of the cursors, and check them."""
    owner = await take_over(world, 99, settings, history)

    found: list[StoredEntry] = await retry(lambda: world.on(owner.client, read_whole(owner.ledger)), seconds=300)
    history.check_log([((entry.position[0], entry.position[1]), bytes(entry.data)) for entry in found])

    for name, known in history.cursors.items():
        if not known.gone:
            cursor = owner.ledger.cursors[name]
            rest = await retry(lambda cursor=cursor: world.on(owner.client, read_rest(cursor)), seconds=300)
            history.check_cursor(name, {bytes(entry.data) for entry in rest})


async def read_whole(ledger: ManagedLedger) -> list[StoredEntry]:
    """Return all entries."""
    found: list[StoredEntry] = []
    position = ledger.first_position()
    while entries := await ledger.read(position, entries_max=100, bytes_max=1 << 22):
        found += entries
        position = ledger.next_position(entries[-1].position)
    return found


async def read_rest(cursor: Cursor) -> list[StoredEntry]:
    """Return all entries that the cursor still delivers."""
    cursor.rewind()
    found: list[StoredEntry] = []
    while entries := await cursor.read(entries_max=100, bytes_max=1 << 22):
        found += entries
    return found


def drawn_settings(world: World, *, trims: bool) -> ManagedLedgerSettings:
    """Return settings with small ledgers, of sizes by chance. `trims`: consumed ledgers are deleted at once."""
    kept = 0 if trims else UNLIMITED
    return ManagedLedgerSettings(
        ledger_entries_max=world.chance.choice((15, 60, 300)),
        rollover_age_min_s=0.0,
        cursor_ledger_entries_max=world.chance.choice((5, 50)),
        retention_s=kept,
        retention_bytes=kept,
        trim_interval_s=world.chance.choice((0.3, 3.0)),
        tick_interval_s=0.3,
    )


async def run(loop: SimLoop, seed: int) -> LogHistory:
    """Run one seed. Raises HistoryError or AssertionError if a guarantee is violated."""
    world = World(loop, seed)
    await world.start_bookies(3)
    history = LogHistory(trims=world.chance.random() < 0.6)
    settings = drawn_settings(world, trims=history.trims)
    for number in range(world.chance.randrange(2, 5)):
        owner = await take_over(world, number, settings, history)
        seconds = world.chance.uniform(1.0, 6.0)
        end_s = loop.time() + seconds
        work = [
            world.on(owner.client, produce(world, owner, history, number, end_s + 3.0)),
            *(
                world.on(owner.client, consume(world, owner.ledger, name, history, end_s, share))
                for name, share in zip(CURSORS, (0.9, 0.7), strict=True)
            ),
            world.on(owner.client, come_and_go(world, owner, history, number, end_s)),
        ]
        await disturb(world, (f"owner{number}",), seconds, down_max=1)
        await leave(world, owner, history)
        if not owner.client.node.dead:
            await asyncio.sleep(world.chance.uniform(0.0, 5.0))
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)
    await check(world, history, settings)
    return history
