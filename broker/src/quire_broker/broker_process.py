"""Builds a broker, starts it, and adds its HTTP server: the only module that knows both the server and the admin API.

start: open the credentials -> bind the ports -> cluster nodes -> registration and instance number -> parts -> serve
"""

import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from quire_bookie.client import LedgerClient
from quire_bookie.env.background import Background
from quire_bookie.env.chance import Chance
from quire_bookie.env.clock import WallClock
from quire_bookie.env.connection_memory import ConnectionMemory
from quire_bookie.env.slow_log import SlowLog
from quire_bookie.env.tracing import SpanSink, Tracing
from quire_bookie.metadata.store import MetadataStore
from quire_broker import __version__
from quire_broker.balancing.balancing import Balancing
from quire_broker.dispatch.entry_filters import filters_with
from quire_broker.managed_ledger.factory import ManagedLedgerFactory
from quire_broker.offload.tier import Tier
from quire_broker.ownership.initialise import initialise_cluster
from quire_broker.ownership.isolation import Isolation
from quire_broker.ownership.listeners import listener_of_other_ports
from quire_broker.ownership.lookup import Lookups
from quire_broker.ownership.owners import Owners
from quire_broker.ownership.reachability import Reachability
from quire_broker.ownership.registration import Registration
from quire_broker.policies.store import PolicyStore
from quire_broker.schemas.registry import SchemaRegistry
from quire_broker.security.authorization import Authorization
from quire_broker.security.opening import Access
from quire_broker.server.broker import BrokerSettings, HttpServer, OpenedParts, RunningBroker
from quire_broker.server.budget import PublishBudget
from quire_broker.server.parts import BrokerParts, ProducerNames
from quire_broker.server.ports import Ports, PortSettings
from quire_broker.server.seats import Seats
from quire_broker.server.session import Session
from quire_broker.server.topic_lists import TopicLists
from quire_broker.topic.backlog_quota_check import BacklogQuotaCheck
from quire_broker.topic.publish_limit import PublishLimit
from quire_broker.topic.topics import Topics
from quire_broker.traced_entries import Traces

if TYPE_CHECKING:
    from quire_bookie.admin.routes import Route
    from quire_bookie.exposition.rendering import Collector


