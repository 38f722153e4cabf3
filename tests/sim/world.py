"""A simulated cluster: bookies with their disks, clients on nodes of their own, one metadata store, and its faults.

Everything that runs on the nodes is production code; only the ports are simulated.
"""

import asyncio
import random
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from quire_bookie.client import LedgerClient
from quire_bookie.env.index_store import IndexStore
from quire_bookie.errors import QuireError
from quire_bookie.server.process import RunningBookie, start_bookie
from quire_bookie.server.settings import BookieSettings
from quire_bookie.settings.client import ClientSettings
from quire_bookie.settings.collection import GarbageCollectionSettings
from quire_bookie.settings.compaction import CompactionSettings
from quire_bookie.settings.disks import DiskRules
from quire_bookie.settings.journal import JournalSettings
from quire_bookie.settings.storage import StorageSettings
from tests.sim.disk import SimDisk, Survival
from tests.sim.index_store import SimIndexStore
from tests.sim.loop import Node, SimLoop
from tests.sim.metadata import SimMetadata, SimMetadataStore

T = TypeVar("T")
BOOKIE_PORT = 3181
DATA_DIR = "/data"


class SimClock:
    """The wall clock of one host: virtual time after a fixed day, plus an error."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self.wrong_ms = 0

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        return 1_800_000_000_000 + int(self._loop.time() * 1000) + self.wrong_ms


class SimChance:
    """Randomness from a seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def token(self, size: int) -> bytes:
        """Return random bytes."""
        return self._random.randbytes(size)

    def uniform(self, low: float, high: float) -> float:
        """Return a float in [low, high]."""
        return self._random.uniform(low, high)

    def sample(self, population: Sequence[T], count: int) -> list[T]:
        """Return distinct members."""
        return self._random.sample(population, count)


@dataclass(slots=True)
class SimBookie:
    """A bookie's host, its disk, and its process if one runs."""

    host: str
    disk: SimDisk
    node: Node | None = None
    session: SimMetadataStore | None = None
    running: RunningBookie | None = None
    restarts: int = 0
    power_cuts: int = 0
    """Number of power cuts while it served."""
    stopping: bool = False
    """Whether a clean stop is in progress."""


@dataclass(slots=True)
class SimClient:
    """A client process."""

    node: Node
    session: SimMetadataStore
    ledgers: LedgerClient


