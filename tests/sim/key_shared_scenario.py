"""A Key_Shared subscription whose consumers join and leave, while its topic moves between brokers that fail.

A publisher numbers its messages, each with one of a few keys. Consumers are slow, ask for messages again, leave in
order or with a broken connection, and return. Brokers are killed, stopped, cut off and hand the topic over. Each
acknowledged message is delivered, those of a key in their order, and no consumer gets a message of a key while another
one that is attached holds an earlier one. At the end nothing is left unacknowledged.
"""

import asyncio
import random

from quire_broker.names import parse_topic
from tests.sim.broker_hosts import simulated_machines
from tests.sim.brokers_scenario import LEASE_S, SETTINGS
from tests.sim.key_shared_clients import SUBSCRIPTION, KeyHistory, Member
from tests.sim.loop import SimLoop
from tests.sim.plan import Step
from tests.sim.subscription_run import NAMESPACE, SubscriptionRun
from tests.sim.topic_clients import TopicHistory
from tests.sim.world import World

TOPIC = parse_topic(f"persistent://{NAMESPACE}/keys")
KEYS = 6
MEMBERS = 4
RATE = 8.0
"""Messages per second."""
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


class Run(SubscriptionRun):
    """One run: the brokers, the publisher and the members."""

    def __init__(self, world: World) -> None:
        super().__init__(world, SETTINGS, TOPIC, SUBSCRIPTION, TopicHistory(str(TOPIC)), KEYS)
        self.publisher.rate = RATE
        self.history = KeyHistory(self.publisher.history, KEYS, self._attached)
        self.members = [
            Member(f"member{number}", str(TOPIC), self.history, self.urls, self.brokers.chance(), world.loop.note)
            for number in range(MEMBERS)
        ]
        self._consuming: list[asyncio.Task[None]] = []

    def _attached(self, host: str) -> set[str]:
        subscription = self.subscription(host)
        return set() if subscription is None else {one.spec.name for one in subscription.consumers}

    # ---- what happens
    async def begin(self) -> None:
        """Start the brokers and the clients; two members join."""
        await self.start_brokers()
        for member in self.members[:2]:
            member.wanted = True
        loop, client = self.world.loop, self.brokers.client
        self._consuming = [loop.run_on(client, one.run()) for one in self.members]
        self.publishing = loop.run_on(client, self.publisher.publish())

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

    async def end(self) -> None:
        """Wait until everything is published, delivered and acknowledged; check the topic."""
        for number, member in enumerate(self.members):
            member.wanted, member.pause_s, member.refusals = number < 2, 0.0, 0
        await self.settle()
        for one in self._consuming:
            one.cancel()
        await self.read_all()


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