class _Building:
    """Builds the parts of one broker: those that need no port at once, the others after the ports are known."""

    def __init__(
        self,
        settings: BrokerSettings,
        metadata: MetadataStore,
        ledger_client: LedgerClient,
        clock: WallClock,
        chance: Chance,
        memory: ConnectionMemory | None,
        spans: SpanSink | None,
    ) -> None:
        self._spans = spans
        settings.memory.check(settings.session.frame_bytes_max)
        self._settings = settings
        self._metadata, self._ledger_client = metadata, ledger_client
        self._clock, self._chance = clock, chance
        self._memory = memory or ConnectionMemory(settings.memory)
        self._filters = filters_with(settings.topics.filters)
        self.background = Background()
        self.access = Access(settings.access, clock)
        self.sessions: Seats[Session] = Seats(
            settings.clients.connections_max, settings.clients.connections_per_address_max
        )
        self.ports = Ports(
            PortSettings(
                settings.listen,
                settings.advertise,
                settings.port,
                settings.port_tls,
                settings.http_port,
                settings.http_port_tls,
                bindings=settings.bindings,
                listener=listener_of_other_ports(settings.listeners, settings.bindings),
            )
        )

    async def open(self) -> tuple[OpenedParts, BrokerParts]:
        """Bind the ports, register the broker in the cluster, and return its parts. StartupError."""
        settings, access = self._settings, self.access
        await access.open()
        # First, so that their numbers are known; they answer when everything else is ready.
        await self.ports.open(None if access.tls is None else access.tls.context, self.sessions)
        policies = PolicyStore(self._metadata, settings.cluster)
        urls = replace(self.ports.urls, listeners=settings.listeners)
        await initialise_cluster(policies, urls)
        owners = Owners(self._metadata, policies, urls, self.ports.broker_id)
        unstored = self._settings.topics.non_persistent.enabled
        registration = Registration(
            self._metadata, self.ports.broker_id, urls, __version__, self._clock, non_persistent=unstored
        )
        await registration.register()
        names = ProducerNames(settings.cluster, await registration.instance_number())
        factory = ManagedLedgerFactory(
            self._ledger_client,
            self._metadata,
            settings.topics.ledger,
            self._clock,
            self._chance,
            Tier(settings.tier, os.environ),  # which holds the credentials of buckets
            self._memory,
            SlowLog(settings.slow),
            self._traces(),
        )
        isolation = Isolation(self._metadata, policies, settings.advertise, self.ports.broker_id)
        balancing = Balancing(
            self._metadata,
            policies,
            owners,
            registration,
            isolation,
            self.ports.broker_id,
            self._clock,
            settings.balancing,
        )
        placement = balancing.assignments if settings.balancing.enabled else isolation
        opened = OpenedParts(access, self.ports, self.sessions, owners, registration, factory, balancing, isolation)
        return opened, self._parts(policies, Lookups(owners, placement, Reachability()), factory, names)

    def _traces(self) -> Traces | None:
        if self._spans is None:
            return None
        return Traces(Tracing(self._settings.traces, self._spans, "quire.broker", self._clock, self._chance))

    def _parts(
        self, policies: PolicyStore, lookups: Lookups, factory: ManagedLedgerFactory, names: ProducerNames
    ) -> BrokerParts:
        settings, clock, chance = self._settings, self._clock, self._chance
        topics = Topics(factory, policies, settings.topics, self.background, clock, lookups, self._filters)
        authorization = Authorization(policies, settings.access.super_users, settings.access.proxy_roles)
        return BrokerParts(
            settings=settings.session,
            topics=topics,
            topic_lists=TopicLists(self._metadata, topics, self.background),
            lookups=lookups,
            policies=policies,
            schemas=SchemaRegistry(
                self._metadata, self._ledger_client, settings.topics.ledger, clock, chance, bounds=settings.schemas
            ),
            backlog_quotas=BacklogQuotaCheck(topics, settings.backlog_quotas, clock),
            names=names,
            budget=PublishBudget(settings.clients.publish_bytes_max),
            publish_limit=PublishLimit(settings.topics.rates.broker_publish),
            memory=self._memory,
            slow=factory.slow,
            traces=factory.traces,
            background=self.background,
            clock=clock,
            chance=chance,
            authentication=self.access.authentication,
            authorization=authorization if settings.access.authorization else None,
        )


async def start_broker(
    settings: BrokerSettings,
    *,
    metadata: MetadataStore,
    ledger_client: LedgerClient,
    clock: WallClock,
    chance: Chance,
    more_routes: "Callable[[], Iterable[Route]]" = tuple,
    more_collectors: "Callable[[], Iterable[Collector]]" = tuple,
    memory: ConnectionMemory | None = None,
    spans: SpanSink | None = None,
) -> RunningBroker:
    """Return a serving broker. StartupError if a port is in use. The caller closes metadata and client.

    `more_routes`: HTTP routes of other services in this process; only super users may use them. `more_collectors`:
    metrics of those services. `memory`: that of connections, if others in the process share it.
    `spans`: takes the spans of traces; None: nothing is traced.
    """

    def open_http(broker: RunningBroker) -> HttpServer:
        # Imported here: loading its library takes a third of the time to the first message.
        from quire_broker.admin.web import WebServer, make_app

        return WebServer(make_app(broker, more_collectors()), broker.settings.access.http)

    building = _Building(settings, metadata, ledger_client, clock, chance, memory, spans)
    broker: RunningBroker | None = None
    serves = False
    try:
        opened, parts = await building.open()
        broker = RunningBroker(settings, metadata, ledger_client, opened, parts, more_routes)
        await broker.serve(open_http)
        serves = True
    finally:
        if not serves:
            if broker is not None:
                await broker.stop()
            building.ports.close()
            await building.background.close()
    return broker
