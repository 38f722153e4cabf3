"""Several brokers that share the bundles of a namespace: a leader assigns, moves and splits them, under faults.

Each host runs the whole broker. Clients publish at rates that change, so that brokers become overloaded. Brokers are
killed, stopped for longer than their lease, cut off from each other, from bookies, clients and the metadata store, and
lose leases; clocks jump, the metadata store is slow. At the end each topic has every acknowledged message once, in
order, and its subscription got all of them; one broker leads, each bundle has one owner, and none moves more than once.
While the run lasts, only a leader orders moves, not more than its limit, and from no outdated report. When no fault
disturbs them, brokers hand over closed ledgers: the next owner recovers none.
"""

import asyncio
import json
import random
from collections import Counter

from quire_bookie.metadata.layout import ledger_of_path
from quire_bookie.metadata.ledger_metadata import decode_ledger_metadata
from quire_bookie.model import LedgerId, LedgerState
from quire_broker.balancing.assignments import ASSIGNMENTS, LEADER
from quire_broker.names import NamespaceName, parse_topic
from quire_broker.ownership.owners import Bundle
from quire_broker.ownership.registration import BROKERS
from quire_broker.server.broker import BrokerSettings
from quire_broker.settings.balancing import BalancingSettings
from quire_broker.settings.managed_ledger import UNLIMITED, ManagedLedgerSettings
from quire_broker.topic.topic import TopicSettings
from quire_broker.topic.topics import TopicsSettings
from tests.sim.broker_faults import Brokers
from tests.sim.broker_hosts import BrokerHost, OwnerWatch, simulated_machines
from tests.sim.history import HistoryError
from tests.sim.loop import SimLoop
from tests.sim.plan import Step
from tests.sim.topic_clients import TopicClients, TopicHistory
from tests.sim.world import World, retry

NAMESPACE = NamespaceName("public", "simulated")
BUNDLES = 8
TOPICS = 8
LEASE_S = 3.0
BALANCING = BalancingSettings(
    shedding_interval_s=2.0,
    grace_s=15.0,
    settle_s=3.0,
    hits=2,
    moves_per_minute_max=6,
    report_interval_s=2.0,
    report_interval_max_s=4.0,
    report_ttl_s=8.0,
    history_interval_s=10.0,
    split_hits=2,
    splits_max=1,
    bundle_messages_max=12,
    bundles_max=BUNDLES + 3,
)
SETTINGS = BrokerSettings(
    changes_at_run_time=False,  # nothing here changes settings, and its reads would shift what each seed does
    balancing=BALANCING,
    topics=TopicsSettings(
        topic=TopicSettings(deduplication=True),
        ledger=ManagedLedgerSettings(retention_s=UNLIMITED, retention_bytes=UNLIMITED, rollover_age_min_s=0.0),
    ),
)
SETTLE_S = 60.0
"""How long nothing disturbs the brokers before the last check."""
MOVING_S = 15.0
"""How long before the last check brokers are asked to hand bundles over."""
PLANNED_MOVES = 3
STALE_S = 5.0
"""How long a broker that leads no more may take to notice, and a leader to order what it decided."""
FAULTS = {
    "pause": 3,
    "kill broker": 3,
    "start broker": 8,
    "cut": 1,
    "cut brokers": 2,
    "heal": 6,
    "break": 1,
    "metadata cut": 3,
    "metadata away": 1,
    "metadata slow": 2,
    "metadata unknown": 1,
    "metadata late": 1,
    "lease away": 2,
    "lease": 1,
    "watch gap": 2,
    "clock": 1,
    "rates": 4,
}
"""And `hush`; see `Run.hush`."""
MILD_FAULTS = {"metadata slow": 1, "watch gap": 1, "clock": 1}
"""Of the runs in which the leader stays the same."""


