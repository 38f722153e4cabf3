"""Owns the ports of a broker: the Pulsar protocol and HTTP, each plaintext, TLS, or both. Bound first, served later."""

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from functools import partial

from quire_bookie.admin.listening import listen, port_of
from quire_bookie.dataclass import dataclass
from quire_bookie.env.tls_socket import Handshakes, TlsSocket
from quire_bookie.errors import StartupError
from quire_broker.ownership.listeners import Binding
from quire_broker.ownership.owners import BrokerUrls
from quire_broker.server.connection import Connection

BINDINGS_KEY = "port in bindAddresses"


@dataclass(frozen=True, slots=True)
class PortSettings:
    """Addresses and ports. None means no such port, 0 a free one."""

    listen: str
    advertise: str
    port: int | None
    port_tls: int | None
    http_port: int | None
    http_port_tls: int | None
    flag: str = "--broker-port"
    """Flag of the command that chooses `port`."""
    bindings: tuple[Binding, ...] = ()
    """Further ports of the Pulsar protocol, each of a listener."""
    listener: str | None = ""
    """The listener of the clients of the other ports: "" for the default addresses, None if it is not known."""


def _over(
    tls: ssl.SSLContext | None, accept: Callable[[], Connection], seats: Handshakes | None
) -> Callable[[], asyncio.Protocol]:
    """Return what accepts connections with TLS."""
    assert tls is not None, "the settings were checked"
    return partial(TlsSocket, accept, tls, handshakes=seats)


class Ports:
    """Owns the listening sockets. `open` binds the ports, so their numbers are known; `serve` accepts connections."""

    def __init__(self, settings: PortSettings) -> None:
        self._settings = settings
        self._servers: list[asyncio.Server] = []
        self._accept: Callable[[], Connection] | None = None
        self.port = self.port_tls = self.http_port = self.http_port_tls = 0
        self.bound: list[int] = []
        """The ports of listeners, in the order of the settings."""
        self.web: list[tuple[socket.socket, ssl.SSLContext | None]] = []
        """Sockets bound for HTTP, with the context of those with TLS."""

    @property
    def urls(self) -> BrokerUrls:
        """The URLs at which clients reach the broker; empty for a missing port."""
        return BrokerUrls(
            self._url("pulsar", self.port),
            self._url("http", self.http_port),
            self._url("pulsar+ssl", self.port_tls),
            self._url("https", self.http_port_tls),
        )

    @property
    def broker_id(self) -> str:
        """The broker's id in the cluster: its host and a port that is unique on that host."""
        port = self.http_port or self.http_port_tls or self.port or self.port_tls
        return f"{self._settings.advertise}:{port}"

    def _url(self, scheme: str, port: int) -> str:
        host = self._settings.advertise
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}" if port else ""

    async def open(self, tls: ssl.SSLContext | None, seats: Handshakes | None = None) -> None:
        """Bind all ports. StartupError if one is in use; `close` releases those bound before it.

        `seats` count the TLS handshakes.
        """
        settings = self._settings
        accept = partial(self._connection, settings.listener)
        if settings.port is not None:
            self.port = await self._listen(accept, settings.listen, settings.port)
        if settings.port_tls is not None:
            self.port_tls = await self._listen(_over(tls, accept, seats), settings.listen, settings.port_tls)
        for one in settings.bindings:
            accept = partial(self._connection, one.listener)
            secured = _over(tls, accept, seats) if one.tls else accept
            self.bound.append(await self._listen(secured, one.host, one.port, BINDINGS_KEY))
        if settings.http_port is not None:
            self.http_port = self._listen_http(settings.http_port, None)
        if settings.http_port_tls is not None:
            self.http_port_tls = self._listen_http(settings.http_port_tls, tls)

    async def _listen(
        self, accept: Callable[[], asyncio.Protocol], where: str, port: int, setting: str | None = None
    ) -> int:
        try:
            server = await asyncio.get_running_loop().create_server(accept, where, port, start_serving=False)
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise StartupError(
                f"port {port} on {where} cannot be listened on: {reason}; "
                f"stop the other process or choose another {setting or self._settings.flag}"
            ) from error
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    def _listen_http(self, port: int, tls: ssl.SSLContext | None) -> int:
        taken = listen(self._settings.listen, port)
        self.web.append((taken, tls))
        return port_of(taken)

    def _connection(self, listener: str | None) -> Connection:
        assert self._accept is not None, "the servers start serving after this"
        connection = self._accept()
        connection.listener = listener
        return connection

    async def serve(self, accept: Callable[[], Connection]) -> None:
        """Serve the ports of the Pulsar protocol; `accept` creates the protocol of a new connection."""
        self._accept = accept
        for server in self._servers:
            await server.start_serving()

    def stop_listening(self) -> None:
        """Accept no more connections of the Pulsar protocol."""
        for server in self._servers:
            server.close()

    def close(self) -> None:
        """Close all ports."""
        self.stop_listening()
        for taken, _ in self.web:
            taken.close()
