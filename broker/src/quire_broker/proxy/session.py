"""One client of a proxy: defines the effect of each command in each state.

    state       command                                  effect
    NEW         CONNECT                                  -> ASKED; its credentials are checked
    ASKED       - without a broker                       -> LOOKUPS, CONNECTED
                - with proxy_to_broker_url               -> CONNECTING; the address is checked, a link is opened
    LOOKUPS     PARTITIONED_METADATA, LOOKUP,            answered by `lookups`
                GET_TOPICS_OF_NAMESPACE, GET_SCHEMA
                PING, PONG                               keep the connection alive
                WATCH_TOPIC_LIST                         refused
    CONNECTING  CONNECTED of the broker                  -> PIPED: passed on; then bytes are moved, not read
    any         anything else                            close the connection

A client is authenticated here; brokers get the credentials of the proxy and the name of the client. A client whose
credentials expire is disconnected, and connects again with new ones.
"""

import asyncio
import logging
from collections.abc import Callable
from enum import Enum, auto

from quire_bookie.errors import PeerProtocolError
from quire_broker import limits
from quire_broker.errors import AuthenticationError, BrokerError, ServerError, server_error_of
from quire_broker.limits import CLIENT_VERSION_CHARACTERS_MAX
from quire_broker.proxy.lookups import QUESTIONS, Lookups
from quire_broker.proxy.parts import ProxyParts
from quire_broker.proxy.pipe import Pipe
from quire_broker.proxy.targets import Address
from quire_broker.security.credentials import PASSED_ON, Client, Found, settled
from quire_broker.server.broker_link import BrokerLink, code_of
from quire_broker.server.connection import Connection
from quire_broker.settings.clients import SessionSettings
from quire_broker.wire import commands
from quire_broker.wire.frames import Frame, encode
from quire_broker.wire.kinds import PROTOCOL_VERSION, Kind
from quire_broker.wire.proto import pulsar_pb2 as pb

log = logging.getLogger("quire.proxy")
SERVER_VERSION = "Quire proxy"


class State(Enum):
    """See the module's docstring."""

    NEW = auto()
    ASKED = auto()
    LOOKUPS = auto()
    CONNECTING = auto()
    PIPED = auto()


