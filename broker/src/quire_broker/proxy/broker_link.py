"""Connects a proxy to brokers: TLS, the CONNECT of a client with the proxy's credentials, and questions on it.

A link serves one client: the broker knows it by the original principal of its CONNECT. Must never be shared by clients.
"""

import asyncio
import ssl
from dataclasses import dataclass, field
from functools import partial

from quire_bookie.env.clock import WallClock
from quire_bookie.env.connection_memory import ConnectionMemory
from quire_bookie.env.secret_file import read_secret
from quire_bookie.env.tls import TlsContext, client_context
from quire_bookie.env.tls_socket import TlsSocket
from quire_bookie.errors import PeerProtocolError
from quire_bookie.limits import TLS_REFRESH_S
from quire_bookie.settings.tls import TlsFiles
from quire_broker.errors import BrokerError, ServerError, ServiceNotReadyError, server_error_of
from quire_broker.proxy.targets import Address
from quire_broker.security.credentials import TOKEN
from quire_broker.server.budget import PublishBudget
from quire_broker.server.connection import Connection
from quire_broker.settings.clients import SessionSettings
from quire_broker.settings.proxy import ProxyLimits
from quire_broker.wire import commands
from quire_broker.wire.frames import Frame, encode
from quire_broker.wire.kinds import Kind
from quire_broker.wire.proto import pulsar_pb2 as pb

ANSWERS: dict[int, str] = {
    Kind.PARTITIONED_METADATA_RESPONSE: "partition_metadata_response",
    Kind.LOOKUP_RESPONSE: "lookup_response",
    Kind.GET_TOPICS_OF_NAMESPACE_RESPONSE: "get_topics_of_namespace_response",
    Kind.GET_SCHEMA_RESPONSE: "get_schema_response",
    Kind.ERROR: "error",
}
"""The fields of the answers that brokers give."""


