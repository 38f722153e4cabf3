"""Brokers that take one bundle from each other while the old owner still writes, because it lost its metadata session.

Each broker runs the production code of `Owners` and managed ledgers. A broker that loses its session continues to write
to its open ledger; another broker takes the bundle meanwhile, or none does, and the first one takes it again. Bookies
crash and the metadata store becomes unreachable. The node of the bundle is deleted under its owner, as by a late
deletion. At the end the log has every acknowledged append once, each owner's entries are contiguous, and the cursor
skipped nothing. A certain owner sees the whole log at any time, and two owners are not both certain for long.
"""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from quire_bookie.errors import QuireError
from quire_bookie.metadata.joint_write import Place
from quire_bookie.metadata.store import Node
from quire_broker.managed_ledger import Cursor, ManagedLedger, ManagedLedgerFactory
from quire_broker.managed_ledger.managed_ledger import ManagedLedgerState
from quire_broker.names import NamespaceName
from quire_broker.ownership.claims import BundleClaim
from quire_broker.ownership.offers import Offer
from quire_broker.ownership.owners import BrokerUrls, Bundle, Owners
from quire_broker.policies.store import PolicyStore
from quire_broker.settings.managed_ledger import UNLIMITED, ManagedLedgerSettings
from tests.sim.faults import disturb
from tests.sim.history import HistoryError, LogHistory
from tests.sim.loop import SimLoop
from tests.sim.plan import Step
from tests.sim.topic_scenario import NAME, Owner, check, open_cursor, produce
from tests.sim.world import SimChance, SimClient, World

BUNDLE = Bundle(NamespaceName("public", "default"), "0x00000000_0xffffffff")
CURSOR = "subscription"
AGREED_S = 4.0
FAULTS = {
    "lease away": 8,
    "lease": 2,
    "metadata away": 2,
    "metadata unknown": 1,
    "metadata late": 1,
    "crash": 2,
    "kill": 1,
    "start": 4,
    "cut": 2,
    "heal": 4,
    "break": 1,
    "strand": 2,
    "stalls": 1,
    "slow disk": 1,
}


@dataclass(slots=True)
class Shared:
    """State shared by the brokers of a run."""

    world: World
    settings: ManagedLedgerSettings
    history: LogHistory
    hosts: list[str] = field(default_factory=list)
    """The brokers to which an owner hands the bundle; empty: owners only release it."""
    terms: int = 0
    broker_of: dict[int, str] = field(default_factory=dict)
    """The broker's host by term; payloads begin with the term."""


