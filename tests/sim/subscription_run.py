"""One topic with one subscription on two brokers: what the scenarios of subscriptions share.

A publisher numbers its messages. Brokers fail, and hand the topic over.
"""

import asyncio
from dataclasses import replace

from quire_broker.names import NamespaceName, TopicName
from quire_broker.server.broker import BrokerSettings
from quire_broker.topic.subscription import Subscription
from tests.sim.broker_faults import Brokers
from tests.sim.history import HistoryError
from tests.sim.plan import Step
from tests.sim.topic_clients import TopicClients, TopicHistory
from tests.sim.world import World, retry

NAMESPACE = NamespaceName("public", "simulated")
BOUNDARIES = ["0x00000000", "0x80000000", "0xffffffff"]
REST_S = 60.0
"""Within this time after the last fault, everything is delivered and acknowledged."""


class SubscriptionRun:
    """The brokers, which move nothing by themselves, and the publisher. `publishing`: its task."""

    def __init__(
        self, world: World, settings: BrokerSettings, topic: TopicName, name: str, history: TopicHistory, keys: int = 0
    ) -> None:
        """`name`: of the subscription. `keys`: see `TopicClients`."""
        self.world = world
        balancing = replace(settings.balancing, shedding=False, split=False)
        self.brokers = Brokers(world, replace(settings, balancing=balancing), 2)
        self.urls = [one.url for one in self.brokers.hosts]
        self.publisher = TopicClients(history, self.urls, self.brokers.chance(), world.loop.note, keys=keys)
        self.publishing: asyncio.Task[None]
        self._topic, self._name = topic, name

    # ---- the brokers' view
    def subscription(self, host: str) -> Subscription | None:
        """Return the subscription at a broker that has the topic open."""
        broker = next(one.broker for one in self.brokers.hosts if one.host == host)
        topic = None if broker is None else broker.topics.find(self._topic)
        return None if topic is None else topic.subscriptions.get(self._name)

    @property
    def unacknowledged(self) -> int | None:
        """The backlog at the topic's broker; None: no broker has the topic open."""
        found = [self.subscription(one.host) for one in self.brokers.hosts]
        return next((one.backlog for one in found if one is not None), None)

    # ---- what happens
    async def start_brokers(self) -> None:
        """Start the brokers and create the namespace."""
        await self.brokers.start()
        first = self.brokers.hosts[0].broker
        assert first is not None
        await first.policies.create_namespace(NAMESPACE, {"bundles": {"boundaries": BOUNDARIES, "numBundles": 2}})

    def move(self, step: Step) -> None:
        """Let the owner of the topic hand it to another broker."""
        for one in self.brokers.hosts:
            one.hand_over(self._topic)

    async def settle(self) -> None:
        """Wait until everything is published, delivered and acknowledged. HistoryError: too long, or as `check`."""
        self.publisher.stops = True
        topic = self.publisher.history
        try:
            async with asyncio.timeout(REST_S):
                await self.publishing
                while topic.undelivered or self.unacknowledged != 0:  # noqa: ASYNC110  virtual time
                    await asyncio.sleep(0.5)
        except TimeoutError:
            raise HistoryError(
                f"{REST_S:.0f} s after the last fault {topic.sent - len(topic.acknowledged)} messages have no receipt, "
                f"{len(topic.undelivered)} were not delivered, {self.unacknowledged} are not acknowledged"
            ) from None
        finally:
            self.check()

    def check(self) -> None:
        """Raise HistoryError for what a consumer should not have got."""
        topic = self.publisher.history
        if topic.trouble:
            raise HistoryError(f"{topic.topic}: {topic.trouble}")

    async def read_all(self) -> None:
        """Read the topic from its start and check it."""
        await retry(lambda: self.world.loop.run_on(self.brokers.client, self.publisher.read_all()), seconds=60)