class MoveWatch:
    """Checks each move when it is ordered: by a leader, within the limit, from reports that are recent enough."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._terms: list[tuple[float, int | None]] = []
        """The begin of each term, with the session of its leader."""
        self._led_until_s: dict[int | None, float] = {}
        self._reported_s: dict[str, float] = {}
        self.moves: list[tuple[float, int, str]] = []
        """The time of each move, the number of its term, and the key of the bundle's assignment."""
        self.slack_s = STALE_S
        self.trouble = ""
        """The first violation."""
        world.metadata.on_write.append(self._written)

    def _written(self, key: str) -> None:
        now_s, node = self._world.loop.time(), self._world.metadata.nodes[key]
        if key == LEADER:
            if self._terms:
                self._led_until_s[self._terms[-1][1]] = now_s
            self._terms.append((now_s, node.session))
        elif key.startswith(f"{BROKERS}/"):
            self._reported_s[key.removeprefix(f"{BROKERS}/")] = now_s
        elif key.startswith(f"{ASSIGNMENTS}/"):
            data = json.loads(node.value)
            if "broker" in data and "from" in data:
                self._ordered(now_s, key, node.session, data["from"], data["broker"])

    def _ordered(self, now_s: float, key: str, session: int | None, source: str, target: str) -> None:
        self._world.loop.note(f"move from {source} to {target}")
        self.trouble = self.trouble or self._wrong(now_s, key, session, source, target)

    def _wrong(self, now_s: float, key: str, session: int | None, source: str, target: str) -> str:
        terms = [number for number, (_, leader) in enumerate(self._terms) if leader == session]
        if not terms:
            return f"a broker that never led orders a move from {source} to {target}"
        late_s = now_s - self._led_until_s.get(session, now_s) if terms[-1] < len(self._terms) - 1 else 0.0
        if late_s > self.slack_s:
            return f"a broker orders a move {late_s:.1f} s after another one began to lead"
        begun_s = self._terms[terms[-1]][0]
        for broker in (source, target):
            age_s = now_s - max(self._reported_s.get(broker, 0.0), begun_s)
            if age_s > BALANCING.report_ttl_s + self.slack_s:
                return f"a move from {source} to {target} uses a report of {broker} of {age_s:.1f} s ago"
        self.moves.append((now_s, terms[-1], key))
        recent = [at for at, term, _ in self.moves if term == terms[-1] and now_s - at < 60.0]
        if len(recent) > BALANCING.moves_per_minute_max:
            return f"{len(recent)} moves within a minute, the limit is {BALANCING.moves_per_minute_max}"
        return ""


class LedgerWatch:
    """Notes the ledgers that are recovered while it is armed: their writers have not closed them."""

    def __init__(self, world: World) -> None:
        self._nodes = world.metadata.nodes
        self.armed = False
        self.recovered: list[LedgerId] = []
        world.metadata.on_write.append(self._written)

    def _written(self, key: str) -> None:
        ledger = ledger_of_path(key) if self.armed else None
        if ledger is not None and decode_ledger_metadata(self._nodes[key].value).state is LedgerState.IN_RECOVERY:
            self.recovered.append(ledger)


