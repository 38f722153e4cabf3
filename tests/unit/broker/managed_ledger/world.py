"""One managed ledger on simulated metadata and fake bookies, in virtual time; its processes can be killed."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

from quire_bookie.errors import QuireError
from quire_broker.managed_ledger import ManagedLedger, ManagedLedgerFactory, Position
from quire_broker.managed_ledger.cursors.cursor_state import CursorNode, decode_node
from quire_broker.managed_ledger.list_store import node_path
from quire_broker.managed_ledger.nodes.node_codec import LedgerListNode, decode_list
from quire_broker.offload.tier import Tier
from quire_broker.settings.managed_ledger import ManagedLedgerSettings
from tests.sim.loop import Node, SimLoop, simulate
from tests.sim.metadata import SimMetadata, SimMetadataStore
from tests.unit.broker.managed_ledger.ledgers import FakeBookies, FakeClient

NAME = "public/default/persistent/topic"
START_MS = 1_800_000_000_000


class SeededChance:
    """Chance from a seed."""

    def __init__(self, seed: int) -> None:
        chance = random.Random(seed)
        self.uniform = chance.uniform
        self.token = chance.randbytes
        self.sample = chance.sample


class VirtualClock:
    """Wall clock of the simulated loop."""

    def now_ms(self) -> int:
        return START_MS + int(asyncio.get_running_loop().time() * 1000)


class Process:
    """A broker: its own client, session and factory."""

    def __init__(self, world: "World", settings: ManagedLedgerSettings, number: int) -> None:
        self.node: Node = world.loop.start_node(f"broker-{number}")
        self.client = FakeClient(world.bookies)
        self.store = SimMetadataStore(world.metadata)
        self.node.on_kill.append(self.store.cut_for_good)
        self._world = world
        self._settings = settings
        self._seed = number
        self._factory: ManagedLedgerFactory | None = None
        self.tier: Tier | None = None

    @property
    def factory(self) -> ManagedLedgerFactory:
        if self._factory is None:
            self._factory = ManagedLedgerFactory(
                self.client, self.store, self._settings, VirtualClock(), SeededChance(self._seed), self.tier
            )
        return self._factory

    async def open(self, name: str = NAME, **options: Any) -> ManagedLedger:
        opened: ManagedLedger = await self.run(self._open(name, **options))
        return opened

    async def _open(self, name: str, **options: Any) -> ManagedLedger:
        return await self.factory.open(name, **options)

    async def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run work in the process; everything that it schedules ends with the process."""
        return await self._world.loop.run_on(self.node, work)

    def kill(self) -> None:
        self._world.loop.kill(self.node)
        self._world.metadata.expire(0)


class World:
    """The state that outlives processes."""

    def __init__(self, loop: SimLoop, settings: ManagedLedgerSettings, seed: int, bookies: int) -> None:
        self.loop = loop
        self.settings = settings
        self.metadata = SimMetadata(random.Random(seed))
        self.bookies = FakeBookies(bookies)
        self._processes = 0

    def process(self, settings: ManagedLedgerSettings | None = None) -> Process:
        self._processes += 1
        return Process(self, settings or self.settings, self._processes)

    def away(self, away: bool) -> None:
        """Make the metadata store unavailable or available."""
        self.metadata.away = self.bookies.metadata_away = away

    def list_node(self, name: str = NAME) -> LedgerListNode:
        return decode_list(self.metadata.nodes[node_path(name)].value)

    def cursor_node(self, cursor: str, name: str = NAME) -> CursorNode:
        return decode_node(self.metadata.nodes[f"{node_path(name)}/{cursor}"].value)


def run(
    scenario: Callable[[World], Coroutine[Any, Any, None]],
    *,
    seed: int = 1,
    bookies: int = 3,
    settings: ManagedLedgerSettings | None = None,
    **changes: Any,
) -> None:
    """Run a scenario. `changes` are settings; by default ledgers roll at once when full."""
    used = settings or ManagedLedgerSettings(**{"rollover_age_min_s": 0.0, **changes})

    async def work(loop: SimLoop) -> None:
        await scenario(World(loop, used, seed, bookies))
        assert not loop.failures, loop.failures

    simulate(work, seed=seed, time_limit_s=100_000)


class Answers:
    """The outcomes of appends, in order of arrival."""

    def __init__(self) -> None:
        self.order: list[bytes] = []
        self.stored: dict[bytes, Position] = {}
        self.failed: dict[bytes, QuireError] = {}

    def __call__(self, entry: bytes) -> Callable[[Position | None, QuireError | None], None]:
        def done(position: Position | None, error: QuireError | None) -> None:
            self.order.append(entry)
            if error is not None:
                self.failed[entry] = error
            else:
                assert position is not None
                self.stored[entry] = position

        return done


async def append(ledger: ManagedLedger, *entries: bytes) -> list[Position]:
    """Append and wait for all. Raises the first error."""
    loop = asyncio.get_running_loop()
    futures: list[asyncio.Future[Position]] = []
    for entry in entries:
        future: asyncio.Future[Position] = loop.create_future()
        futures.append(future)

        def done(position: Position | None, error: QuireError | None, future: Any = future) -> None:
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(position)

        ledger.append(entry, done)
    if futures:
        await asyncio.wait(futures)
    return [future.result() for future in futures]


def numbered(count: int, start: int = 0) -> list[bytes]:
    """Return distinct entries."""
    return [b"entry-%d" % number for number in range(start, start + count)]


async def everything(ledger: ManagedLedger) -> list[bytes]:
    """Return all entries, read in small portions."""
    found: list[bytes] = []
    position = ledger.first_position()
    while entries := await ledger.read(position, 7):
        found += [bytes(entry.data) for entry in entries]
        position = ledger.next_position(entries[-1].position)
    return found
