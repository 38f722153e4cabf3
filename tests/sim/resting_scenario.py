"""Bookies restart while topics rest with connected clients: in the end no ledger is marked, and nothing is lost.

Two brokers, two auto-recovery processes and three or four bookies. The client of each topic publishes and acknowledges
a few messages, then stays connected in silence for seconds, again and again. Bookies crash and restart, so
auto-recovery marks open ledgers, of entries and of cursors; brokers are killed or stopped, and miss events of the
metadata store, which is slow or away at times. When all faults are over, every mark must go while all clients are
silent and every topic is open. Then the clients go on, and each topic has its messages, once and in order.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from quire_bookie.errors import QuireError
from quire_bookie.metadata.under_replication import UnderReplication
from quire_bookie.settings.recovery import RecoverySettings
from quire_broker.managed_ledger.cursors.cursor_state import decode_node
from quire_broker.managed_ledger.list_store import ROOT
from quire_broker.managed_ledger.nodes.node_codec import decode_list
from quire_broker.names import NamespaceName
from quire_broker.settings.managed_ledger import MarkedLedgerSettings
from quire_client import Client
from quire_client.connection import Connection
from tests.sim.autorecovery_scenario import Cluster
from tests.sim.broker_faults import Brokers
from tests.sim.broker_hosts import simulated_machines
from tests.sim.brokers_scenario import LEASE_S, SETTINGS
from tests.sim.history import HistoryError
from tests.sim.loop import SimLoop
from tests.sim.metadata import SimMetadataStore
from tests.sim.plan import Step
from tests.sim.topic_clients import SUBSCRIPTION, TopicClients, TopicHistory
from tests.sim.world import World, retry
from tests.support.raw_client import Consumer, Received

NAMESPACE = NamespaceName("public", "simulated")
BOUNDARIES = ["0x00000000", "0x80000000", "0xffffffff"]
TOPICS = 4
RATE = 20.0
IDLE_S = 3.0
CLEARED_S = 60.0
"""All marks are gone this long after the last fault, although nothing is sent."""
LAST_S = 120.0
RECOVERY = RecoverySettings(
    workers=2,
    lost_bookie_delay_s=1,
    rate_bytes_s=0,
    operations_s=0,
    open_ledger_grace_s=600.0,
    retry_s=(2.0, 8.0),
    poll_s=5.0,
)
"""Auto-recovery fences no ledger within a run: that a mark goes is due to the broker."""
FAULTS = {
    "crash": 3,
    "stop": 3,
    "start": 8,
    "kill broker": 1,
    "start broker": 3,
    "pause": 1,
    "watch gap": 2,
    "break": 1,
    "metadata slow": 1,
    "metadata away": 1,
}


class RestingClient:
    """A client of one topic that is silent most of the time. It stays connected."""

    def __init__(self, topic: str, urls: Sequence[str], chance: random.Random, note: Callable[[str], None]) -> None:
        self.clients = TopicClients(TopicHistory(topic), urls, chance, note)
        self.clients.rate = RATE
        self.history = self.clients.history
        self.rests = asyncio.Event()
        """Set while it is connected, in silence, until `goes_on`."""
        self.silent = False
        """Whether it sends nothing any more until `goes_on`."""
        self.goes_on = asyncio.Event()
        self._topic, self._urls, self._chance, self._note = topic, urls, chance, note
        self._exists = False
        """Whether its topic exists: a producer creates it, and faults may keep the first one away until the silence."""

    async def run(self) -> None:
        """Publish and rest, until it has gone on after its silence."""
        done = False
        while not done:
            client = Client(self._chance.choice(self._urls))
            try:
                done = await self._use(await client.brokers.owner(self._topic))
            except (QuireError, OSError) as error:
                self._note(f"the client of {self._topic}: {error}")
            finally:
                self.rests.clear()
                client.close()
            await asyncio.sleep(self._chance.uniform(0.1, 0.5))

    async def _use(self, connection: Connection) -> bool:
        """Publish, consume and rest on one connection. Return whether this was after the silence."""
        last = self.goes_on.is_set()
        if last or not self.silent or not self._exists:
            await self.clients.publish_some(connection, 3 if last else self._chance.randrange(4))
            self._exists = True
        queue: asyncio.Queue[Received | QuireError] = asyncio.Queue()
        consumer = Consumer(connection, -1, queue)
        await consumer.open(self._topic, SUBSCRIPTION, earliest=True)
        await self._take(queue, consumer)
        if not last:
            self.rests.set()
            await self._rest(queue)
        return last

    async def _rest(self, queue: "asyncio.Queue[Received | QuireError]") -> None:
        """Stay connected in silence, for seconds or until `goes_on`, or until the connection is lost."""
        wait_s = self._chance.uniform(0.5, 4 * IDLE_S)
        going_on = asyncio.ensure_future(self.goes_on.wait())
        lost = asyncio.ensure_future(queue.get())
        try:
            await asyncio.wait({going_on, lost}, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
            while self.silent and not (going_on.done() or lost.done()):
                await asyncio.wait({going_on, lost}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            going_on.cancel()
            lost.cancel()

    async def _take(self, queue: "asyncio.Queue[Received | QuireError]", consumer: Consumer) -> None:
        """Consume the stored messages, and acknowledge them."""
        while self.history.undelivered or not queue.empty():
            async with asyncio.timeout(LAST_S):
                received = await queue.get()
            if isinstance(received, QuireError):
                raise received
            self.history.delivered.add(int(received.message.payload))
            consumer.acknowledge(received)


class Run:
    """One run: the brokers, auto-recovery and the clients."""

    def __init__(self, world: World) -> None:
        self.world = world
        settings = replace(
            SETTINGS,
            balancing=replace(SETTINGS.balancing, shedding=False, split=False),
            marked_ledgers=MarkedLedgerSettings(idle_s=IDLE_S),
        )
        self.brokers = Brokers(world, settings, 2)
        self.recovery = Cluster(world, RECOVERY)
        urls = [one.url for one in self.brokers.hosts]
        self.clients = [
            RestingClient(f"persistent://{NAMESPACE}/t{number}", urls, self.brokers.chance(), world.loop.note)
            for number in range(TOPICS)
        ]
        self._work: list[asyncio.Task[None]] = []

    async def begin(self) -> None:
        """Start everything."""
        for host in ("ar1", "ar2"):
            await self.recovery.start(host)
        await self.brokers.start()
        first = self.brokers.hosts[0].broker
        assert first is not None
        await first.policies.create_namespace(NAMESPACE, {"bundles": {"boundaries": BOUNDARIES, "numBundles": 2}})
        self._work = [self.world.loop.run_on(self.brokers.client, one.run()) for one in self.clients]

    def kill(self, step: Step) -> None:
        """Kill a broker, but not the last one."""
        running = [one for one in self.brokers.hosts if one.broker is not None]
        for host in running:
            if host.host == step.who and len(running) > 1:
                host.kill()

    async def silence(self) -> None:
        """Let the clients be silent, with one more restart of a bookie; check that no mark is left after a while."""
        world = self.world
        for one in self.clients:
            one.silent = True
        async with asyncio.timeout(LAST_S):
            await asyncio.gather(*(one.rests.wait() for one in self.clients))
        if not world.loop.plan.calm:
            host = world.chance.choice(sorted(world.bookies))
            world.crash_bookie(host, "all")
            await asyncio.sleep(world.metadata.session_timeout_s + world.chance.uniform(2.0, 8.0))
            await world.start_bookie(host)
        end_s = world.loop.time() + CLEARED_S
        while marked := await self._marked():
            if world.loop.time() > end_s:
                raise HistoryError(f"ledgers {marked} are marked although nothing happens for {CLEARED_S:.0f} s")
            await asyncio.sleep(1.0)

    async def _marked(self) -> list[int]:
        marks, named = UnderReplication(SimMetadataStore(self.world.metadata), self.world.clock), self._named()
        return [ledger async for page in marks.marked() for ledger in page if ledger in named]

    def _named(self) -> set[int]:
        """Return the ledgers of topics and cursors: one whose opening the store's absence cut off has no owner."""
        found: set[int] = set()
        for key, node in self.world.metadata.nodes.items():
            _, _, path = key.partition(f"{ROOT}/{NAMESPACE}/persistent/")
            if "/" in path:
                found.add(decode_node(node.value).ledger_id)
            elif path:
                found.update(record.ledger_id for record in decode_list(node.value).ledgers)
        return found

    async def end(self) -> None:
        """Let the clients go on, and check what each topic has."""
        for one in self.clients:
            one.goes_on.set()
        try:
            async with asyncio.timeout(LAST_S):
                await asyncio.gather(*self._work)
        except TimeoutError:
            raise HistoryError(f"clients do not get on although all faults are over for {LAST_S:.0f} s") from None
        loop, client = self.world.loop, self.brokers.client
        for one in self.clients:
            await retry(lambda one=one: loop.run_on(client, one.clients.read_all()), seconds=60)


async def run(loop: SimLoop, seed: int) -> list[TopicHistory]:
    """Run one seed. Raises HistoryError or AssertionError if a guarantee is violated."""
    world = World(loop, seed)
    world.metadata.session_timeout_s = LEASE_S
    await world.start_bookies(world.chance.choice((3, 4)))
    run_ = Run(world)
    with simulated_machines(run_.brokers.hosts):
        await run_.begin()
        await run_.brokers.disturb(world.chance.uniform(15.0, 30.0), FAULTS, ("crash",), {"kill broker": run_.kill})
        await run_.silence()
        await run_.end()
    return [one.history for one in run_.clients]
