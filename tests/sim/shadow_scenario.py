"""A managed ledger and a shadow of it, in processes that are replaced: killed, closed, or cut off and alive.

The source's owners append, and trim what its only cursor has consumed. The shadow's owners read: one reader from the
first entry on, one durable cursor that acknowledges some entries. Bookies crash, and the metadata store is away for
seconds. A reader of the shadow gets each entry once, in order, at the position at which the source has it, and skips
none that the source still lists. When all faults are over, the shadow soon has the source's last entry, and exactly
its entries.
"""

import asyncio
from bisect import bisect_right, insort
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any

from quire_bookie.errors import QuireError
from quire_broker.managed_ledger import EARLIEST, ManagedLedger, ManagedLedgerFactory, Position, StoredEntry
from quire_broker.managed_ledger.list_store import node_path
from quire_broker.managed_ledger.nodes.node_codec import SOURCE_PROPERTY, decode_list
from quire_broker.settings.managed_ledger import ManagedLedgerSettings
from tests.sim.faults import disturb
from tests.sim.history import HistoryError, LogHistory
from tests.sim.loop import SimLoop
from tests.sim.topic_scenario import drawn_settings, open_cursor, read_rest, read_whole
from tests.sim.world import SimChance, SimClient, World, retry

SOURCE = "public/default/persistent/source"
SHADOW = "public/default/persistent/shadow"
CURSOR = "subscription"
CAUGHT_UP_S = 60.0
"""The shadow has the last entry of its source this long after the last fault, although nothing more is appended."""


class ShadowHistory(LogHistory):
    """What the source acknowledged, and what readers of the shadow may get of it."""

    def __init__(self, world: World, *, trims: bool) -> None:
        super().__init__(trims=trims)
        self._world = world
        self._order: list[tuple[tuple[int, int], bytes]] = []
        """The acknowledged entries by position."""

    def on_appended(self, payload: bytes, position: tuple[int, int]) -> None:
        """See LogHistory."""
        super().on_appended(payload, position)
        insort(self._order, (position, payload))

    def listed(self) -> set[int]:
        """Return the ledgers that the source has not trimmed."""
        node = self._world.metadata.nodes.get(node_path(SOURCE))
        return set() if node is None else {record.ledger_id for record in decode_list(node.value).ledgers}

    def check_skipped(self, who: str, after: tuple[int, int], before: tuple[int, int], consumed: set[bytes]) -> None:
        """Check that nothing between two positions was skipped, except consumed entries and trimmed ledgers."""
        listed = self.listed()
        for position, payload in self._order[bisect_right(self._order, (after, b"\xff")) :]:
            if position >= before:
                return
            if position[0] in listed and payload not in consumed:
                raise HistoryError(f"{who} got the entry at {before} after {after} and skipped {payload[:20]!r}")

    def on_shown(self, who: str, entries: Iterable[StoredEntry], after: Position, consumed: set[bytes]) -> Position:
        """Check what a reader got next, and return the position after which it continues."""
        for entry in entries:
            payload, position = bytes(entry.data), entry.position
            if payload not in self.attempted:
                raise HistoryError(f"{who} got {payload[:20]!r} at {position}, which was never appended")
            if position <= after:
                raise HistoryError(f"{who} got the entry at {position} after that at {after}")
            self.check_skipped(who, after, position, consumed)
            self.on_seen(payload, position)
            after = position
        return after


@dataclass(slots=True)
class Process:
    """A broker process, reduced to one managed ledger."""

    client: SimClient
    ledger: ManagedLedger
    tasks: "list[asyncio.Task[None]]" = field(default_factory=list)