class Broker:
    """Runs the ownership and the managed ledgers of a broker. `serve` is its main task."""

    def __init__(self, shared: Shared, host: str, client: SimClient) -> None:
        self.client = client
        self.ledger: ManagedLedger | None = None
        self._shared, self._world, self._host = shared, shared.world, host
        self._closing: set[asyncio.Task[None]] = set()
        self._checking = 0
        self._writes = self._world.chance.choice((0.1, 0.6, 0.9, 1.0))
        clock, chance = self._world.clock_of(host), SimChance(self._world.chance.randrange(1 << 30))
        self.factory = ManagedLedgerFactory(client.ledgers, client.session, shared.settings, clock, chance)
        urls = BrokerUrls(f"pulsar://{host}:6650", f"http://{host}:8080")
        self.owners = Owners(client.session, PolicyStore(client.session, "sim"), urls, host)
        self.owners.on_modified = lambda _: self._start(self._receive())
        self.owners.on_lost = lambda _: self._start(self._close())
        self.owners.on_retaken = lambda _: self._start(self._check_owner())

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._world.on(self.client, work)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _close(self, place: Place | None = None) -> None:
        ledger, self.ledger = self.ledger, None
        if ledger is not None:
            await ledger.save(place)
            await ledger.settle()

    async def _check_owner(self) -> None:
        self._checking += 1
        while self.ledger is not None and self.owners.certain(BUNDLE):
            try:
                await self.ledger.check_owner()
                break
            except QuireError:
                await asyncio.sleep(0.5)
        self._checking -= 1

    async def serve(self, end_s: float) -> None:
        """Take the bundle when it is free, write or only read, and sometimes release it."""
        loop = asyncio.get_running_loop()
        works = (self.owners.run(), self.owners.follow(), self.owners.release_again())
        running = [loop.create_task(work) for work in works]
        chance = self._world.chance
        while self._world.loop.time() < end_s:
            try:
                await self._term(end_s)
            except QuireError as error:
                self._world.loop.note(f"{self._host}: {error}")
            await asyncio.sleep(chance.uniform(0.05, chance.choice((0.2, 3.0))))
        for task in running:
            task.cancel()
        await self._close()

    async def _term(self, end_s: float) -> None:
        world, chance = self._world, self._world.chance
        owner = await self.owners.owner_of(BUNDLE)
        if owner is None or not owner.ours or not await self._opened():
            return
        assert self.ledger is not None
        self._shared.terms += 1
        term = self._shared.terms
        self._shared.broker_of[term] = self._host
        ledger, until_s = self.ledger, min(end_s, world.loop.time() + chance.uniform(0.3, 5.0))
        work = [self._consume(ledger, until_s)]
        if chance.random() < self._writes:
            as_owner = Owner(self.client, self.factory, ledger)
            work.append(produce(world, as_owner, self._shared.history, term, until_s))
        await asyncio.gather(*work)
        self._check_view(ledger)
        if ledger.state is ManagedLedgerState.FENCED:
            await self._close()
        elif chance.random() < 0.6 and self.owners.leave(BUNDLE):
            try:
                if self._shared.hosts:
                    await self._hand_over(chance.choice([*self._shared.hosts, "nowhere"]))
            finally:
                await self._close()
                await self.owners.release(BUNDLE)

    async def _hand_over(self, to: str) -> None:
        """Offer the bundle as a broker does; sometimes without closing the ledger first, as after a failed close."""
        if to == self._host:
            return
        version = await self.owners.offer(BUNDLE, Offer(to))
        if self._world.chance.random() < 0.7:
            await asyncio.sleep(self._world.chance.uniform(0.0, 0.2))  # the other one prepares
        if self._world.chance.random() < 0.2 and not self._world.loop.plan.calm:
            return  # what it prepared is outdated when it opens the ledger for another reason
        joint = self.owners.offer_with(BUNDLE, Offer(to, closed=True), version)
        if self._world.chance.random() < 0.7 or self._world.loop.plan.calm:
            with joint.place() as place:
                await self._close(place)
        await joint.settle()
        if not joint.is_concluded:
            await self.owners.offer(BUNDLE, Offer(to, closed=True), version)
        if await self.owners.successor(BUNDLE, 3.0) is not None:
            self._world.loop.note(f"{self._host} handed the bundle to {to}")

    async def _receive(self) -> None:
        try:
            offered = await self.owners.offered(BUNDLE)
            if offered is None:
                return
            offer, node = offered
            if not offer.closed:
                await self.factory.prepare(NAME)
            elif await self.factory.look_ahead(NAME):
                await self._take_ahead(node)
            else:
                await self.owners.take_offered(BUNDLE, node)
        except QuireError as error:
            self._world.loop.note(f"{self._host} takes no offer: {error}")

    async def _take_ahead(self, node: Node) -> None:
        """Open the ledger while the bundle is being taken, as a broker does."""
        opening = self._world.on(self.client, self.factory.open(NAME, create=False))
        took = False
        try:
            took = await self.owners.take_offered(BUNDLE, node)
        finally:
            ledger = await opening
            if took and self.owners.certain(BUNDLE) and self.ledger is None:
                self.ledger = ledger
            elif self.ledger is not ledger:
                await ledger.close()

    async def _opened(self) -> bool:
        """Open the ledger as the topics of a broker do: the tenure is confirmed when its list is read, or later."""
        if self.ledger is not None and self.ledger.state is ManagedLedgerState.OPEN:
            return True
        claim = BundleClaim(self.owners, BUNDLE)
        if not claim.tenure:
            return False
        ledger = await self.factory.open(NAME, claim=claim)
        now = self.owners.tenure(BUNDLE) if claim.is_confirmed else await self.owners.confirmed_tenure(BUNDLE)
        if now != claim.tenure:
            await ledger.close()
            return False
        self.ledger = ledger
        return True

    async def _consume(self, ledger: ManagedLedger, end_s: float) -> None:
        """Read in order and acknowledge most entries."""
        world, history = self._world, self._shared.history
        try:
            cursor: Cursor = await open_cursor(ledger, CURSOR, history)
            while world.loop.time() < end_s and ledger.state is ManagedLedgerState.OPEN:
                entries = await cursor.read(entries_max=20, bytes_max=1 << 20)
                for entry in entries:
                    history.on_seen(bytes(entry.data), entry.position)
                chosen = [entry for entry in entries if world.chance.random() < 0.8]
                history.cursors[CURSOR].consumed |= {bytes(entry.data) for entry in chosen}
                cursor.acknowledge([entry.position for entry in chosen])
                await asyncio.sleep(world.chance.uniform(0.05, 0.5))
        except QuireError as error:
            world.loop.note(f"{self._host} stops consuming: {error}")

    def _check_view(self, ledger: ManagedLedger) -> None:
        """Check that a certain owner sees all acknowledged appends.

        Exempt is an owner that is cut off from the metadata store, until it has read the bundle's node again.
        """
        acknowledged, sure = self._shared.history.acknowledged, self.owners.certain(BUNDLE) and not self._checking
        aware = not self.client.session.cut and BUNDLE.key in self.client.session.read_since_cut
        if not (sure and aware) or ledger.state is not ManagedLedgerState.OPEN:
            return
        newest = max(acknowledged.values(), default=(-1, -1))
        if ledger.last_confirmed < newest:
            raise HistoryError(f"{self._host} owns the log and ends at {ledger.last_confirmed}, before {newest}")


