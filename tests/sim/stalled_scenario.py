"""Peers stall in a frame, send it byte by byte, or request much and never read, while other clients write and read.

The bookies have a small budget for the memory of connections, and there are far more such peers than fit. At every
moment the connections of a bookie hold at most the budget plus a quarter, counted in the connections themselves.
Meanwhile a writer's adds and a reader's reads complete within seconds, and at most one of their connections is closed,
at the beginning. When the peers are gone, no memory is held.
"""

import asyncio
from functools import partial
from typing import cast

from quire_bookie.limits import KIB
from quire_bookie.model import EntryId, LedgerId
from quire_bookie.settings.memory import MemorySettings
from quire_bookie.settings.service import ServiceSettings
from tests.sim.history import LedgerHistory
from tests.sim.ledger_scenario import read_all, recover, write
from tests.sim.loop import Node, SimLoop
from tests.sim.world import BOOKIE_PORT, SimBookie, SimClient, World
from tests.support.hostile_peers import begun_add, reads

FRAME_BYTES = 64 * KIB
BUDGET_BYTES = 8 * FRAME_BYTES
PEERS = 20
"""Peers of each bookie: their frames or requests together are several times the budget."""
READ_ENTRIES = 60
READ_ENTRY_BYTES = 20 * KIB
SECONDS = 30.0
PAUSE_S_MAX = 1.0
"""Until a peer that was closed reconnects: less than other connections may wait."""
SERVED_WITHIN_S = 18.0
"""Time limit of the writer's entries and the reader's loops: several times the expected delay under pressure."""
BURST_S = 1.0
"""Duration of the initial burst: all peers begin at once, and more than the hard bound arrives before sockets pause.
Then the connection with the largest partial frame is closed, even the writer's. Later the writer and the reader must
not lose a connection."""


class Peer(asyncio.Protocol):
    """Sends `data`, and reads responses or not."""

    def __init__(self, data: bytes, takes_answers: bool) -> None:
        self._data, self._takes_answers = data, takes_answers
        self.lost = asyncio.Event()
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send everything."""
        self.transport = cast(asyncio.Transport, transport)
        if not self._takes_answers:
            self.transport.pause_reading()
        self.transport.write(self._data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the bookie closed the connection."""
        self.lost.set()


def _same(peer: Peer) -> Peer:
    return peer