class Run:
    """One run: the present owners of the source and of the shadow."""

    def __init__(self, world: World, settings: ManagedLedgerSettings, history: ShadowHistory) -> None:
        self.world, self.history = world, history
        self._settings = settings
        self._started = 0
        self._appended = 0
        self.source: Process | None = None
        self.shadow: Process | None = None

    # ---- processes
    async def _process(self, host: str, name: str, properties: dict[str, str]) -> Process:
        """Start a process that opens the managed ledger, with retries."""
        world = self.world
        client = await world.start_client(host)
        chance = SimChance(world.chance.randrange(1 << 30))

        async def build() -> ManagedLedgerFactory:
            return ManagedLedgerFactory(client.ledgers, client.session, self._settings, world.clock_of(host), chance)

        factory = await world.on(client, build())

        async def opened() -> ManagedLedger:
            if not await factory.exists(name):
                await factory.create(name, properties)
            return await factory.open(name, create=False)

        return Process(client, await retry(lambda: world.on(client, opened()), seconds=600))

    def _work(self, process: Process, *work: Coroutine[Any, Any, None]) -> None:
        process.tasks += [self.world.on(process.client, each) for each in work]

    async def next_source(self) -> None:
        """Replace the owner of the source."""
        await self.leave(self.source)
        self._started += 1
        self.source = found = await self._process(f"source{self._started}", SOURCE, {})

        async def prepare() -> None:
            await found.ledger.open_cursor(CURSOR, EARLIEST)
            found.ledger.tell_lacs(active=True)

        await retry(lambda: self.world.on(found.client, prepare()), seconds=600)
        self._work(found, self._produce(found), self._consume(found))

    async def next_shadow(self) -> None:
        """Replace the owner of the shadow."""
        await self.leave(self.shadow)
        self._started += 1
        properties = {SOURCE_PROPERTY: "persistent://public/default/source"}
        self.shadow = found = await self._process(f"shadow{self._started}", SHADOW, properties)
        ledger, history = found.ledger, self.history
        await retry(lambda: self.world.on(found.client, open_cursor(ledger, CURSOR, history)), seconds=600)
        self._work(found, self._read(found), self._subscribe(found))

    async def leave(self, process: Process | None) -> None:
        """End an owner: kill it, close it, or cut it off from the metadata store while it stays alive."""
        if process is None:
            return
        manner = self.world.chance.randrange(3)
        if manner == 0:
            self.world.kill_client(process.client)
        elif manner == 1:
            try:
                await self.world.on(process.client, process.ledger.close())
            except QuireError as error:
                self.world.loop.note(f"to the next owner a failed close is a crash: {error}")
        else:
            process.client.session.cut = True
            self.world.loop.call_later(self.world.chance.uniform(0.0, 5.0), self._stop, process)
            return
        self._stop(process)

    @staticmethod
    def _stop(process: Process) -> None:
        for task in process.tasks:
            task.cancel()

    # ---- the source
    def append(self, process: Process) -> "asyncio.Future[Position]":
        """Append one more entry. The future fails if the entry is not acknowledged."""
        payload = b"%d:" % self._appended + bytes(self.world.chance.choice((0, 100, 3000)))
        self._appended += 1
        answered: asyncio.Future[Position] = asyncio.get_running_loop().create_future()
        answered.add_done_callback(lambda found: found.cancelled() or found.exception())  # most are not awaited

        def done(position: Position | None, error: QuireError | None) -> None:
            if position is not None:
                self.history.on_appended(payload, position)
            if answered.done():
                return
            if position is not None:
                answered.set_result(position)
            else:
                answered.set_exception(error or AssertionError("neither a position nor an error"))

        self.history.on_append(payload)
        process.ledger.append(payload, done)
        return answered

    async def _produce(self, process: Process) -> None:
        """Append until an append fails."""
        chance, answers = self.world.chance, list[asyncio.Future[Position]]()
        while not any(answer.done() and answer.exception() for answer in answers):
            answers = [answer for answer in answers if not answer.done()]
            answers += [self.append(process) for _ in range(chance.choice((1, 1, 3, 10)))]
            await asyncio.sleep(chance.uniform(0.0, 0.1) if chance.random() < 0.95 else 2.0)

    async def _consume(self, process: Process) -> None:
        """Consume everything, so that the source may trim its ledgers."""
        cursor = process.ledger.cursors[CURSOR]
        while True:
            try:
                entries = await cursor.read(entries_max=100, bytes_max=1 << 20)
                cursor.acknowledge([entry.position for entry in entries])
            except QuireError:
                await asyncio.sleep(0.2)
            await asyncio.sleep(self.world.chance.uniform(0.0, 0.5))

    # ---- the shadow
    async def _read(self, process: Process) -> None:
        """Read all entries, from the first one on, without acknowledging."""
        cursor, after = process.ledger.open_reader_cursor("reader", EARLIEST), Position(-1, -1)
        while True:
            try:
                entries = await cursor.read(entries_max=20, bytes_max=1 << 20)
                after = self.history.on_shown("a reader", entries, after, set())
            except QuireError:
                await asyncio.sleep(0.2)
            await asyncio.sleep(self.world.chance.uniform(0.0, 0.1))

    async def _subscribe(self, process: Process) -> None:
        """Read by the durable cursor, acknowledge some entries, sometimes flush or begin again."""
        cursor, known, chance = process.ledger.cursors[CURSOR], self.history.cursors[CURSOR], self.world.chance
        after, acknowledged = Position(-1, -1), set[bytes]()
        while True:
            try:
                entries = await cursor.read(entries_max=20, bytes_max=1 << 20)
                after = self.history.on_shown("the subscription", entries, after, known.consumed)
                chosen = [entry for entry in entries if chance.random() < 0.8]
                cursor.acknowledge([entry.position for entry in chosen])
                known.consumed |= {bytes(entry.data) for entry in chosen}
                acknowledged |= {bytes(entry.data) for entry in chosen}
                if chance.random() < 0.2:
                    settled = set(acknowledged)
                    await cursor.flush()
                    known.durably |= settled
                elif chance.random() < 0.1:
                    cursor.rewind()
                    after = Position(-1, -1)
            except QuireError:
                await asyncio.sleep(0.2)
            await asyncio.sleep(chance.uniform(0.0, 0.2))

    # ---- the end
    async def end(self) -> None:
        """Check the shadow with its present owner, then with a new one, against a last owner of the source."""
        await self.next_source()
        source, shadow = self.source, self.shadow
        assert source is not None and shadow is not None
        self._stop(source)

        async def last() -> Position:
            return await self.append(source)

        await retry(lambda: self.world.on(source.client, last()), seconds=300)
        await self._caught_up(source, shadow)
        found = await self._whole(source)
        self.history.check_log(found)
        if await self._whole(shadow) != found:
            raise HistoryError("the shadow does not have the entries of its source")
        await self.next_shadow()
        assert self.shadow is not None
        self._stop(self.shadow)
        await self._caught_up(source, self.shadow)
        if await self._whole(self.shadow) != found:
            raise HistoryError("a new owner of the shadow does not have the entries of its source")
        await self._check_cursor(self.shadow, {position[0] for position, _ in found})

    async def _caught_up(self, source: Process, shadow: Process) -> None:
        end_s = self.world.loop.time() + CAUGHT_UP_S
        while shadow.ledger.last_confirmed != source.ledger.last_confirmed:
            if self.world.loop.time() > end_s:
                theirs, ours = source.ledger.last_confirmed, shadow.ledger.last_confirmed
                raise HistoryError(f"the shadow ends at {ours} and its source at {theirs}, after {CAUGHT_UP_S:.0f} s")
            await asyncio.sleep(0.1)

    async def _whole(self, process: Process) -> list[tuple[tuple[int, int], bytes]]:
        found = await self._repeated(process, lambda: read_whole(process.ledger))
        return [((entry.position[0], entry.position[1]), bytes(entry.data)) for entry in found]

    async def _check_cursor(self, shadow: Process, listed: set[int]) -> None:
        cursor, known = shadow.ledger.cursors[CURSOR], self.history.cursors[CURSOR]
        rest = await self._repeated(shadow, lambda: read_rest(cursor))
        delivered = {bytes(entry.data) for entry in rest}
        for payload, position in self.history.seen.items():
            trimmed = position[0] not in listed
            if payload not in known.consumed and payload not in delivered and not trimmed:
                raise HistoryError(f"{payload[:20]!r} was not consumed, and the shadow does not deliver it")
            if payload in known.durably and payload in delivered:
                raise HistoryError(f"{payload[:20]!r} was consumed durably, and the shadow delivers it again")

    async def _repeated(
        self, process: Process, read: Callable[[], Coroutine[Any, Any, list[StoredEntry]]]
    ) -> list[StoredEntry]:
        found: list[StoredEntry] = await retry(lambda: self.world.on(process.client, read()), seconds=300)
        return found


async def run(loop: SimLoop, seed: int) -> ShadowHistory:
    """Run one seed. Raises HistoryError or AssertionError if a guarantee is violated."""
    world = World(loop, seed)
    await world.start_bookies(3)
    history = ShadowHistory(world, trims=world.chance.random() < 0.6)
    run_ = Run(world, drawn_settings(world, trims=history.trims), history)
    await run_.next_source()
    await run_.next_shadow()
    for _ in range(world.chance.randrange(2, 5)):
        assert run_.source is not None and run_.shadow is not None
        hosts = run_.source.client.node.host, run_.shadow.client.node.host
        await disturb(world, hosts, world.chance.uniform(1.0, 6.0), down_max=1)
        replaced = world.chance.randrange(4)
        if replaced in (0, 1):
            await run_.next_source()
        if replaced in (0, 2):
            await run_.next_shadow()
    await run_.end()
    return history
