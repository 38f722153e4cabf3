"""A running broker: what it is made of, in which order it starts and stops.

start: cluster nodes -> registration and instance number -> listen (binary, HTTP)
stop:  stop listening -> unload topics (clients are told) -> release bundles -> drop connections -> registration
"""

import asyncio
import logging
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from quire_bookie.env.background import Background
from quire_bookie.env.chance import Chance
from quire_bookie.env.clock import WallClock
from quire_bookie.env.connection_memory import ConnectionMemory, MemorySettings
from quire_bookie.errors import MetadataError, QuireError
from quire_bookie.metadata.store import MetadataStore
from quire_bookie.metrics import Reading
from quire_broker import __version__, limits
from quire_broker.managed_ledger.factory import ManagedLedgerFactory
from quire_broker.offload.settings import TierSettings
from quire_broker.offload.tier import Tier
from quire_broker.ownership.initialise import initialise_cluster
from quire_broker.ownership.isolation import Isolation
from quire_broker.ownership.listeners import Listener
from quire_broker.ownership.lookup import Lookups
from quire_broker.ownership.owners import CONFIRM_RETRY_S, BrokerUrls, Bundle, Owners
from quire_broker.ownership.policies import PolicyStore
from quire_broker.ownership.registration import Registration
from quire_broker.schemas.budget import SchemaBounds
from quire_broker.schemas.registry import SchemaRegistry
from quire_broker.security.authorization import Authorization
from quire_broker.security.opening import Access
from quire_broker.security.settings import AccessSettings
from quire_broker.server.budget import PublishBudget
from quire_broker.server.connection import Connection
from quire_broker.server.parts import BrokerParts, ProducerNames, SessionSettings
from quire_broker.server.permission_watch import Opened, PermissionWatch
from quire_broker.server.ports import Ports, PortSettings
from quire_broker.server.seats import Seats
from quire_broker.server.session import Session
from quire_broker.topic.backlog_quota_check import BacklogQuotaCheck, BacklogQuotaSettings
from quire_broker.topic.expiry import Expiry
from quire_broker.topic.topic import Topic
from quire_broker.topic.topics import Topics, TopicsSettings

if TYPE_CHECKING:
    from aiohttp.web import RouteDef

    from quire_bookie.client import LedgerClient
    from quire_broker.admin.web import WebServer

TICK_S = 10.0
log = logging.getLogger("quire.broker")


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """How a broker serves. Ports of 0 take a free one, None is none; `advertise` is the host that clients get."""

    cluster: str = "standalone"
    listen: str = "0.0.0.0"
    port: int | None = 6650
    http_port: int | None = 8080
    port_tls: int | None = None
    http_port_tls: int | None = None
    access: AccessSettings = field(default_factory=AccessSettings)
    advertise: str = "localhost"
    listeners: tuple[Listener, ...] = ()
    """Further addresses that clients are told when they ask for them by name."""
    session: SessionSettings = field(default_factory=SessionSettings)
    topics: TopicsSettings = field(default_factory=TopicsSettings)
    backlog_quotas: BacklogQuotaSettings = field(default_factory=BacklogQuotaSettings)
    tier: TierSettings = field(default_factory=TierSettings)
    schemas: SchemaBounds = field(default_factory=SchemaBounds)
    publish_bytes_max: int = limits.PUBLISH_BYTES_MAX
    connections_max: int = limits.CONNECTIONS_MAX
    connections_per_address_max: int = limits.CONNECTIONS_PER_ADDRESS_MAX
    memory: MemorySettings = field(default_factory=MemorySettings)
    """Of all connections together."""