async def stall(world: World, host: str, ledger: LedgerId) -> None:
    """Run one stalling peer of a bookie, which reconnects each time that it is closed."""
    chance = world.chance
    while True:
        kind = chance.choice(("frame", "drip", "reader"))
        if kind == "reader":
            data = reads(ledger, [chance.randrange(READ_ENTRIES) for _ in range(40)])
        else:
            announced = chance.randrange(FRAME_BYTES // 2, FRAME_BYTES - 100)
            data = begun_add(chance.randrange(100, announced), announced)
        peer = Peer(data, takes_answers=kind != "reader")
        try:
            await asyncio.get_running_loop().create_connection(partial(_same, peer), host, BOOKIE_PORT)
        except OSError:
            await asyncio.sleep(0.5)
            continue
        while not peer.lost.is_set():
            if kind == "drip":
                peer.transport.write(b"x")
                await asyncio.sleep(1.0)
            else:
                await peer.lost.wait()
        await asyncio.sleep(chance.uniform(0.0, PAUSE_S_MAX))


def held_bytes(place: SimBookie) -> int:
    """Count the bytes that the connections of a bookie hold, without the budget under test."""
    assert place.running is not None
    connections = place.running._parts.open_connections
    return sum(each._codec.held_bytes + each.unsent_bytes() for each in connections)


async def watch(world: World, history: LedgerHistory, trouble: list[str]) -> None:
    """Record in `trouble` if the bound is exceeded or the writer makes no progress."""
    confirmed, since_s = history.confirmed_up_to, world.loop.time()
    while True:
        await asyncio.sleep(0.1)
        for host, place in sorted(world.bookies.items()):
            held = held_bytes(place)
            if held > BUDGET_BYTES + BUDGET_BYTES // 4 + FRAME_BYTES:
                trouble.append(f"{host}: its connections hold {held} bytes of {BUDGET_BYTES}")
                return
        if history.confirmed_up_to != confirmed:
            confirmed, since_s = history.confirmed_up_to, world.loop.time()
        elif world.loop.time() - since_s > SERVED_WITHIN_S:
            trouble.append(f"the writer got no further than entry {confirmed} for {SERVED_WITHIN_S} s")
            return


async def read_again(client: SimClient, ledger: LedgerId, history: LedgerHistory, trouble: list[str]) -> None:
    """Read a closed ledger repeatedly; each time must end within the limit."""
    try:
        while True:
            async with asyncio.timeout(SERVED_WITHIN_S):
                reader = await client.ledgers.open_ledger(ledger, recover=False)
                await read_all(reader, history, "reader")
            await asyncio.sleep(0.2)
    except TimeoutError:
        trouble.append(f"a reader was not served for {SERVED_WITHIN_S} s")


async def until_nothing_is_held(world: World, nodes: list[Node]) -> None:
    """Kill the peers, and check that no memory stays counted."""
    for node in nodes:
        world.loop.kill(node)
    await asyncio.sleep(60.0)
    for host, place in sorted(world.bookies.items()):
        assert place.running is not None
        used = place.running.memory.used_bytes
        assert not used, f"{host}: {used} bytes are counted, but no connection holds any"


async def run(loop: SimLoop, seed: int) -> list[LedgerHistory]:
    """Run one seed."""
    world = World(loop, seed)
    memory = MemorySettings(BUDGET_BYTES, stalled_s=world.chance.choice((5.0, 60.0)), slow_s=60.0, pressure_s=2.0)
    service = ServiceSettings(
        frame_bytes_max=FRAME_BYTES,
        batch_read_bytes_max=FRAME_BYTES // 2,
        socket_write_high_bytes=64 * KIB,
        memory=memory,
    )
    world.changes_of = {f"b{number}": {"service": service} for number in range(1, 4)}
    await world.start_bookies(3)
    writing, reading = [
        await world.start_client(host, add_timeout_s=30.0, read_timeout_s=30.0) for host in ("writer", "reader")
    ]
    closed, history = LedgerHistory(), LedgerHistory()
    ledger = await world.on(writing, _written(writing, closed))
    writer = await world.on(writing, writing.ledgers.create_ledger())
    trouble: list[str] = []
    end_s = loop.time() + SECONDS
    feeding = world.on(writing, write(world, writing, writer, history, end_s, pause_s_max=0.3))
    looking = [
        asyncio.ensure_future(watch(world, history, trouble)),
        world.on(reading, read_again(reading, ledger, closed, trouble)),
    ]
    await asyncio.sleep(1.0)
    nodes = []
    for host in sorted(world.bookies):
        for number in range(0 if loop.plan.calm else PEERS):
            node = loop.start_node(f"{host}-peer{number}")
            nodes.append(node)
            loop.run_on(node, stall(world, host, ledger))
    await asyncio.sleep(BURST_S)
    early = [_losses(client) for client in (writing, reading)]
    assert max(early) <= 1, f"{early} connections of the writer and the reader were closed at the beginning"
    await feeding
    for task in looking:
        task.cancel()
    await asyncio.gather(*looking, return_exceptions=True)
    if trouble:
        raise AssertionError(trouble[0])
    losses = [_losses(client) for client in (writing, reading)]
    assert losses == early, f"{losses} connections of the writer and the reader, which never stall, were closed"
    await until_nothing_is_held(world, nodes)
    assert not history.failed, "the writer failed, although there were only stalling peers"
    await recover(world, reading, writer.ledger_id, history, "reader")
    history.check()
    return [closed, history]


def _losses(client: SimClient) -> int:
    """Return how many connections of a client have ended."""
    return sum(connection.stats.losses for connection in client.ledgers._pool.connections)


async def _written(client: SimClient, history: LedgerHistory) -> LedgerId:
    """Write the ledger that peers request and do not read."""
    writer = await client.ledgers.create_ledger()
    payloads = [b"%d:" % number + bytes(READ_ENTRY_BYTES) for number in range(READ_ENTRIES)]
    history.on_submit(EntryId(0), payloads)
    for payload in payloads:
        history.on_confirm(await writer.append(payload))
    await writer.close()
    history.on_close(writer.last_add_confirmed)
    return writer.ledger_id
