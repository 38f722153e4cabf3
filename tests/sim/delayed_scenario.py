"""A Shared subscription with delayed messages, whose times are saved in buckets, while its topic moves between brokers.

Three of four messages are delayed by up to 20 s, and each four of them become a bucket. Brokers are killed, stopped,
cut off and hand the topic over; bookies crash. Each acknowledged message is delivered, none before its time, and no
consumer gets a message twice. At the end nothing is left: no message, and no bucket.
"""

import asyncio
import random
from dataclasses import dataclass, field, replace

from quire_bookie.metadata.layout import ledger_path
from quire_bookie.model import LedgerId
from quire_broker.managed_ledger.cursors.cursor_state import decode_node
from quire_broker.managed_ledger.list_store import node_path
from quire_broker.names import parse_topic
from quire_broker.settings.dispatch import DispatchSettings
from tests.sim.broker_hosts import simulated_machines
from tests.sim.brokers_scenario import LEASE_S, SETTINGS
from tests.sim.history import HistoryError
from tests.sim.loop import SimLoop
from tests.sim.subscription_run import NAMESPACE, REST_S, SubscriptionRun
from tests.sim.topic_clients import SUBSCRIPTION, TopicHistory
from tests.sim.world import SimClock, World

TOPIC = parse_topic(f"persistent://{NAMESPACE}/delayed")
NODE = f"{node_path(f'{NAMESPACE}/persistent/delayed')}/{SUBSCRIPTION}"
BUCKET_ENTRIES = 4
DELAY_MS = 20_000
LIVE_SHARE = 0.25
RATE = 10.0
"""Messages per second."""
FAULTS = {
    "pause": 1,
    "kill broker": 2,
    "start broker": 6,
    "cut brokers": 1,
    "heal": 4,
    "break": 2,
    "delay": 1,
    "stalls": 1,
    "metadata slow": 1,
    "metadata away": 1,
    "lease away": 1,
    "crash": 1,
    "start": 4,
    "move": 4,
}


@dataclass(slots=True, kw_only=True)
class DelayedHistory(TopicHistory):
    """The delivery times, and the messages that the consumer got since it subscribed."""

    clock: SimClock = field(repr=False)
    chance: random.Random = field(repr=False)
    due_ms: dict[int, int] = field(default_factory=dict)
    buckets: set[int] = field(default_factory=set)
    """The ledgers of all buckets that the subscription ever named."""
    _got: set[int] = field(default_factory=set)

    def deliver_at_ms(self, number: int) -> int:
        """Return the delivery time, which stays when a message is sent again."""
        if number not in self.due_ms:
            is_live = self.chance.random() < LIVE_SHARE
            self.due_ms[number] = 0 if is_live else self.clock.now_ms() + self.chance.randrange(1, DELAY_MS)
        return self.due_ms[number]

    def joined(self) -> None:
        """Forget what an earlier consumer got: an acknowledgment that was not saved may be lost with its broker."""
        self._got.clear()

    def arrived(self, number: int) -> None:
        """Check a delivery."""
        early_ms = self.due_ms[number] - self.clock.now_ms()
        if early_ms > 0:
            self.trouble = self.trouble or f"message {number} arrives {early_ms} ms before its time"
        if number in self._got:
            self.trouble = self.trouble or f"a consumer gets message {number} twice"
        self._got.add(number)
        self.delivered.add(number)


class Run(SubscriptionRun):
    """One run: the brokers, the publisher and the consumer."""

    def __init__(self, world: World) -> None:
        topics = SETTINGS.topics
        dispatch = DispatchSettings(delayed_bucket_entries=BUCKET_ENTRIES)
        settings = replace(SETTINGS, topics=replace(topics, topic=replace(topics.topic, subscriptions=dispatch)))
        self.history = DelayedHistory(
            topic=str(TOPIC), clock=world.clock, chance=random.Random(world.chance.randrange(1 << 30))
        )
        super().__init__(world, settings, TOPIC, SUBSCRIPTION, self.history)
        self.publisher.rate = RATE
        self._consuming: asyncio.Task[None]
        world.metadata.on_write.append(self._written)

    def _written(self, key: str) -> None:
        if key == NODE:
            self.history.buckets |= self._named

    @property
    def _named(self) -> set[int]:
        """The ledgers of the buckets that the cursor's node names."""
        return {one.ledger_id for one in decode_node(self.world.metadata.nodes[NODE].value).buckets}

    @property
    def _left(self) -> set[int]:
        """The buckets that the node names, or whose ledgers exist."""
        nodes = self.world.metadata.nodes
        return {one for one in self.history.buckets if ledger_path(LedgerId(one)) in nodes} | self._named

    async def begin(self) -> None:
        """Start the brokers and the clients, and wait for the first bucket."""
        await self.start_brokers()
        loop, client = self.world.loop, self.brokers.client
        self._consuming = loop.run_on(client, self.publisher.consume())
        self.publishing = loop.run_on(client, self.publisher.publish())
        async with asyncio.timeout(REST_S):
            while not self.history.buckets:  # noqa: ASYNC110  virtual time
                await asyncio.sleep(0.1)

    async def end(self) -> None:
        """Wait until everything is published, delivered and acknowledged; check the topic and the buckets."""
        await self.settle()
        try:
            async with asyncio.timeout(REST_S):
                while self._left:  # noqa: ASYNC110  virtual time
                    await asyncio.sleep(0.5)
        except TimeoutError:
            raise HistoryError(f"{TOPIC}: {len(self._left)} of {len(self.history.buckets)} buckets are left") from None
        self._consuming.cancel()
        await self.read_all()


async def run(loop: SimLoop, seed: int) -> DelayedHistory:
    """Run one seed. Raises HistoryError or AssertionError if a guarantee is violated."""
    world = World(loop, seed)
    world.metadata.session_timeout_s = LEASE_S
    await world.start_bookies(3)
    run_ = Run(world)
    with simulated_machines(run_.brokers.hosts):
        await run_.begin()
        seconds = world.chance.uniform(20.0, 40.0)
        await run_.brokers.disturb(seconds, FAULTS, ("kill broker", "move"), {"move": run_.move})
        run_.check()
        await run_.end()
    return run_.history