class World:
    """Owns all nodes of one simulation."""

    def __init__(self, loop: SimLoop, seed: int) -> None:
        self.loop = loop
        self.chance = random.Random(seed)
        self.metadata = SimMetadata(random.Random(seed ^ 0xE7CD))
        self.clock = SimClock(loop)
        """The clock of components without a host."""
        self.clocks: dict[str, SimClock] = {}
        self.sessions: dict[str, SimMetadataStore] = {}
        """The metadata session of each host's process."""
        self.bookies: dict[str, SimBookie] = {}
        self.starting = 0
        self.journal_settings = JournalSettings(file_bytes=4 << 20, group_bytes_max=1 << 20, queue_bytes_max=2 << 20)
        self.storage_settings = StorageSettings()
        self.garbage_collection_settings = GarbageCollectionSettings()
        self.compaction_settings = CompactionSettings()
        self.changes_of: dict[str, dict[str, Any]] = {}
        """Differing settings of single bookies, by host."""
        self.flush_interval_s = (0.5, 5.0)
        self.disk_check_interval_s = 10.0
        self.stay_full: set[str] = set()
        """Hosts whose disk stays full, filled by another program."""
        self._clients = 0

    def clock_of(self, host: str) -> SimClock:
        """Return the wall clock of a host; it outlives the host's processes."""
        return self.clocks.setdefault(host, SimClock(self.loop))

    # ---- bookies
    async def start_bookies(self, count: int) -> None:
        """Start new bookies b1..bn."""
        for number in range(1, count + 1):
            host = f"b{number}"
            # Slow disks have much in flight when the power is cut.
            latency_s = self.chance.choice((0.0005, 0.005, 0.05))
            disk = SimDisk(chance=random.Random(self.chance.randrange(1 << 30)), latency_s=latency_s)
            self.bookies[host] = SimBookie(host, disk)
            await self.start_bookie(host)

    async def start_bookie(self, host: str) -> None:
        """Start a bookie's process on its disk."""
        while self.metadata.away:  # noqa: ASYNC110  virtual time
            await asyncio.sleep(0.1)
        place = self.bookies.get(host)
        if place is None or place.node is not None:
            return  # permanently lost meanwhile, or another start was faster
        self.starting += 1
        try:
            await self._start_process(place, host)
        finally:
            self.starting -= 1

    async def _start_process(self, place: SimBookie, host: str) -> None:
        place.restarts += 1
        place.node = self.loop.start_node(host, place.restarts)
        place.session = self.sessions[host] = SimMetadataStore(self.metadata)
        place.node.on_kill += [place.session.cut_for_good]
        place.running = await self.loop.run_on(place.node, self._run_bookie(place, place.session))

    async def _run_bookie(self, place: SimBookie, session: SimMetadataStore) -> RunningBookie:
        async def open_index(path: str) -> IndexStore:
            return SimIndexStore(place.disk, path)

        settings = BookieSettings(
            DATA_DIR,
            port=BOOKIE_PORT,
            advertise=place.host,
            journal=self.journal_settings,
            storage=replace(self.storage_settings, flush_interval_s=self.chance.uniform(*self.flush_interval_s)),
            disks=DiskRules(interval_s=self.disk_check_interval_s),
            garbage_collection=self.garbage_collection_settings,
            compaction=self.compaction_settings,
        )
        settings = replace(settings, **self.changes_of.get(place.host, {}))
        chance = SimChance(self.chance.randrange(1 << 30))
        return await start_bookie(
            settings,
            metadata=session,
            disk=place.disk,
            clock=self.clock_of(place.host),
            chance=chance,
            open_index=open_index,
        )

    def crash_bookie(self, host: str, survival: Survival) -> None:
        """Cut the power: the process ends, `survival` decides what its disk keeps, and its lease expires later."""
        place = self.bookies[host]
        if place.node is None or place.session is None:
            return
        session = place.session
        # A power cut late in a clean stop loses nothing, and the bookie need not come back in limbo.
        place.power_cuts += place.running is not None and not place.stopping
        place.disk = place.disk.crash(survival, self.chance.randrange(1 << 30))
        self.loop.kill(place.node)
        place.node = place.running = place.session = None
        place.stopping = False
        self.loop.call_later(self.metadata.session_timeout_s, session.lease_ran_out)

    def kill_bookie(self, host: str) -> None:
        """Kill the process but not the machine: all writes survive, synced or not."""
        place = self.bookies[host]
        if place.node is None or place.session is None:
            return
        session = place.session
        place.disk = place.disk.kill()
        self.loop.kill(place.node)
        place.node = place.running = place.session = None
        place.stopping = False
        self.loop.call_later(self.metadata.session_timeout_s, session.lease_ran_out)

    async def stop_bookie(self, host: str) -> None:
        """Stop a bookie cleanly, as before an upgrade. Never returns if the bookie loses power meanwhile."""
        place = self.bookies[host]
        node, session, running = place.node, place.session, place.running
        if node is None or running is None or session is None or place.stopping:
            return
        place.stopping = True
        await self.loop.run_on(node, running.stop())
        self.loop.kill(node)
        place.node = place.running = place.session = None
        place.stopping = False
        place.disk = place.disk.crash("none", self.chance.randrange(1 << 30))
        session.lease_ran_out()

    # ---- clients
    async def start_client(self, host: str, **settings: Any) -> SimClient:
        """Start a client process."""
        self._clients += 1
        node = self.loop.start_node(host)
        session = self.sessions[host] = SimMetadataStore(self.metadata)
        node.on_kill.append(session.cut_for_good)
        limits = ClientSettings(**({"add_timeout_s": 5.0, "read_timeout_s": 5.0, "connect_timeout_s": 3.0} | settings))
        chance = SimChance(self.chance.randrange(1 << 30))
        opening = LedgerClient.open(session, limits, clock=self.clock_of(host), chance=chance)
        return SimClient(node, session, await self.loop.run_on(node, opening))

    def kill_client(self, client: SimClient) -> None:
        """Kill a client's process; its lease expires later."""
        self.loop.kill(client.node)
        self.loop.call_later(self.metadata.session_timeout_s, client.session.lease_ran_out)

    def on(self, client: SimClient, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Run `work` in a client's process."""
        return self.loop.run_on(client.node, work)


async def retry(attempt: Any, *, seconds: float, pause_s: float = 0.5) -> Any:
    """Repeat `attempt()` until it raises no QuireError, for at most `seconds` of virtual time."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while True:
        try:
            return await attempt()
        except QuireError:
            if loop.time() > end:
                raise
            await asyncio.sleep(pause_s)
