"""Three bookies, a writer, recovering openers: no crash loses a confirmed entry, and all agree on the last entry."""

import asyncio
from collections.abc import Mapping

from quire_bookie.client import LedgerReader, LedgerWriter
from quire_bookie.errors import LedgerError, QuireError
from quire_bookie.model import EntryId, LedgerId
from tests.sim.faults import disturb
from tests.sim.history import LedgerHistory
from tests.sim.loop import SimLoop
from tests.sim.world import SimClient, World, retry

QUORUMS = ((3, 3, 2), (3, 2, 2), (3, 3, 3), (2, 2, 1), (3, 2, 1))


class Listener:
    """Passes the callbacks of a ledger's writer to its history."""

    def __init__(self, history: LedgerHistory) -> None:
        self._history = history
        self.stopped = asyncio.Event()

    def on_confirmed(self, up_to: EntryId) -> None:
        """See WriterListener."""
        self._history.on_confirm(up_to)

    def on_failed(self, error: LedgerError) -> None:
        """See WriterListener."""
        self._history.failed = True
        self.stopped.set()


async def write(
    world: World,
    client: SimClient,
    writer: LedgerWriter,
    history: LedgerHistory,
    end_s: float,
    *,
    pause_s_max: float = 0.05,
) -> None:
    """Submit entries of random sizes in random pieces until the end or a failure."""
    listener = Listener(history)
    writer.listener = listener
    count = 0
    while world.loop.time() < end_s and not listener.stopped.is_set():
        payloads = []
        for _ in range(world.chance.choice((1, 1, 2, 5, 20))):
            payloads.append(b"%d:" % count + bytes(world.chance.choice((0, 10, 700, 9000))))
            count += 1
        try:
            first = writer.submit(payloads)
        except QuireError:
            return
        history.on_submit(first, payloads)
        await asyncio.sleep(world.chance.uniform(0.0, pause_s_max))


async def read_all(reader: LedgerReader, history: LedgerHistory, who: str) -> None:
    """Read everything up to the reader's LAC, in pieces."""
    position = 0
    while position <= reader.last_add_confirmed:
        last = EntryId(min(position + 49, reader.last_add_confirmed))
        entries = await reader.read(EntryId(position), last)
        if not entries:
            raise AssertionError(f"{who} got nothing for {position}..{last}")
        history.on_read(who, position, [bytes(entry.payload) for entry in entries])
        position += len(entries)


async def run(loop: SimLoop, seed: int) -> LedgerHistory:
    """Run one seed. Raises HistoryError or AssertionError if a guarantee is violated."""
    world = World(loop, seed)
    await world.start_bookies(3)
    writing, opening, other = [await world.start_client(host) for host in ("writer", "opener", "other")]
    e, w, a = world.chance.choice(QUORUMS)
    created = writing.ledgers.create_ledger(ensemble_size=e, write_quorum=w, ack_quorum=a)
    writer = await world.on(writing, created)
    history = LedgerHistory()
    seconds = world.chance.uniform(2.0, 12.0)
    begun = loop.time()
    feeding = world.on(writing, write(world, writing, writer, history, begun + seconds))
    # With Qa = Qw = 1 a crash may delay an acknowledged entry but never lose it, as the entry was synced.
    faults = asyncio.ensure_future(disturb(world, ("writer", "opener", "other"), seconds, down_max=2))
    await asyncio.sleep(world.chance.uniform(0.5, seconds))
    openers = {"opener": opening, "other": other}
    await take_over(world, writing, openers, writer.ledger_id, history, feeding, faults)
    history.check()
    return history


async def take_over(
    world: World,
    writing: SimClient,
    openers: Mapping[str, SimClient],
    ledger: LedgerId,
    history: LedgerHistory,
    feeding: "asyncio.Task[None]",
    faults: "asyncio.Future[None]",
) -> None:
    """Kill the writer or let it run; all openers recover its ledger at once, amid the faults."""
    if world.chance.random() < 0.3:
        world.kill_client(writing)
    recoveries = [
        asyncio.ensure_future(recover(world, client, ledger, history, name)) for name, client in openers.items()
    ]
    await faults
    await asyncio.gather(*recoveries)
    if not writing.node.dead:
        await feeding
        await asyncio.sleep(30)  # responses still in flight must not confirm anything


async def recover(world: World, client: SimClient, ledger: LedgerId, history: LedgerHistory, who: str) -> None:
    """Recover the ledger, with retries, then read all of it."""

    async def attempt() -> LedgerReader:
        opened: LedgerReader = await world.on(client, client.ledgers.open_ledger(ledger, recover=True))
        return opened

    reader = await retry(attempt, seconds=300)
    history.on_close(reader.last_add_confirmed)
    await retry(lambda: world.on(client, read_all(reader, history, who)), seconds=300)