class ProxySession:
    """Handles the commands of one client."""

    def __init__(
        self, parts: ProxyParts, connection: Connection, buffer: memoryview, on_lost: "Callable[[ProxySession], None]"
    ) -> None:
        self._parts = parts
        self._connection = connection
        self._buffer = buffer
        self._on_lost = on_lost
        self._client: Client | None = None
        self._lookups: Lookups | None = None
        self._pipe: Pipe | None = None
        self._leaves = False
        self.state = State.NEW
        timeout_s = parts.limits.handshake_timeout_s
        self._timer = asyncio.get_running_loop().call_later(timeout_s, self._timed_out, timeout_s)
        connection.limit_frames(limits.UNAUTHENTICATED_FRAME_BYTES_MAX)

    @property
    def is_ready(self) -> bool:
        """Whether the client was admitted."""
        return self.state not in (State.NEW, State.ASKED)

    def give_way(self) -> None:
        """Disconnect the client to make space for another one."""
        self._connection.close()

    def close(self) -> None:
        """Disconnect the client, after it has got what waits for it."""
        if self._pipe is not None:
            self._pipe.close()
        else:
            self._connection.close()

    def leave(self) -> None:
        """Disconnect the client once its lookups are answered."""
        self._leaves = True
        if self._lookups is None or not self._lookups.running:
            self.close()

    def check_credentials(self, *, keys_changed: bool) -> None:
        """Disconnect a client whose credentials are no longer valid."""
        client, authentication = self._client, self._parts.authentication
        if client is None or authentication is None or authentication.is_good(client, keys_changed=keys_changed):
            return
        log.info("%s is disconnected: the credentials of %r have expired or were withdrawn", self.peer, client.role)
        self.close()

    @property
    def peer(self) -> str:
        """The client's address."""
        return self._connection.peer

    # called by the connection

    def handle(self, frame: Frame) -> None:
        """Handle one frame, in the order of arrival."""
        if not isinstance(frame, pb.BaseCommand):
            raise PeerProtocolError("messages before a CONNECT that names a broker")
        if self.state is State.NEW:
            if frame.type != Kind.CONNECT:
                raise PeerProtocolError(f"command {frame.type} before CONNECT")
            self._connect(frame.connect)
        elif self.state is State.LOOKUPS:
            self._handle_lookup(frame)
        else:
            raise PeerProtocolError(f"command {frame.type} before the answer to CONNECT")

    def last_bytes(self, error: PeerProtocolError) -> bytes:
        """Return an ERROR with the reason; nothing for a client that is not admitted."""
        if not self.is_ready:
            return b""
        return commands.error(commands.NO_REQUEST, server_error_of(error), str(error))

    def lost(self) -> None:
        """End: the connection is gone."""
        self._timer.cancel()
        if self._lookups is not None:
            self._lookups.close()
        self._on_lost(self)

    # states

    def _handle_lookup(self, command: pb.BaseCommand) -> None:
        assert self._lookups is not None, "created with the state"
        question = QUESTIONS.get(command.type)
        if question is not None:
            self._lookups.begin(command, question)
        elif command.type == Kind.PING:
            self._connection.write(commands.PONG)
        elif command.type == Kind.WATCH_TOPIC_LIST:
            reason = "the proxy does not watch lists of topics"
            self._connection.write(commands.error(command.watch_topic_list.request_id, ServerError.NOT_ALLOWED, reason))
        elif command.type == Kind.WATCH_TOPIC_LIST_CLOSE:
            self._connection.write(commands.success(command.watch_topic_list_close.request_id))
        elif command.type not in (Kind.PONG, Kind.AUTH_RESPONSE):
            raise PeerProtocolError(
                f"command {command.type} on a connection for lookups: connect with proxy_to_broker_url, the address "
                "that the lookup returned"
            )

    def _connect(self, request: pb.CommandConnect) -> None:
        self.state = State.ASKED
        authentication = self._parts.authentication
        if authentication is None:
            self._admitted(request, None)
            return
        try:
            if request.original_principal or request.original_auth_data:
                raise AuthenticationError("a proxy does not connect to another proxy: use the address of a broker")
            shown = (request.auth_method_name, request.auth_data, self._connection.common_name)
            client = authentication.admit(*shown)
        except BrokerError as error:
            self._refuse(error)
            return
        if isinstance(client, Client):
            self._admitted(request, client)
        else:
            self._parts.background.start(self._admit_later(request, client), f"authentication of {self.peer}")

    async def _admit_later(self, request: pb.CommandConnect, found: Found) -> None:
        try:
            client = await settled(found)
        except BrokerError as error:
            if not self._connection.closed:
                self._refuse(error)
            return
        if not self._connection.closed:
            self._admitted(request, client)

    def _admitted(self, request: pb.CommandConnect, client: Client | None) -> None:
        """Go on with a client whose credentials are good; None without authentication."""
        self._client = client
        hello = self._hello(request, client)
        try:
            address = self._parts.targets.check(request.proxy_to_broker_url) if request.proxy_to_broker_url else None
        except BrokerError as error:
            self._refuse(error)
            return
        self._timer.cancel()
        if address is not None:
            self.state = State.CONNECTING
            self._parts.background.start(self._connect_to(address, hello), f"connect {self.peer} to {address}")
            return
        self.state = State.LOOKUPS
        self._lookups = Lookups(self._parts, hello, self._connection.write, self._answered)
        version = min(PROTOCOL_VERSION, request.protocol_version)
        self._connection.write(commands.connected(SERVER_VERSION, version, SessionSettings().message_bytes_max))

    def _hello(self, request: pb.CommandConnect, client: Client | None) -> pb.CommandConnect:
        """Return the CONNECT that brokers get."""
        hello = pb.CommandConnect(
            client_version=request.client_version[:CLIENT_VERSION_CHARACTERS_MAX],
            protocol_version=request.protocol_version,
            feature_flags=request.feature_flags,
            proxy_version=SERVER_VERSION,
        )
        if client is not None:
            hello.original_principal = client.role
            if self._parts.forwards_credentials and client.method in PASSED_ON:
                hello.original_auth_method = client.method
                hello.original_auth_data = request.auth_data.decode()
        return hello

    async def _connect_to(self, address: Address, hello: pb.CommandConnect) -> None:
        link: BrokerLink | None = None
        try:
            link = await self._parts.connector.connect(address, hello)
            self._join(link, link.connected.result())
        except (BrokerError, PeerProtocolError) as error:
            if link is not None:
                link.close()
            if not self._connection.closed:
                self._refuse(error if isinstance(error, BrokerError) else BrokerError(str(error)))

    def _join(self, link: BrokerLink, connected: pb.BaseCommand) -> None:
        pipe = Pipe(self._parts.stats, self._buffer, self.lost)
        if not self._connection.closed:
            self._connection.write(encode(connected))
        pipe.join(self._connection, link.connection)
        self._pipe, self.state = pipe, State.PIPED
        self._parts.stats.piped += 1
        if self._leaves:
            pipe.close()

    def _answered(self) -> None:
        if self._leaves:
            self.leave()

    def _refuse(self, error: BrokerError) -> None:
        stats = self._parts.stats
        stats.connections_refused += 1
        stats.authentications_failed += isinstance(error, AuthenticationError)
        log.warning("%s is disconnected: %s", self.peer, error)
        self._connection.write(commands.error(commands.NO_REQUEST, code_of(error), str(error)))
        self._connection.close()

    def _timed_out(self, timeout_s: float) -> None:
        if not self._connection.closed:
            self._refuse(AuthenticationError(f"no CONNECT within {timeout_s:g} s (proxyHandshakeTimeoutMs)"))
