"""Owns a running proxy: start and end, ports, connections, the brokers that it knows.

start: certificates and keys -> ports are bound -> brokers are known -> serve
stop:  no new connections -> lookups are answered, connections are closed in even steps -> the ports are closed
"""

import asyncio
import logging
import socket
import ssl
from dataclasses import field
from typing import Protocol

from quire_bookie.dataclass import dataclass
from quire_bookie.env.background import Background
from quire_bookie.env.clock import WallClock
from quire_bookie.env.connection_memory import ConnectionMemory
from quire_bookie.metadata.store import MetadataStore
from quire_bookie.settings.memory import MemorySettings
from quire_broker.proxy.broker_book import BrokerBook, RegisteredBrokers, StaticBrokers
from quire_broker.proxy.broker_link import BrokerConnector
from quire_broker.proxy.parts import ProxyParts
from quire_broker.proxy.session import ProxySession
from quire_broker.proxy.targets import ANY, Targets
from quire_broker.proxy.towards_brokers import TowardsBrokers
from quire_broker.security.opening import Access
from quire_broker.security.settings import AccessSettings
from quire_broker.server.budget import PublishBudget
from quire_broker.server.connection import Connection
from quire_broker.server.ports import Ports, PortSettings
from quire_broker.server.seats import Seats
from quire_broker.settings.clients import SessionSettings
from quire_broker.settings.proxy import ProxyLimits

log = logging.getLogger("quire.proxy")
KEYS = ("maxConcurrentInboundConnections", "maxConcurrentInboundConnectionsPerIp")
_END_S = 5.0
"""After the drain, for the sockets to send what waits."""


@dataclass(frozen=True, slots=True)
class ProxySettings:
    """All settings of a proxy. `native` and `web`: addresses of brokers, where the metadata store is not asked."""

    ports: PortSettings
    access: AccessSettings = field(default_factory=AccessSettings)
    towards: TowardsBrokers = field(default_factory=TowardsBrokers)
    forwards_credentials: bool = False
    native: str = ""
    web: str = ""
    allowed_hosts: tuple[str, ...] = ()
    allowed_ports: tuple[str, ...] = (ANY,)
    limits: ProxyLimits = field(default_factory=ProxyLimits)
    memory: MemorySettings = field(default_factory=MemorySettings)


class HttpServer(Protocol):
    """Serves HTTP on listening sockets."""

    async def serve(self, listening: socket.socket, tls: ssl.SSLContext | None) -> None:
        """Start to answer requests on the socket."""

    async def close(self) -> None:
        """Stop listening and end running requests."""


class RunningProxy:
    """A proxy. Call `start`; `stop` ends it, also after a failed start."""

    def __init__(self, settings: ProxySettings, metadata: MetadataStore | None, clock: WallClock) -> None:
        """`metadata`: where brokers register; None if the settings name them. The caller closes it."""
        bounds = settings.limits
        self.settings = settings
        self.access = Access(settings.access, clock)
        self.ports = Ports(settings.ports)
        self.seats: Seats[ProxySession] = Seats(bounds.connections_max, bounds.connections_per_address_max, KEYS)
        self.draining = False
        memory, background = ConnectionMemory(settings.memory), Background(log)
        self._registered = (
            None if metadata is None else RegisteredBrokers(metadata, tls=settings.towards.tls is not None)
        )
        book: BrokerBook = self._registered or StaticBrokers(settings.native, settings.web)
        self.parts = ProxyParts(
            bounds,
            book,
            Targets(book.has, settings.allowed_hosts, settings.allowed_ports),
            BrokerConnector(settings.towards, bounds, memory, clock),
            memory,
            background,
            forwards_credentials=settings.forwards_credentials,
        )
        self._buffer = memoryview(bytearray(bounds.buffer_bytes // 2))
        self._budget = PublishBudget(1)
        self._web: HttpServer | None = None
        self._empty = asyncio.Event()
        self._stopped = False

    @property
    def not_ready(self) -> str:
        """Why clients should use another proxy; empty if they should not."""
        if self.draining:
            return "the proxy is being stopped"
        if self._registered is not None and not self._registered.ready.is_set():
            return "the metadata store has not answered yet"
        return "" if self.parts.book.brokers() else "no broker is registered"

    async def start(self, web: HttpServer) -> None:
        """Serve. ConfigError, StartupError."""
        self._web = web
        await self.access.open()
        await self.parts.connector.open()
        tls = None if self.access.tls is None else self.access.tls.context
        await self.ports.open(tls, self.seats)
        self.parts.authentication = self.access.authentication
        background = self.parts.background
        if self._registered is not None:
            background.keep(self._registered.follow, "registered brokers")
        self.access.follow(background, self._check_credentials)
        for listening, context in self.ports.web:
            await web.serve(listening, context)
        await self.ports.serve(self._accept)

    def _accept(self) -> Connection:
        bounds = self.settings.limits
        frame_bytes = SessionSettings().frame_bytes_max
        return Connection(self._budget, frame_bytes, bounds.keep_alive_s, 1, self._session, self.parts.memory)

    def _session(self, connection: Connection) -> ProxySession:
        self.parts.stats.connections_opened += 1
        session = ProxySession(self.parts, connection, self._buffer, self._lost)
        self.seats.take(session, connection.address)
        return session

    def _lost(self, session: ProxySession) -> None:
        self.seats.leave(session)
        if not self.seats:
            self._empty.set()

    def _check_credentials(self, keys_changed: bool) -> None:
        for session in list(self.seats):
            session.check_credentials(keys_changed=keys_changed)

    async def stop(self) -> None:
        """Stop in order: clients connect to another proxy, not all at once."""
        if self._stopped:
            return
        self._stopped = self.draining = True
        self.ports.stop_listening()
        await self._drain()
        if self._web is not None:
            await self._web.close()
        self.ports.close()
        await self.parts.background.close()

    async def _drain(self) -> None:
        sessions = list(self.seats)
        if not sessions:
            return
        log.info("%d connections are closed over %g s", len(sessions), self.settings.limits.drain_s)
        pause_s = self.settings.limits.drain_s / len(sessions)
        self._empty.clear()
        for session in sessions:
            session.leave()
            await asyncio.sleep(pause_s)
        try:
            async with asyncio.timeout(_END_S):
                while self.seats:
                    self._empty.clear()
                    await self._empty.wait()
        except TimeoutError:
            log.warning("%d connections had not taken what waits for them", len(self.seats))