async def remove_nodes(world: World, brokers: "list[Broker]", seconds: float) -> None:
    """Delete the bundle's node sometimes, with any owner; half of the time the owner is cut off meanwhile.

    Such an owner keeps its lease, and seconds later finds its bundle free, or owned by another broker.
    """
    steps = [
        Step(world.chance.uniform(2.0, seconds), "node gone", BUNDLE.key, value=world.chance.choice((0.0, 3.0, 6.0)))
        for _ in range(8)
    ]
    begun = world.loop.time()
    for step in world.loop.plan.choose(sorted(steps, key=lambda one: one.at_s)):
        await asyncio.sleep(max(0.0, begun + step.at_s - world.loop.time()))
        world.loop.note(f"fault: {step}")
        if world.loop.time() - begun > seconds:
            return
        unaware = [one.client.session for one in brokers if step.value and one.owners.certain(BUNDLE)]
        for session in unaware:
            session.cut = True
        world.metadata.remove(BUNDLE.key)
        await asyncio.sleep(step.value)
        for session in unaware:
            session.reach()


async def watch_owners(shared: Shared, brokers: "list[Broker]", end_s: float) -> None:
    """Raise HistoryError if two brokers that reach the metadata store stay certain of the same bundle."""
    loop, since_s = shared.world.loop, shared.world.loop.time()
    while loop.time() < end_s:
        await asyncio.sleep(0.2)
        sure = [one for one in brokers if one.owners.certain(BUNDLE) and not one.client.session.cut]
        if len(sure) < 2 or shared.world.metadata.away:
            since_s = loop.time()
        elif loop.time() - since_s > AGREED_S:
            raise HistoryError(f"{len(sure)} brokers have been certain to own the bundle for {AGREED_S} s")


def check_terms(shared: Shared) -> None:
    """Check that each owner's entries are contiguous, within a ledger and across ledgers."""
    found = sorted((position, int(payload.split(b"-")[0])) for payload, position in shared.history.seen.items())
    ledgers: dict[int, set[str]] = {}
    highest = 0
    for (ledger_id, _), term in found:
        ledgers.setdefault(ledger_id, set()).add(shared.broker_of[term])
        if term < highest:
            raise HistoryError(f"an entry of term {term} follows one of term {highest}")
        highest = term
    for ledger_id, brokers in ledgers.items():
        if len(brokers) > 1:
            raise HistoryError(f"ledger {ledger_id} has entries of {sorted(brokers)}")


async def run_with_handovers(loop: SimLoop, seed: int) -> LogHistory:
    """Run one seed in which owners also hand the bundle to another broker, some while they still write."""
    return await run(loop, seed, hands_over=True)


async def run(loop: SimLoop, seed: int, *, hands_over: bool = False) -> LogHistory:
    """Run one seed. Raises HistoryError or AssertionError if a guarantee is violated."""
    world = World(loop, seed)
    await world.start_bookies(3)
    history = LogHistory(trims=world.chance.random() < 0.3)
    kept = 0 if history.trims else UNLIMITED
    settings = ManagedLedgerSettings(
        ledger_entries_max=world.chance.choice((15, 300, 5000)),
        rollover_age_min_s=0.0,
        retention_s=kept,
        retention_bytes=kept,
        trim_interval_s=3.0,
        tick_interval_s=0.3,
    )
    hosts = [f"owner{number}" for number in range(world.chance.choice((2, 2, 3)))]
    shared = Shared(world, settings, history, hosts if hands_over else [])
    brokers: list[Broker] = []
    for host in hosts:
        client = await world.start_client(host)

        async def build(host: str = host, client: SimClient = client) -> Broker:
            return Broker(shared, host, client)

        brokers.append(await world.on(client, build()))
    seconds = world.chance.uniform(15.0, 40.0)
    end_s = loop.time() + seconds + 15.0
    work = [world.on(broker.client, broker.serve(end_s)) for broker in brokers]
    watching = loop.create_task(watch_owners(shared, brokers, end_s))
    removing = loop.create_task(remove_nodes(world, brokers, seconds))
    await disturb(world, hosts, seconds, down_max=1, kinds=FAULTS, surely=("lease away",))
    await asyncio.sleep(max(0.0, end_s - loop.time()) + 20.0)
    await asyncio.gather(*work, removing)
    if watching.done():
        watching.result()
    watching.cancel()
    for broker in brokers:
        world.kill_client(broker.client)
    await check(world, history, settings)
    check_terms(shared)
    return history
