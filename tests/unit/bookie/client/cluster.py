"""Bookies in memory, simulated metadata and one ledger client on a simulated loop. For tests only."""

import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from quire_bookie.client import LedgerClient, LedgerWriter
from quire_bookie.errors import LedgerError
from quire_bookie.metadata import layout
from quire_bookie.metadata.service_info import MACHINE, BookieServiceInfo, bookie_endpoint, encode_service_info
from quire_bookie.model import BookieId, EntryId
from quire_bookie.settings.client import ClientSettings
from tests.sim.loop import Node, SimLoop, simulate
from tests.sim.metadata import SimMetadata, SimMetadataStore
from tests.unit.bookie.client.fake_bookie import FakeBookie

T = TypeVar("T")
QUICK = ClientSettings(add_timeout_s=4.0, read_timeout_s=4.0, connect_timeout_s=2.0, suspect_s=5.0)


class _Clock:
    def now_ms(self) -> int:
        return 0


class SeededChance:
    """Provides randomness from a seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.uniform = self._random.uniform
        self.token = self._random.randbytes
        self.sample = self._random.sample


@dataclass
class Listener:
    """Records the callbacks of a writer."""

    confirmed: list[EntryId] = field(default_factory=list)
    failures: list[LedgerError] = field(default_factory=list)

    def on_confirmed(self, up_to: EntryId) -> None:
        """See WriterListener."""
        assert not self.failures, "nothing is acknowledged after a failure"
        assert up_to > (self.confirmed[-1] if self.confirmed else -1), "the LAC only advances"
        self.confirmed.append(up_to)

    def on_failed(self, error: LedgerError) -> None:
        """See WriterListener."""
        self.failures.append(error)


class Cluster:
    """Runs bookies b0, b1, ... on separate nodes, and a metadata server."""

    def __init__(self, loop: SimLoop, seed: int) -> None:
        self.loop = loop
        self.metadata = SimMetadata(random.Random(seed))
        self.bookies: dict[BookieId, FakeBookie] = {}
        self._nodes: dict[BookieId, Node] = {}
        self._clients: list[LedgerClient] = []
        self._seed = seed

    async def start_bookie(self, name: str, machine: str = "") -> FakeBookie:
        """Start a bookie that listens and is registered, on its own machine unless one is named."""
        bookie = FakeBookie(name)
        self.bookies[BookieId(name)] = bookie
        await self.restart_bookie(name, machine)
        return bookie

    async def restart_bookie(self, name: str, machine: str = "") -> None:
        """Listen (again), at the same address."""
        node = self.loop.start_node(name)
        self._nodes[BookieId(name)] = node
        await self.loop.run_on(node, self.bookies[BookieId(name)].start(3181))
        info = BookieServiceInfo((bookie_endpoint(name, 3181),), {MACHINE: machine} if machine else {})
        self.metadata.write(layout.writable_path(BookieId(name)), encode_service_info(info), None)

    def kill_bookie(self, bookie: BookieId) -> None:
        """Kill the process of a bookie; its registration remains, as a lease does for a while."""
        self.loop.kill(self._nodes[bookie])

    async def client(self, settings: ClientSettings = QUICK) -> LedgerClient:
        """Create another client with separate connections."""
        seed = self._seed + len(self._clients)
        client = await LedgerClient.open(
            SimMetadataStore(self.metadata), settings, clock=_Clock(), chance=SeededChance(seed)
        )
        self._clients.append(client)
        return client

    async def close(self) -> None:
        """Close the clients."""
        for client in self._clients:
            await client.close()

    def copies(self, writer: LedgerWriter, entry: int) -> int:
        """Return how many bookies hold an entry."""
        stored = [bookie.ledgers.get(writer.ledger_id) for bookie in self.bookies.values()]
        return sum(ledger is not None and entry in ledger.entries for ledger in stored)


def run(
    scenario: Callable[[Cluster, LedgerClient], Coroutine[Any, Any, T]],
    *,
    bookies: int = 3,
    seed: int = 1,
    settings: ClientSettings = QUICK,
) -> T:
    """Run a scenario on a fresh cluster; nothing may have failed in the background."""

    async def work(loop: SimLoop) -> T:
        cluster = Cluster(loop, seed)
        for number in range(bookies):
            await cluster.start_bookie(f"b{number}")
        client = await cluster.client(settings)
        try:
            result = await scenario(cluster, client)
        finally:
            await cluster.close()
        assert loop.failures == []
        return result

    return simulate(work, seed=seed)
