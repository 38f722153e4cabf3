"""Owns a running broker: its parts, its background tasks, and the order in which it starts to serve and stops.

serve: background tasks -> answer on the binary ports -> answer on the HTTP ports
stop:  stop listening -> hand bundles over -> unload topics -> remove the registration -> close connections

`quire_broker.broker_process` builds the parts.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Iterable
from dataclasses import field, replace
from typing import TYPE_CHECKING, Protocol

from quire_bookie.client import LedgerClient
from quire_bookie.dataclass import dataclass
from quire_bookie.errors import MetadataError, QuireError
from quire_bookie.metadata.store import MetadataStore
from quire_bookie.settings.memory import MemorySettings
from quire_bookie.settings.slow import SlowSettings
from quire_bookie.settings.traces import TraceSettings
from quire_broker import limits
from quire_broker.balancing.balancing import Balancing
from quire_broker.balancing.plan.loads import BrokerId
from quire_broker.balancing.usage import UsageMeter
from quire_broker.managed_ledger.factory import ManagedLedgerFactory
from quire_broker.managed_ledger.marked_ledgers import MarkedLedgers
from quire_broker.names import TopicName
from quire_broker.offload.settings import TierSettings
from quire_broker.ownership.isolation import Isolation
from quire_broker.ownership.listeners import Binding, Listener
from quire_broker.ownership.owners import CONFIRM_RETRY_S, BrokerUrls, Bundle, Owners
from quire_broker.ownership.registration import DRAINING, Registration
from quire_broker.security.opening import Access
from quire_broker.security.settings import AccessSettings
from quire_broker.server.connection import Connection
from quire_broker.server.dynamic_settings import Changeable, DynamicSettings
from quire_broker.server.handover import Handover, moved_to
from quire_broker.server.parts import BrokerParts
from quire_broker.server.permission_watch import Opened, PermissionWatch
from quire_broker.server.policy_changes import PolicyChanges
from quire_broker.server.ports import Ports
from quire_broker.server.receiving import Receiving
from quire_broker.server.seats import Seats
from quire_broker.server.session import Session
from quire_broker.settings.balancing import BalancingSettings
from quire_broker.settings.clients import ClientLimits, SessionSettings
from quire_broker.settings.console import ConsoleSettings
from quire_broker.settings.managed_ledger import MarkedLedgerSettings
from quire_broker.settings.metrics import MetricsSettings
from quire_broker.settings.schemas import SchemaBounds
from quire_broker.settings.topics import UnusedTopicSettings
from quire_broker.settings.websocket import WebSocketSettings
from quire_broker.topic.backlog_quota_check import BacklogQuotaSettings
from quire_broker.topic.compaction_check import CompactionCheck
from quire_broker.topic.expiry import Expiry
from quire_broker.topic.inactive import InactiveTopics
from quire_broker.topic.resource_groups import GroupLimits, GroupParts
from quire_broker.topic.topics import TopicsSettings
from quire_broker.topic.unused import UnusedTopics

if TYPE_CHECKING:
    from quire_bookie.admin.routes import Route  # its import takes a third of the time to the first message

log = logging.getLogger("quire.broker")


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """Settings of a broker. A port of 0 takes a free one, None means no port; `advertise` is the host for clients."""

    cluster: str = "standalone"
    metadata_url: str = ""
    """Of the metadata store that the broker was opened with, for tools. It holds no credentials."""
    listen: str = "0.0.0.0"
    port: int | None = 6650
    http_port: int | None = 8080
    port_tls: int | None = None
    http_port_tls: int | None = None
    access: AccessSettings = field(default_factory=AccessSettings)
    advertise: str = "localhost"
    listeners: tuple[Listener, ...] = ()
    """Further addresses, returned to clients that ask for them by name."""
    bindings: tuple[Binding, ...] = ()
    """Ports of listeners. Their clients need not name the listener."""
    stop_s: float = limits.STOP_S
    """How long an orderly end may take; half of it to hand bundles over."""
    move_close_s: float = limits.MOVE_CLOSE_S
    """How long the topics of a bundle may take to close when it moves."""
    session: SessionSettings = field(default_factory=SessionSettings)
    topics: TopicsSettings = field(default_factory=TopicsSettings)
    unused_topics: UnusedTopicSettings = field(default_factory=UnusedTopicSettings)
    marked_ledgers: MarkedLedgerSettings = field(default_factory=MarkedLedgerSettings)
    backlog_quotas: BacklogQuotaSettings = field(default_factory=BacklogQuotaSettings)
    tier: TierSettings = field(default_factory=TierSettings)
    schemas: SchemaBounds = field(default_factory=SchemaBounds)
    clients: ClientLimits = field(default_factory=ClientLimits)
    balancing: BalancingSettings = field(default_factory=BalancingSettings)
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    console: ConsoleSettings = field(default_factory=ConsoleSettings)
    slow: SlowSettings = field(default_factory=SlowSettings)
    traces: TraceSettings = field(default_factory=TraceSettings)
    websocket: WebSocketSettings = field(default_factory=WebSocketSettings)
    memory: MemorySettings = field(default_factory=MemorySettings)
    """Bounds the memory of all connections together."""
    changes_at_run_time: bool = True
    """Whether it uses settings that administrators change while it runs."""


class HttpServer(Protocol):
    """Serves the admin API on listening sockets."""

    async def serve(self, listening: socket.socket, tls: ssl.SSLContext | None) -> None:
        """Start to answer requests on the socket."""

    async def close(self) -> None:
        """Stop listening and end running requests."""


@dataclass(frozen=True, slots=True)
class OpenedParts:
    """The parts of a broker that are opened before it serves."""

    access: Access
    ports: Ports
    sessions: Seats[Session]
    owners: Owners
    registration: Registration
    factory: ManagedLedgerFactory
    balancing: Balancing
    isolation: Isolation


class RunningBroker:
    """A serving broker. Its parts are public to the admin API and to the status line."""

    def __init__(
        self,
        settings: BrokerSettings,
        metadata: MetadataStore,
        ledger_client: LedgerClient,
        opened: OpenedParts,
        parts: BrokerParts,
        more_routes: "Callable[[], Iterable[Route]]",
    ) -> None:
        """`more_routes`: HTTP routes of other services in this process; only super users may use them."""
        self.settings = settings
        self.metadata = metadata
        self.ledger_client = ledger_client
        self.parts = parts
        self.clock, self.chance = parts.clock, parts.chance
        self.background = parts.background
        self.budget, self.memory = parts.budget, parts.memory
        self.policies, self.topics = parts.policies, parts.topics
        self.unused = UnusedTopics(parts.topics, settings.unused_topics, parts.clock)
        base = Changeable(settings.topics.rates, settings.stop_s)
        self.dynamic = DynamicSettings(metadata, base, self._use_settings)
        if settings.changes_at_run_time:
            self.policies.on_settings = lambda: self.background.start(self.dynamic.load(), "changed settings")
        self.inactive = InactiveTopics(parts.topics, settings.topics.inactivity, parts.clock)
        self.marked = MarkedLedgers(opened.factory, ledger_client, metadata, settings.marked_ledgers, self.clock)
        self.authorization = parts.authorization
        self.access, self.ports, self.sessions = opened.access, opened.ports, opened.sessions
        self.owners, self.factory = opened.owners, opened.factory
        self.balancing = opened.balancing
        self._registration = opened.registration
        self.started_ms = self.clock.now_ms()
        self.more_routes = more_routes
        self._http: HttpServer | None = None
        self._stopped = False
        self.owners.on_lost = self._bundle_lost
        self.policies.on_change = PolicyChanges(self.apply_policies, self.background).notice
        self.policies.on_groups = self.topics.groups.changed.set
        self.owners.on_retaken = self._bundle_retaken
        self.balancing.assignments.on_move = self._move_bundle
        self.isolation = opened.isolation
        successor = self.balancing.assignments.successor if settings.balancing.enabled else self.isolation.successor
        self.handover = Handover(self.owners, self.topics, self.policies, successor, settings.move_close_s)
        self.owners.on_modified = Receiving(self.owners, self.topics, self.policies, self.background).modified

    async def apply_policies(self, concerns: Callable[[TopicName], bool]) -> None:
        """Apply changed policies to the loaded topics that they concern. One that fails keeps its own."""
        here = moved_to(self.urls)
        async for topic in self.topics.in_steps():
            if concerns(topic.name):
                try:
                    await self.topics.apply(topic, here)
                except QuireError as error:
                    log.info("policies of %s are applied when it is loaded again: %s", topic.name, error)
        for unstored in self.topics.non_persistent.loaded:
            if concerns(unstored.name):
                try:
                    self.topics.limit(unstored, await self.topics.rules(unstored))
                except QuireError as error:
                    log.info("rates of %s stay as they are: %s", unstored.name, error)

    async def _use_settings(self, wanted: Changeable) -> None:
        """Apply changed settings to this broker and its loaded topics."""
        before = self.topics.rates
        if wanted.rates == before:
            return
        self.parts.publish_limit.use(wanted.rates.broker_publish)
        self.topics.rates = wanted.rates
        self.topics.dispatch_limit.use(wanted.rates.broker_dispatch)
        async for topic in self.topics.in_steps():
            topic.limits_changed()
        if wanted.rates.of_topics != before.of_topics:
            await self.apply_policies(lambda name: True)

    async def _use_groups(self, changed: set[GroupLimits]) -> None:
        """Let delivery go on that waits for a former limit of these resource groups."""
        async for topic in self.topics.in_steps():
            if topic.group in changed:
                topic.limits_changed()

    @property
    def background_failures(self) -> int:
        """How many background tasks ended with an error."""
        return self.background.failures + self.balancing.failures

    @property
    def urls(self) -> BrokerUrls:
        """The URLs at which clients reach the broker."""
        return replace(self.ports.urls, listeners=self.settings.listeners)

    @property
    def port(self) -> int:
        """The plaintext port of the Pulsar protocol; 0 if there is none."""
        return self.ports.port

    @property
    def http_port(self) -> int:
        """The plaintext HTTP port; 0 if there is none."""
        return self.ports.http_port

    @property
    def broker_id(self) -> str:
        """Its id in the cluster."""
        return self.ports.broker_id

    async def serve(self, open_http: "Callable[[RunningBroker], HttpServer]") -> None:
        """Serve clients. `open_http` creates the HTTP server; it is called only if there is an HTTP port."""
        self.background.keep(self._registration.run, "registration")
        self.background.keep(self.owners.run, "bundles in doubt")
        self.background.keep(self.owners.follow, "owner nodes of bundles")
        self.background.keep(self.owners.release_again, "bundles that could not be released")
        self.background.keep(self.policies.follow, "policies")
        self.background.keep(self._tick, "tick")
        self.background.keep(self.unused.run, "unused topics")
        self.background.keep(self.inactive.run, "inactive topics")
        self.background.keep(self.marked.follow, "marks of open ledgers")
        self.background.keep(self.marked.run, "rollover of marked ledgers")
        self.background.keep(Expiry(self.topics, self.clock).run, "expiry of messages")
        self.background.keep(self.parts.backlog_quotas.run, "backlog quotas")
        compaction = CompactionCheck(self.topics, self.settings.topics.compaction)
        self.background.keep(compaction.run, "compaction thresholds")
        parts = GroupParts(self.topics.groups, self.metadata, self.broker_id, self._use_groups)
        self.background.keep(parts.run, "resource groups")
        stats = self.parts.stats
        meter = UsageMeter(lambda: (stats.bytes_in, stats.bytes_out), self.settings.balancing.nic_gbps)
        self.balancing.start(self.topics, meter)
        self.access.follow(self.background, self._check_credentials)
        if self.authorization is not None:
            watch = PermissionWatch(self._opened, self.settings.access.permissions_check_s)
            self.background.keep(watch.run, "permissions")
        await self.ports.serve(self._accept)
        if self.ports.web:
            self._http = open_http(self)
            for listening, tls in self.ports.web:
                await self._http.serve(listening, tls)
        urls = self.urls
        log.info("broker serves %s", ", ".join(filter(None, (urls.native, urls.native_tls, urls.http, urls.http_tls))))

    def _check_credentials(self, keys_changed: bool) -> None:
        for session in list(self.sessions):
            session.check_credentials(keys_changed=keys_changed)

    def _opened(self) -> list[Opened]:
        return [one for session in self.sessions for one in session.opened()]

    def _accept(self) -> Connection:
        settings = self.settings.session
        return Connection(
            self.budget,
            settings.frame_bytes_max,
            settings.keep_alive_s,
            settings.pending_publishes_max,
            self._session,
            self.memory,
            self.parts.slow,
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
        self.background.start(self._unload_topics(bundle), f"unload {bundle}")

    def _bundle_retaken(self, bundle: Bundle) -> None:
        self.background.start(self._check_topics(bundle), f"owners of {bundle}")

    def _move_bundle(self, bundle: Bundle, target: BrokerId) -> None:
        if self.owners.holds(bundle):
            self.background.start(self.unload_bundle(bundle, target), f"move {bundle} to {target}")

    async def _check_topics(self, bundle: Bundle) -> None:
        """Close the topics of a bundle that another broker opened meanwhile: an idle ledger does not notice it."""
        for topic in await self.handover.topics_of(bundle):
            while self.owners.certain(bundle) and not topic.closing:
                try:
                    await topic.ledger.check_owner()
                    break
                except MetadataError as error:
                    log.info("cannot check the owner of %s yet: %s", topic.name, error)
                    await asyncio.sleep(CONFIRM_RETRY_S)

    async def unload_bundle(self, bundle: Bundle, to: str | None = None) -> None:
        """Close the topics of a bundle and hand it to the broker `to`, or to any other; without one, release it.

        Goes on to its end if the caller is cancelled.
        """
        await asyncio.shield(self.background.spawn(self.handover.move(bundle, to), f"unload {bundle}"))

    async def _unload_topics(self, bundle: Bundle) -> None:
        await asyncio.gather(*(self.topics.unload(topic.name) for topic in await self.handover.topics_of(bundle)))
        await self.handover.let_go_unstored(bundle)

    async def drain(self) -> None:
        """Hand every bundle to other brokers and take none any more; the broker itself continues to run."""
        self.isolation.draining = True
        try:
            await self._registration.publish({DRAINING: True})
        except MetadataError as error:
            log.warning("no bundle is handed over, because the metadata store does not answer: %s", error)
            return
        await self.handover.drain()

    async def _drain_for(self, patience_s: float) -> None:
        """Drain, but not longer than this: the other topics must be closed in order, too."""
        try:
            async with asyncio.timeout(patience_s):
                await self.drain()
        except TimeoutError:
            log.warning("%d bundles were not handed over in %.0f s", len(self.owners.held), patience_s)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(limits.TOPICS_TICK_S)
            await self.topics.tick()

    async def stop(self) -> None:
        """Stop in order. Everything acknowledged is durable before this and after it."""
        if self._stopped:
            return
        self._stopped = True
        self.ports.stop_listening()
        stop_s = self.dynamic.in_force.stop_s
        try:
            async with asyncio.timeout(stop_s):
                await self._drain_for(stop_s / 2)
                await self.balancing.close()
                await self.topics.close()
                await self.owners.close()
                await self._registration.close()
                await self.factory.close()
        except TimeoutError:
            log.warning("stopped without an orderly end: it took longer than %.0f s", stop_s)
        except MetadataError as error:
            log.warning("stopped without an update of the metadata store: %s", error)
        for session in list(self.sessions):
            session.close()
        if self._http is not None:
            await self._http.close()
        self.ports.close()
        await self.background.close()
