"""Connects a process to a broker as a client does: TLS, CONNECT, and requests with their answers.

The proxy and the WebSocket service use it. A link serves one client, with the credentials of its CONNECT. Must never be
shared by clients.
"""

import asyncio
import ssl
from collections.abc import Callable, Mapping

from quire_bookie.dataclass import dataclass
from quire_bookie.env.connection_memory import ConnectionMemory
from quire_bookie.env.tls_socket import TlsSocket
from quire_bookie.errors import PeerProtocolError
from quire_broker.errors import BrokerError, ServerError, ServiceNotReadyError, server_error_of
from quire_broker.server.budget import PublishBudget
from quire_broker.server.connection import Connection
from quire_broker.settings.clients import SessionSettings
from quire_broker.wire import commands
from quire_broker.wire.frames import Frame, encode
from quire_broker.wire.kinds import Kind
from quire_broker.wire.proto import pulsar_pb2 as pb

LOOKUP_ANSWERS: dict[int, str] = {
    Kind.PARTITIONED_METADATA_RESPONSE: "partition_metadata_response",
    Kind.LOOKUP_RESPONSE: "lookup_response",
    Kind.GET_TOPICS_OF_NAMESPACE_RESPONSE: "get_topics_of_namespace_response",
    Kind.GET_SCHEMA_RESPONSE: "get_schema_response",
    Kind.ERROR: "error",
}
"""The fields of the answers to questions about topics."""


class RefusedByBrokerError(BrokerError):
    """A broker refused a CONNECT or a question. `code`: the reason that the client gets."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = ServerError(code) if code in _CODES else ServerError.UNKNOWN


_CODES = frozenset(ServerError)


def code_of(error: BrokerError) -> ServerError:
    """Return the code of an error, which may be that of a broker."""
    return error.code if isinstance(error, RefusedByBrokerError) else server_error_of(error)


class BrokerLink:
    """One connection to a broker."""

    def __init__(
        self,
        hello: pb.CommandConnect,
        answers: Mapping[int, str] = LOOKUP_ANSWERS,
        receive: Callable[[Frame], bool] | None = None,
        on_lost: Callable[[], None] | None = None,
    ) -> None:
        """`answers`: the fields of the answers to requests. `receive`: takes other frames, and returns whether it did.

        `on_lost`: called once when the connection ends.
        """
        self._hello = hello
        self._answers = answers
        self._receive = receive
        self._on_lost = on_lost
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
            found = await answer
        finally:
            self._waiting.pop(number, None)
        if found.type == Kind.ERROR:
            raise RefusedByBrokerError(found.error.error, found.error.message)
        return found

    # called by the connection

    def handle(self, frame: Frame) -> None:
        """Handle a frame of the broker."""
        if self.connected.done() and self._receive is not None and self._receive(frame):
            return
        if not isinstance(frame, pb.BaseCommand):
            raise PeerProtocolError("the broker sends messages, which this connection does not expect")
        if not self.connected.done():
            self._greeted(frame)
        elif frame.type == Kind.PING:
            self.connection.write(commands.PONG)
        elif frame.type == Kind.PONG:
            return
        elif (name := self._answers.get(frame.type)) is not None:
            answer = self._waiting.get(getattr(frame, name).request_id)
            if answer is not None and not answer.done():
                answer.set_result(frame)
        else:
            raise PeerProtocolError(f"the broker sends command {frame.type}, which this connection does not expect")

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
        if self._on_lost is not None:
            self._on_lost()


@dataclass(frozen=True, slots=True)
class LinkTarget:
    """The address of a broker. `tls`: None for plaintext; `name`: the host name in the broker's certificate."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None
    name: str = ""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


async def open_link(
    link: BrokerLink, target: LinkTarget, memory: ConnectionMemory, *, keep_alive_s: float, timeout_s: float
) -> None:
    """Connect a new link, and return when its broker has accepted its CONNECT.

    RefusedByBrokerError, ServiceNotReadyError; the link is closed then.
    """
    budget = PublishBudget(1)

    def connection() -> Connection:
        return Connection(budget, SessionSettings().frame_bytes_max, keep_alive_s, 1, link.begin, memory)

    def secured() -> TlsSocket:
        assert target.tls is not None
        return TlsSocket(
            connection,
            target.tls,
            server_hostname=target.name or target.host,
            handshake_timeout_s=timeout_s,
            on_failure=lambda reason: link.fail(f"TLS with the broker at {target} fails: {reason}"),
        )

    try:
        async with asyncio.timeout(timeout_s):
            make = connection if target.tls is None else secured
            await asyncio.get_running_loop().create_connection(make, target.host, target.port)
            await link.connected
    except (OSError, ssl.SSLError, TimeoutError) as error:
        link.close()
        reason = str(error) or f"no answer in {timeout_s:g} s"
        raise ServiceNotReadyError(f"the broker at {target} cannot be reached: {reason}") from error
    except BaseException:
        link.close()
        raise
