"""Brokers of a simulated store that balance, without ports and topics: ownership, assignments, leaders."""

import asyncio
import itertools
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from quire_bookie.env.background import Background
from quire_broker.balancing.balancing import Balancing
from quire_broker.balancing.load_report import BundleStats, Usage, report_of
from quire_broker.balancing.plan.loads import BrokerId, BundleName
from quire_broker.names import parse_namespace, parse_topic
from quire_broker.ownership.isolation import Isolation
from quire_broker.ownership.lookup import Lookups
from quire_broker.ownership.owners import BrokerUrls, Bundle, Owner, Owners
from quire_broker.ownership.registration import Registration
from quire_broker.policies.store import PolicyStore
from quire_broker.settings.balancing import BalancingSettings
from tests.sim.metadata import SimMetadata, SimMetadataStore

NAMESPACE = parse_namespace("shop/orders")


class Clock:
    """Shows a time of its own for each look: no two reports state the same."""

    _times = itertools.count(1)

    def now_ms(self) -> int:
        return next(self._times)


class BalancedBroker:
    """The parts of one broker that decide where bundles are."""

    def __init__(self, server: SimMetadata, host: str, settings: BalancingSettings) -> None:
        self.session = SimMetadataStore(server)
        self.id = f"{host}:2"
        self.urls = BrokerUrls(f"pulsar://{host}:1", f"http://{host}:2")
        self.policies = PolicyStore(self.session, "c1")
        self.owners = Owners(self.session, self.policies, self.urls)
        self.registration = Registration(self.session, self.id, self.urls, "0.1", Clock())
        isolation = Isolation(self.session, self.policies, host, self.id)
        self.balancing = Balancing(
            self.session, self.policies, self.owners, self.registration, isolation, self.id, Clock(), settings
        )
        self.lookups = Lookups(self.owners, self.balancing.assignments)
        self.balancing.assignments.on_move = self._move
        self.moved: list[tuple[Bundle, BrokerId]] = []
        self.tasks = Background()

    async def start(self) -> None:
        await self.registration.register()
        self.tasks.keep(self.balancing.assignments.follow, "assignments")
        self.tasks.keep(self.balancing.leader.run, "leader")

    async def find(self, number: int) -> Owner:
        owner = await self.lookups.find(parse_topic(f"persistent://{NAMESPACE}/topic-{number}"))
        assert owner is not None
        return owner

    async def find_in(self, bundle: Bundle) -> Owner:
        """Look up a topic of a bundle."""
        ring = await self.policies.bundles(NAMESPACE)
        assert ring is not None
        topics = (f"persistent://{NAMESPACE}/topic-{number}" for number in range(1000))
        topic = next(topic for topic in topics if ring.bundle_of(topic) == bundle.range)
        owner = await self.lookups.find(parse_topic(topic))
        assert owner is not None
        return owner

    async def report(self, cpu_percent: float, **rates: float) -> None:
        """Publish a report with this usage and these rates of its bundles, named by the start of their range."""
        stats = {BundleName(f"{each.namespace}/{each.range}"): BundleStats(topics=1) for each in self.owners.held}
        for name, each in stats.items():
            each.rate_in = rates.get(name.split("/")[2][:4], 1.0)
        await self.registration.publish(report_of(Usage(cpu_percent=cpu_percent), stats, (), Clock().now_ms(), 100))

    def _move(self, bundle: Bundle, target: BrokerId) -> None:
        if self.owners.leave(bundle):
            self.moved.append((bundle, target))
            self.tasks.start(self.owners.release(bundle), "release")


@asynccontextmanager
async def balanced_brokers(hosts: str, bundles: int, **settings: Any) -> AsyncIterator[list[BalancedBroker]]:
    """Run these brokers with one namespace; the first one leads."""
    server = SimMetadata(random.Random(1), delay_s=(0.0, 0.0))
    given = BalancingSettings(**settings)
    brokers = [BalancedBroker(server, host, given) for host in hosts.split()]
    await brokers[0].policies.create_tenant(NAMESPACE.tenant, {})
    await brokers[0].policies.create_namespace(NAMESPACE, {"bundles": {"numBundles": bundles}})
    try:
        for broker in brokers:
            await broker.registration.register()
        for broker in brokers:
            await broker.start()
            await until(lambda: brokers[0].balancing.leader.leads)
        yield brokers
    finally:
        for broker in brokers:
            await broker.tasks.close()


async def until(condition: Any) -> None:
    """Wait until the condition holds; the time limit of the test ends it."""
    while not condition():  # noqa: ASYNC110  no event tells
        await asyncio.sleep(0)
