"""Authenticates the client of one connection, at CONNECT and as long as the connection lives.

    before CONNECT         nothing is answered, frames are small, and it has half a minute; without authentication too
    at CONNECT             its credentials are checked; a check that takes time does not delay other clients, and no
                           command is accepted until its end
    its token expires,     a client that supports it is asked for another (AUTH_CHALLENGE) and continues meanwhile;
    or its key is changed  other clients, and those that have not answered by the next check, are disconnected
    AUTH_RESPONSE          another token of the same role is accepted; another role is not
    CONNECT of a proxy     it authenticates itself and names its client, the original principal; both must be permitted.
                           If the client's token is checked too and expires, the client is asked for another. If that of
                           the proxy expires, it is disconnected: it does not read what its client gets

Without authentication every client is accepted.
"""

import asyncio
import logging
from collections.abc import Callable

from quire_broker import limits
from quire_broker.errors import AuthenticationError, AuthorizationError, BrokerError, server_error_of
from quire_broker.security.authentication import Authentication
from quire_broker.security.authorization import Rights
from quire_broker.security.credentials import TOKEN, Client, Found, settled
from quire_broker.server.connection import Connection
from quire_broker.server.parts import BrokerParts
from quire_broker.wire import commands
from quire_broker.wire.proto import pulsar_pb2 as pb

log = logging.getLogger("quire.broker.security")
AUTH_RESPONSE_VERSION = 14
"""Clients from this protocol version on support AUTH_CHALLENGE."""


class Admission:
    """Owns the authenticated client of a connection and its rights."""

    def __init__(self, parts: BrokerParts, connection: Connection) -> None:
        self._parts = parts
        self._connection = connection
        self._client: Client | None = None
        self._original: Client | None = None
        """The client of a proxy, if its credentials were checked."""
        self._proxied = False
        self._answers_challenges = False
        self._version = 0
        self._challenged = False
        self.rights = Rights(None, "")
        self._timer = asyncio.get_running_loop().call_later(limits.UNAUTHENTICATED_S, self._timed_out)
        connection.limit_frames(limits.UNAUTHENTICATED_FRAME_BYTES_MAX)

    @property
    def role(self) -> str:
        """The client's role; empty without authentication."""
        return self.rights.role

    def connect(self, request: pb.CommandConnect, then: Callable[[], None]) -> None:
        """Call `then` when the client is admitted, at once if possible. Disconnect a refused one with an ERROR.

        The caller accepts no command meanwhile.
        """
        authentication = self._parts.authentication
        if authentication is None:
            self._finish()
            then()
            return
        try:
            if request.proxy_to_broker_url:
                raise AuthorizationError("a broker does not connect to other brokers: use the address of a proxy")
            client = authentication.admit(request.auth_method_name, request.auth_data, self._connection.common_name)
            original = self._original_of(authentication, request) if isinstance(client, Client) else None
            if isinstance(client, Client) and (original is None or isinstance(original, Client)):
                self._take(request, client, original)
                then()
                return
        except BrokerError as error:
            self._refuse(error)
            return
        self._parts.background.start(self._admit_later(authentication, request, client, then), "authentication")

    async def _admit_later(
        self, authentication: Authentication, request: pb.CommandConnect, client: Found, then: Callable[[], None]
    ) -> None:
        try:
            client = await settled(client)
            original = self._original_of(authentication, request)
            checked = None if original is None else await settled(original)
            if self._connection.closed:
                return
            self._take(request, client, checked)
        except BrokerError as error:
            self._refuse(error)
            return
        then()

    @staticmethod
    def _original_of(authentication: Authentication, request: pb.CommandConnect) -> Found | None:
        """Return the client for which a proxy acts, if its credentials are checked. AuthenticationError."""
        if not request.original_principal and not request.original_auth_data:
            return None
        return authentication.admit_original(request.original_auth_method, request.original_auth_data)

    def _take(self, request: pb.CommandConnect, client: Client, original: Client | None) -> None:
        """Admit a client whose credentials are good. AuthorizationError."""
        named = request.original_principal if original is None else original.role
        authorization = self._parts.authorization
        roles = (client.role, named) if authorization is None else authorization.roles_of(client.role, named)
        self._proxied = bool(named)
        self._client, self._original = client, original
        self.rights = Rights(authorization, *roles)
        self._parts.stats.authentications += 1
        self._finish()
        self._version = request.protocol_version
        self._answers_challenges = request.feature_flags.supports_auth_refresh and (
            request.protocol_version >= AUTH_RESPONSE_VERSION
        )
        log.info("%s is %r%s", self._connection.peer, self.role, ", behind a proxy" if self._proxied else "")

    def answered(self, response: pb.CommandAuthResponse) -> None:
        """Handle AUTH_RESPONSE: accept a token that replaces the expired one."""
        authentication = self._parts.authentication
        if self._client is None or authentication is None or not self._challenged:
            return
        try:
            data = response.response
            name = "" if self._proxied else self._connection.common_name
            found = authentication.admit(data.auth_method_name, data.auth_data, name)
            if isinstance(found, Client):
                self._replace(found)
                return
        except BrokerError as error:
            self._refuse(error)
            return
        self._parts.background.start(self._replace_later(found), "authentication")

    async def _replace_later(self, found: Found) -> None:
        try:
            client = await settled(found)
            if self._challenged and not self._connection.closed:
                self._replace(client)
        except BrokerError as error:
            self._refuse(error)

    def _replace(self, client: Client) -> None:
        if client.role != self.role:
            raise AuthenticationError(f"the new token is of role {client.role!r}, the connection of {self.role!r}")
        if self._original is None:
            self._client = client
        else:
            self._original = client
        self._parts.stats.authentications += 1
        self._challenged = False

    def check(self, keys_changed: bool) -> None:
        """Check whether the client's credentials are still valid; see the module's docstring."""
        client, authentication = self._client, self._parts.authentication
        if client is None or authentication is None or self._connection.closed:
            return
        if self._challenged:
            self._refuse(AuthenticationError("the client sent no new token for its expired or withdrawn one"))
        elif self._proxied and not authentication.is_good(client, keys_changed=keys_changed):
            self._refuse(AuthenticationError("the token of the proxy has expired or was withdrawn"))
        elif not authentication.is_good(client := self._original or client, keys_changed=keys_changed):
            if client.method != TOKEN or not self._answers_challenges:
                self._refuse(AuthenticationError("the token has expired or was withdrawn"))
                return
            self._challenged = True
            version = self._parts.settings.server_version
            self._connection.write(commands.auth_challenge(version, self._version, client.method))

    def lost(self) -> None:
        """Stop the timer: the connection is gone."""
        self._timer.cancel()

    def _finish(self) -> None:
        self._timer.cancel()
        self._connection.limit_frames(self._parts.settings.frame_bytes_max)

    def _refuse(self, error: BrokerError) -> None:
        if self._connection.closed:
            return
        self._parts.stats.authentications_failed += 1
        log.warning("%s is disconnected: %s", self._connection.peer, error)
        self._connection.write(commands.error(commands.NO_REQUEST, server_error_of(error), str(error)))
        self._connection.close()

    def _timed_out(self) -> None:
        if not self._connection.closed:
            self._refuse(AuthenticationError(f"no CONNECT within {limits.UNAUTHENTICATED_S:.0f} s"))
