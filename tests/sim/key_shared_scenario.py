"""A Key_Shared subscription whose consumers join and leave, while its topic moves between brokers that fail.

A publisher numbers its messages, each with one of a few keys. Consumers are slow, ask for messages again, leave in
order or with a broken connection, and return. Brokers are killed, stopped, cut off and hand the topic over. Each
acknowledged message is delivered, those of a key in their order, and no consumer gets a message of a key while another
one that is attached holds an earlier one. At the end nothing is left unacknowledged.
"""

import asyncio
import random
from dataclasses import replace

from quire_broker.names import NamespaceName, parse_topic
from quire_broker.topic.subscription import Subscription
from tests.sim.broker_faults import Brokers
from tests.sim.broker_hosts import simulated_machines
from tests.sim.brokers_scenario import LEASE_S, SETTINGS
from tests.sim.history import HistoryError
from tests.sim.key_shared_clients import SUBSCRIPTION, KeyHistory, Member
from tests.sim.loop import SimLoop
from tests.sim.plan import Step
from tests.sim.topic_clients import TopicClients, TopicHistory
from tests.sim.world import World, retry

NAMESPACE = NamespaceName("public", "simulated")
TOPIC = parse_topic(f"persistent://{NAMESPACE}/keys")
BOUNDARIES = ["0x00000000", "0x80000000", "0xffffffff"]
KEYS = 6
MEMBERS = 4
RATE = 8.0
"""Messages per second."""
REST_S = 60.0
"""Within this time after the last fault, everything is delivered and acknowledged."""
FAULTS = {
    "pause": 1,
    "kill broker": 1,
    "start broker": 4,
    "cut brokers": 1,
    "heal": 4,
    "break": 1,
    "delay": 1,
    "stalls": 1,
    "metadata slow": 1,
    "lease away": 1,
    "move": 3,
    "join": 8,
    "leave": 6,
    "slow": 6,
    "refuse": 4,
}


class Run:
    """One run: the brokers, the publisher and the members."""

    def __init__(self, world: World) -> None:
        self.world = world
        balancing = replace(SETTINGS.balancing, shedding=False, split=False)
        self.brokers = Brokers(world, replace(SETTINGS, balancing=balancing), 2)
        urls = [one.url for one in self.brokers.hosts]
        self.publisher = TopicClients(str(TOPIC), urls, self.brokers.chance(), world.loop.note, keys=KEYS)
        self.publisher.rate = RATE
        self.history = KeyHistory(self.publisher.history, KEYS, self._attached)
        self.members = [
            Member(f"member{number}", str(TOPIC), self.history, urls, self.brokers.chance(), world.loop.note)
            for number in range(MEMBERS)
        ]
        self._work: list[asyncio.Task[None]] = []

    # ---- the brokers' view
    def _subscription(self, host: str) -> Subscription | None:
        broker = next(one.broker for one in self.brokers.hosts if one.host == host)
        topic = None if broker is None else broker.topics.find(TOPIC)
        return None if topic is None else topic.subscriptions.get(SUBSCRIPTION)

    def _attached(self, host: str) -> set[str]:
        subscription = self._subscription(host)
        return set() if subscription is None else {one.spec.name for one in subscription.consumers}

    @property
    def unacknowledged(self) -> int | None:
        """The backlog at the topic's broker; None: no broker has the topic open."""
        found = [self._subscription(one.host) for one in self.brokers.hosts]
        return next((one.backlog for one in found if one is not None), None)

    # ---- what happens
    async def begin(self) -> None:
        """Start the brokers and the clients; two members join."""
        await self.brokers.start()
        first = self.brokers.hosts[0].broker
        assert first is not None
        await first.policies.create_namespace(NAMESPACE, {"bundles": {"boundaries": BOUNDARIES, "numBundles": 2}})
        for member in self.members[:2]:
            member.wanted = True
        loop, client = self.world.loop, self.brokers.client
        self._work = [loop.run_on(client, one.run()) for one in self.members]
        self._work.append(loop.run_on(client, self.publisher.publish()))

    def change(self, step: Step) -> None:
        """Let one member join, leave, become slow or fast, or ask for messages again."""
        chance = random.Random(step.value)
        member = chance.choice(self.members)
        match step.kind:
            case "join":
                member.wanted = True
            case "leave":
                member.wanted, member.leaves_in_order = False, chance.random() < 0.5
            case "slow":
                member.pause_s = chance.choice((0.0, 0.05, 0.3, 1.5))
            case "refuse":
                member.refusals = chance.choice((1, 5))

    def move(self, step: Step) -> None:
        """Let the owner of the topic hand it to another broker."""
        for one in self.brokers.hosts:
            one.hand_over(TOPIC)

    async def end(self) -> None:
        """Wait until everything is published, delivered and acknowledged; check the topic."""
        for number, member in enumerate(self.members):
            member.wanted, member.pause_s, member.refusals = number < 2, 0.0, 0
        self.publisher.stops = True
        topic = self.publisher.history
        try:
            async with asyncio.timeout(REST_S):
                await self._work[-1]
                while topic.undelivered or self.unacknowledged != 0:  # noqa: ASYNC110  virtual time
                    await asyncio.sleep(0.5)
        except TimeoutError:
            raise HistoryError(
                f"{REST_S:.0f} s after the last fault {topic.sent - len(topic.acknowledged)} messages have no receipt, "
                f"{len(topic.undelivered)} were not delivered, {self.unacknowledged} are not acknowledged"
            ) from None
        finally:
            self.check()
        for one in self._work[:-1]:
            one.cancel()
        await retry(lambda: self.world.loop.run_on(self.brokers.client, self.publisher.read_all()), seconds=60)

    def check(self) -> None:
        """Raise HistoryError for what a member should not have got."""
        if self.history.trouble:
            raise HistoryError(f"{TOPIC}: {self.history.trouble}")


async def run(loop: SimLoop, seed: int) -> TopicHistory:
    """Run one seed. Raises HistoryError or AssertionError if a guarantee is violated."""
    world = World(loop, seed)
    world.metadata.session_timeout_s = LEASE_S
    await world.start_bookies(3)
    run_ = Run(world)
    with simulated_machines(run_.brokers.hosts):
        await run_.begin()
        more = dict.fromkeys(("join", "leave", "slow", "refuse"), run_.change) | {"move": run_.move}
        await run_.brokers.disturb(world.chance.uniform(15.0, 30.0), FAULTS, ("join", "leave", "slow"), more)
        run_.check()
        await run_.end()
    return run_.publisher.history