class RefusedByBrokerError(BrokerError):
    """A broker refused a CONNECT or a question. `code`: the reason that the client gets."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = ServerError(code) if code in _CODES else ServerError.UNKNOWN


_CODES = frozenset(ServerError)


def code_of(error: BrokerError) -> ServerError:
    """Return the code of an error, which may be that of a broker."""
    return error.code if isinstance(error, RefusedByBrokerError) else server_error_of(error)


@dataclass(frozen=True, slots=True)
class TowardsBrokers:
    """How a proxy proves itself to brokers. `tls`: None for plaintext; its certificate is the proxy's.

    `method`: `token` (the text, or the file `token_path`, read for each connection), `tls`, or empty for none.
    """

    tls: TlsFiles | None = None
    check_host_name: bool = True
    refresh_s: float = TLS_REFRESH_S
    method: str = ""
    token: str = field(default="", repr=False)
    token_path: str = ""


class BrokerLink:
    """One connection to a broker."""

    def __init__(self, hello: pb.CommandConnect) -> None:
        self._hello = hello
        self.connection: Connection
        self.connected: asyncio.Future[pb.BaseCommand] = asyncio.get_running_loop().create_future()
        """CONNECTED of the broker. RefusedByBrokerError, ServiceNotReadyError."""
        self._waiting: dict[int, asyncio.Future[pb.BaseCommand]] = {}
        self._next_id = 0
        self._ended = False

    @property
    def is_open(self) -> bool:
        """Whether it can be asked."""
        return self.connected.done() and not self._ended and not self.connection.closed

    def begin(self, connection: Connection) -> "BrokerLink":
        """Send CONNECT on the new connection."""
        self.connection = connection
        connection.write(encode(pb.BaseCommand(type=Kind.CONNECT, connect=self._hello)))
        return self

    def fail(self, reason: str) -> None:
        """End with this reason for all that wait."""
        self._ended = True
        error = ServiceNotReadyError(reason)
        waiting, self._waiting = self._waiting, {}
        for one in (self.connected, *waiting.values()):
            if not one.done():
                one.set_exception(error)
                one.exception()  # its owner may be gone

    def close(self) -> None:
        """Close the connection."""
        self.fail("the connection to the broker is closed")
        if hasattr(self, "connection"):
            self.connection.close()

    async def ask(self, command: pb.BaseCommand, field_name: str) -> pb.BaseCommand:
        """Send a request, which `command` has in this field, and return the answer. Uses ids of its own.

        RefusedByBrokerError, ServiceNotReadyError.
        """
        if not self.is_open:
            raise ServiceNotReadyError("the connection to the broker is closed")
        self._next_id += 1
        number = self._next_id
        getattr(command, field_name).request_id = number
        answer: asyncio.Future[pb.BaseCommand] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            self.connection.write(encode(command))
            return await answer
        finally:
            self._waiting.pop(number, None)

    # called by the connection

    def handle(self, frame: Frame) -> None:
        """Handle a frame of the broker."""
        if not isinstance(frame, pb.BaseCommand):
            raise PeerProtocolError("the broker sends messages on a connection for lookups")
        if not self.connected.done():
            self._greeted(frame)
        elif frame.type == Kind.PING:
            self.connection.write(commands.PONG)
        elif frame.type == Kind.PONG:
            return
        elif (name := ANSWERS.get(frame.type)) is not None:
            answer = self._waiting.get(getattr(frame, name).request_id)
            if answer is not None and not answer.done():
                answer.set_result(frame)
        else:
            raise PeerProtocolError(f"the broker sends command {frame.type} on a connection for lookups")

    def _greeted(self, frame: pb.BaseCommand) -> None:
        if frame.type == Kind.CONNECTED:
            self.connected.set_result(frame)
        elif frame.type == Kind.ERROR:
            self.connected.set_exception(RefusedByBrokerError(frame.error.error, frame.error.message))
            self.connected.exception()
            self.connection.close()
        else:
            raise PeerProtocolError(f"the broker answers CONNECT with command {frame.type}")

    def last_bytes(self, error: PeerProtocolError) -> bytes:
        """Send nothing to a broker that violates the protocol."""
        self.fail(str(error))
        return b""

    def lost(self) -> None:
        """Fail what waits: the connection is gone."""
        self.fail("the broker closed the connection")


class BrokerConnector:
    """Opens links. Call `open` before use."""

    def __init__(
        self, towards: TowardsBrokers, bounds: ProxyLimits, memory: ConnectionMemory, clock: WallClock
    ) -> None:
        self._towards = towards
        self._limits = bounds
        self._memory = memory
        self._clock = clock
        self._budget = PublishBudget(1)
        self._tls: TlsContext | None = None

    async def open(self) -> None:
        """Read the certificates. ConfigError."""
        if self._towards.tls is not None:
            make = partial(client_context, check_host_name=self._towards.check_host_name)
            self._tls = TlsContext(self._towards.tls, make, self._towards.refresh_s, self._clock)
            await self._tls.open()

    @property
    def uses_tls(self) -> bool:
        """Whether brokers are reached over TLS."""
        return self._towards.tls is not None

    async def tls_context(self) -> ssl.SSLContext | None:
        """Return the context for a connection to a broker; None for plaintext."""
        return None if self._tls is None else await self._tls.current()

    async def token(self) -> bytes:
        """Return the token of the proxy; empty if it has none. ServiceNotReadyError if its file cannot be read."""
        if not self._towards.token_path:
            return self._towards.token.encode()
        try:
            return await read_secret(self._towards.token_path)
        except OSError as error:
            raise ServiceNotReadyError(f"the proxy cannot read its token: {error.strerror}") from error

    async def connect(self, address: Address, hello: pb.CommandConnect) -> BrokerLink:
        """Return a link whose broker has accepted `hello`, with the proxy's credentials added.

        RefusedByBrokerError, ServiceNotReadyError.
        """
        own = pb.CommandConnect()
        own.CopyFrom(hello)
        own.ClearField("auth_method")
        own.auth_method_name = self._towards.method or "none"
        own.auth_data = await self.token() if self._towards.method == TOKEN else b""
        link = BrokerLink(own)
        try:
            async with asyncio.timeout(self._limits.connect_timeout_s):
                await self._open(link, address)
                await link.connected
        except (OSError, ssl.SSLError, TimeoutError) as error:
            link.close()
            reason = str(error) or f"no answer in {self._limits.connect_timeout_s:g} s"
            raise ServiceNotReadyError(f"the broker at {address} cannot be reached: {reason}") from error
        except BaseException:
            link.close()
            raise
        return link

    async def _open(self, link: BrokerLink, address: Address) -> None:
        context = await self.tls_context()

        def connection() -> Connection:
            frame_bytes = SessionSettings().frame_bytes_max
            return Connection(self._budget, frame_bytes, self._limits.keep_alive_s, 1, link.begin, self._memory)

        def secured() -> TlsSocket:
            assert context is not None
            return TlsSocket(
                connection,
                context,
                server_hostname=address.host,
                handshake_timeout_s=self._limits.connect_timeout_s,
                on_failure=lambda reason: link.fail(f"TLS with the broker at {address} fails: {reason}"),
            )

        loop = asyncio.get_running_loop()
        await loop.create_connection(connection if context is None else secured, address.host, address.port)