class Run:
    """One run: the brokers, the clients, and the faults that only brokers have."""

    def __init__(self, world: World, count: int) -> None:
        self.world = world
        self.consuming: list[asyncio.Task[None]] = []
        self.brokers = Brokers(world, SETTINGS, count)
        self.hosts = self.brokers.hosts
        self.moves = MoveWatch(world)
        self.ledgers = LedgerWatch(world)
        self.owners = OwnerWatch(world, self.hosts)
        urls = [one.url for one in self.hosts]
        self.topics = [
            TopicClients(
                TopicHistory(f"persistent://{NAMESPACE}/t{number}"), urls, self.brokers.chance(), world.loop.note
            )
            for number in range(TOPICS)
        ]

    async def begin(self) -> list["asyncio.Task[None]"]:
        """Start the brokers, create the namespace, and start the clients: returns the tasks of publishers."""
        await self.brokers.start()
        first = self.hosts[0].broker
        assert first is not None
        boundaries = [f"0x{number * (1 << 32) // BUNDLES:08x}" for number in range(BUNDLES)] + ["0xffffffff"]
        await first.policies.create_namespace(NAMESPACE, {"bundles": {"boundaries": boundaries, "numBundles": BUNDLES}})
        loop = self.world.loop
        self.consuming = [loop.run_on(self.brokers.client, one.consume()) for one in self.topics]
        return [loop.run_on(self.brokers.client, one.publish()) for one in self.topics]

    def change_rates(self, step: Step) -> None:
        """Make some topics hot."""
        chance = random.Random(step.value)
        for one in self.topics:
            one.rate = chance.choice((0.3, 0.3, 0.6, 4.0))

    def hush(self, step: Step) -> None:
        """Let the idlest broker not reach the metadata store for long, and make the others busy later.

        They are equally busy: none of them has a reason to move a bundle to another one of them.
        """
        sessions = self.world.sessions
        others = [one for one in self.hosts if one.broker is not None and not one.broker.balancing.leader.leads]
        quiet = min(others, key=lambda one: len(one.broker.topics.loaded) if one.broker else 0, default=None)
        if quiet is None or quiet.paused or sessions[quiet.host].cut:
            return
        sessions[quiet.host].cut = True
        self.world.loop.call_later(step.value, sessions[quiet.host].reach)
        self.world.loop.call_later(step.value / 2, self._heat, quiet, step.value / 2)

    def _heat(self, quiet: BrokerHost, seconds: float) -> None:
        for one in self.hosts:
            if one is not quiet:
                one.work(seconds)

    async def settle(self) -> None:
        """Let everything come to rest, and move some bundles."""
        for one in self.hosts:
            one.rest()
        await asyncio.sleep(SETTLE_S - MOVING_S)
        self._check_moves(SETTLE_S - MOVING_S)
        self.ledgers.armed = True
        begun_s, chance = self.world.loop.time(), self.brokers.chance()
        names = chance.sample([one.history.topic for one in self.topics], PLANNED_MOVES)
        for step in self.world.loop.plan.choose([Step(2.0 * at, "hand over", name) for at, name in enumerate(names)]):
            await asyncio.sleep(begun_s + step.at_s - self.world.loop.time())
            self.world.loop.note(str(step))
            for one in self.hosts:
                one.hand_over(parse_topic(step.who))
        await asyncio.sleep(begun_s + MOVING_S - self.world.loop.time())
        await self.check_rest()

    def _check_moves(self, rest_s: float) -> None:
        now_s = self.world.loop.time()
        rested = Counter(key for at, _, key in self.moves.moves if now_s - at < rest_s)
        again = [key for key, count in rested.items() if count > 1]
        if again:
            raise HistoryError(f"bundles moved back and forth in {rest_s:.0f} s of rest: {again}")

    async def check_rest(self) -> None:
        """Check that one broker leads, and each bundle in use has one owner that alone has its topics."""
        if self.moves.trouble:
            raise HistoryError(self.moves.trouble)
        if self.ledgers.recovered:
            raise HistoryError(
                f"ledgers {self.ledgers.recovered} are recovered although no fault disturbs their owners"
            )
        brokers = [one.broker for one in self.hosts if one.broker is not None]
        leaders = [one.broker_id for one in brokers if one.balancing.leader.leads]
        node = self.world.metadata.nodes.get(LEADER)
        stored = None if node is None else json.loads(node.value)["brokerId"]
        if leaders != [stored]:
            raise HistoryError(f"{leaders} lead, and the stored leader is {stored}")
        for topic in self.topics:
            name = parse_topic(topic.history.topic)
            serving = [one for one in brokers if one.topics.find(name) is not None]
            if len(serving) != 1:
                raise HistoryError(f"{name} is open at {[one.broker_id for one in serving]}")
            if not serving[0].owners.certain(await serving[0].owners.bundle_of(name)):
                raise HistoryError(f"{name} is open at {serving[0].broker_id}, which does not own its bundle")
        held: dict[Bundle, list[str]] = {}
        for one in brokers:
            for bundle in one.owners.held:
                held.setdefault(bundle, []).append(one.broker_id)
        doubled = {str(bundle): ids for bundle, ids in held.items() if len(ids) > 1}
        if doubled:
            raise HistoryError(f"bundles with several owners: {doubled}")

    async def check_topics(self) -> None:
        """Read each topic as a new client, and check that its subscription got everything."""
        for one in self.topics:
            await retry(lambda one=one: self.world.loop.run_on(self.brokers.client, one.read_all()), seconds=120)
            if one.history.undelivered:
                raise HistoryError(
                    f"{one.history.topic}: {len(one.history.undelivered)} acknowledged messages were not delivered"
                )


async def run(loop: SimLoop, seed: int) -> list[TopicHistory]:
    """Run one seed. Raises HistoryError or AssertionError if a guarantee is violated."""
    world = World(loop, seed)
    world.metadata.session_timeout_s = LEASE_S
    await world.start_bookies(3)
    run_ = Run(world, world.chance.choice((3, 3, 4, 5)))
    with simulated_machines(run_.hosts):
        return await _run(run_)


async def _run(run_: Run) -> list[TopicHistory]:
    world, loop = run_.world, run_.world.loop
    publishing = await run_.begin()
    watching = loop.create_task(run_.owners.run())
    more = {"rates": run_.change_rates, "hush": run_.hush}
    kinds, surely = world.chance.choice(((FAULTS, ("pause", "rates")), (MILD_FAULTS, ("hush",))))
    await run_.brokers.disturb(world.chance.uniform(25.0, 45.0), kinds, surely, more)
    await run_.settle()
    if watching.done():
        watching.result()
    watching.cancel()
    for one in run_.topics:
        one.stops = True
    try:
        async with asyncio.timeout(120):
            await asyncio.gather(*publishing)
    except TimeoutError:
        waiting = [one.history.topic for one in run_.topics if len(one.history.acknowledged) < one.history.sent]
        raise HistoryError(f"the publishers of {waiting} get no receipts although all faults are over") from None
    await asyncio.sleep(5.0)
    await run_.check_topics()
    return [one.history for one in run_.topics]