class RunningBroker:
    """A broker that serves. Its parts are public to the admin API and to the status line."""

    def __init__(
        self,
        settings: BrokerSettings,
        metadata: MetadataStore,
        ledger_client: "LedgerClient",
        clock: WallClock,
        chance: Chance,
        more_routes: "Callable[[], Iterable[RouteDef]]" = tuple,
        memory: ConnectionMemory | None = None,
    ) -> None:
        """`more_routes`: of HTTP, for what else runs in this process; only super users may ask them. `memory`: of
        connections, where others in the process share it.
        """
        self.settings = settings
        self.metadata = metadata
        self.ledger_client = ledger_client
        self.clock = clock
        self.chance = chance
        self.background = Background()
        settings.memory.check(settings.session.frame_bytes_max)
        self.budget = PublishBudget(settings.publish_bytes_max)
        self.memory = memory or ConnectionMemory(settings.memory)
        self.policies = PolicyStore(metadata, settings.cluster)
        self.authorization = (
            Authorization(self.policies, settings.access.super_users) if settings.access.authorization else None
        )
        self.sessions = Seats(settings.connections_max, settings.connections_per_address_max)
        self.access = Access(settings.access, clock)
        self.ports = Ports(
            PortSettings(
                settings.listen,
                settings.advertise,
                *(settings.port, settings.port_tls, settings.http_port, settings.http_port_tls),
            )
        )
        self.started_ms = clock.now_ms()
        self.more_readings: list[Callable[[], list[Reading]]] = []
        """Of what else runs in this process, for /metrics."""
        self.more_routes = more_routes
        self.factory: ManagedLedgerFactory
        self.owners: Owners
        self.topics: Topics
        self.parts: BrokerParts
        self._registration: Registration
        self._web: WebServer | None = None
        self._stopped = False

    @property
    def urls(self) -> BrokerUrls:
        """Where clients reach it."""
        return replace(self.ports.urls, listeners=self.settings.listeners)

    @property
    def port(self) -> int:
        """Of the Pulsar protocol in clear; 0: there is none."""
        return self.ports.port

    @property
    def http_port(self) -> int:
        """Of HTTP in clear; 0: there is none."""
        return self.ports.http_port

    @property
    def broker_id(self) -> str:
        """Its id in the cluster: host and a port that no other broker of the host has."""
        ports = self.ports
        return f"{self.settings.advertise}:{ports.http_port or ports.http_port_tls or ports.port or ports.port_tls}"

    async def start(self) -> None:
        """Listen first, so that the ports are known; answer only once everything else is there."""
        settings = self.settings
        await self.access.open()
        await self.ports.open(self._accept, None if self.access.tls is None else self.access.tls.context, self.sessions)
        await initialise_cluster(self.policies, self.urls)
        self.owners = Owners(self.metadata, self.policies, self.urls)
        self.owners.on_lost = self._bundle_lost
        self.owners.on_retaken = self._bundle_retaken
        self._registration = Registration(self.metadata, self.broker_id, self.urls, __version__, self.clock)
        await self._registration.register()
        instance = await self._registration.instance_number()
        self.factory = ManagedLedgerFactory(
            self.ledger_client,
            self.metadata,
            settings.topics.ledger,
            self.clock,
            self.chance,
            Tier(settings.tier, os.environ),  # where the credentials for buckets are
            self.memory,
        )
        lookups = Lookups(self.owners, Isolation(self.metadata, self.policies, self.settings.advertise))
        self.topics = Topics(self.factory, self.policies, settings.topics, self.background, self.clock, lookups.tenure)
        quotas = BacklogQuotaCheck(self.topics, self.policies, settings.backlog_quotas, self.clock)
        self.parts = BrokerParts(
            settings=settings.session,
            topics=self.topics,
            lookups=lookups,
            policies=self.policies,
            schemas=SchemaRegistry(
                self.metadata,
                self.ledger_client,
                settings.topics.ledger,
                self.clock,
                self.chance,
                bounds=settings.schemas,
            ),
            backlog_quotas=quotas,
            names=ProducerNames(settings.cluster, instance),
            budget=self.budget,
            memory=self.memory,
            background=self.background,
            clock=self.clock,
            chance=self.chance,
            authentication=self.access.authentication,
            authorization=self.authorization,
        )
        self.background.keep(self._registration.run, "registration")
        self.background.keep(self.owners.run, "bundles in doubt")
        self.background.keep(self.owners.follow, "owner nodes of bundles")
        self.background.keep(self._tick, "tick")
        self.background.keep(Expiry(self.topics, self.policies, self.clock).run, "expiry of messages")
        self.background.keep(quotas.run, "backlog quotas")
        self.access.follow(self.background, self._check_credentials)
        if self.authorization is not None:
            watch = PermissionWatch(self._opened, settings.access.permissions_check_s)
            self.background.keep(watch.run, "permissions")
        await self.ports.serve()
        if self.ports.web:
            await self._serve_http()
        urls = self.urls
        log.info("broker serves %s", ", ".join(filter(None, (urls.native, urls.native_tls, urls.http, urls.http_tls))))

    def _check_credentials(self, keys_changed: bool) -> None:
        for session in list(self.sessions):
            session.check_credentials(keys_changed=keys_changed)

    def _opened(self) -> list[Opened]:
        return [one for session in self.sessions for one in session.opened()]

    async def _serve_http(self) -> None:
        # Here and not above: loading its library takes a third of the time to the first message.
        from quire_broker.admin.web import WebServer

        self._web = WebServer(self)
        for listening, tls in self.ports.web:
            await self._web.serve(listening, tls)

    def _accept(self) -> Connection:
        settings = self.settings.session
        return Connection(
            self.budget,
            settings.frame_bytes_max,
            settings.keep_alive_s,
            settings.pending_publishes_max,
            self._session,
            self.memory,
        )

    def _session(self, connection: Connection) -> Session:
        self.parts.stats.connections_opened += 1
        session = Session(self.parts, connection, self._session_lost)
        self.sessions.take(session, connection.address)
        return session

    def _session_lost(self, session: Session) -> None:
        self.parts.stats.connections_closed += 1
        self.sessions.leave(session)

    def _bundle_lost(self, bundle: Bundle) -> None:
        self.background.start(self._unload_topics(bundle), f"unload {bundle.namespace}/{bundle.range}")

    def _bundle_retaken(self, bundle: Bundle) -> None:
        self.background.start(self._check_topics(bundle), f"owners of {bundle.namespace}/{bundle.range}")

    async def _check_topics(self, bundle: Bundle) -> None:
        """Close the topics of a bundle that another broker opened meanwhile: an idle ledger does not notice it."""
        for topic in await self._topics_of(bundle):
            while self.owners.certain(bundle) and not topic.closing:
                try:
                    await topic.ledger.check_owner()
                    break
                except MetadataError as error:
                    log.info("cannot check the owner of %s yet: %s", topic.name, error)
                    await asyncio.sleep(CONFIRM_RETRY_S)

    async def unload_bundle(self, bundle: Bundle) -> None:
        """Close the topics of a bundle and give the bundle up."""
        self.owners.leave(bundle)
        try:
            await self._unload_topics(bundle)
        finally:
            await self.owners.release(bundle)

    async def _unload_topics(self, bundle: Bundle) -> None:
        await asyncio.gather(*(self.topics.unload(topic.name) for topic in await self._topics_of(bundle)))

    async def _topics_of(self, bundle: Bundle) -> list[Topic]:
        """The loaded topics of a bundle, and while the store is away perhaps others of its namespace."""
        found = []
        for topic in self.topics.loaded:
            try:
                of_bundle = await self.owners.bundle_of(topic.name) == bundle
            except QuireError:
                # Better one topic too many than one that stays.
                of_bundle = topic.name.namespace == bundle.namespace
            if of_bundle:
                found.append(topic)
        return found

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self.topics.tick()

    async def stop(self) -> None:
        """End in order. Everything acknowledged is durable before this and after it."""
        if self._stopped:
            return
        self._stopped = True
        self.ports.stop_listening()
        if hasattr(self, "parts"):
            try:
                async with asyncio.timeout(limits.STOP_S):
                    await self.topics.close()
                    await self.owners.close()
                    await self._registration.close()
                    await self.factory.close()
            except TimeoutError:
                log.warning("stopped without an orderly end after %.0f s", limits.STOP_S)
            except MetadataError as error:
                log.warning("stopped without telling the metadata store: %s", error)
        for session in list(self.sessions):
            session.close()
        if self._web is not None:
            await self._web.close()
        self.ports.close()
        await self.background.close()


async def start_broker(
    settings: BrokerSettings,
    *,
    metadata: MetadataStore,
    ledger_client: "LedgerClient",
    clock: WallClock,
    chance: Chance,
    more_routes: "Callable[[], Iterable[RouteDef]]" = tuple,
    memory: ConnectionMemory | None = None,
) -> RunningBroker:
    """A broker that serves. StartupError when a port is taken; metadata and client stay the caller's to close."""
    broker = RunningBroker(settings, metadata, ledger_client, clock, chance, more_routes, memory)
    started = False
    try:
        await broker.start()
        started = True
    finally:
        if not started:
            await broker.stop()
    return broker
