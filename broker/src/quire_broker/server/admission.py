"""Authenticates the client of one connection, at CONNECT and as long as the connection lives.

    before CONNECT         nothing is answered, frames are small, and it has half a minute; without authentication too
    at CONNECT             its credentials are checked
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

from quire_broker import limits
from quire_broker.errors import AuthenticationError, AuthorizationError, BrokerError, server_error_of
from quire_broker.security.authentication import TOKEN, Authentication, Client
from quire_broker.security.authorization import Rights
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

    def connect(self, request: pb.CommandConnect) -> bool:
        """Return whether the client is admitted; a refused client gets an ERROR and is disconnected."""
        if self._parts.authentication is None:
            self._finish()
            return True
        try:
            self._admit(self._parts.authentication, request)
        except BrokerError as error:
            self._refuse(error)
            return False
        self._finish()
        self._version = request.protocol_version
        self._answers_challenges = request.feature_flags.supports_auth_refresh and (
            request.protocol_version >= AUTH_RESPONSE_VERSION
        )
        log.info("%s is %r%s", self._connection.peer, self.role, ", behind a proxy" if self._proxied else "")
        return True

    def _admit(self, authentication: Authentication, request: pb.CommandConnect) -> None:
        """Authenticate the client, and the client for which it acts if it is a proxy. BrokerError."""
        if request.proxy_to_broker_url:
            raise AuthorizationError("a broker does not connect to other brokers: use the address of a proxy")
        client = authentication.admit(request.auth_method_name, request.auth_data, self._connection.common_name)
        named, original = request.original_principal, None
        if named or request.original_auth_data:
            original = authentication.admit_original(request.original_auth_method, request.original_auth_data)
        if original is not None:
            named = original.role
        authorization = self._parts.authorization
        roles = (client.role, named) if authorization is None else authorization.roles_of(client.role, named)
        self._proxied = bool(named)
        self._client, self._original = client, original
        self.rights = Rights(authorization, *roles)
        self._parts.stats.authentications += 1

    def answered(self, response: pb.CommandAuthResponse) -> None:
        """Handle AUTH_RESPONSE: accept a token that replaces the expired one."""
        if self._client is None or self._parts.authentication is None or not self._challenged:
            return
        try:
            data = response.response
            name = "" if self._proxied else self._connection.common_name
            client = self._parts.authentication.admit(data.auth_method_name, data.auth_data, name)
            if client.role != self.role:
                raise AuthenticationError(f"the new token is of role {client.role!r}, the connection of {self.role!r}")
            if self._original is None:
                self._client = client
            else:
                self._original = client
            self._parts.stats.authentications += 1
            self._challenged = False
        except BrokerError as error:
            self._refuse(error)

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
        self._parts.stats.authentications_failed += 1
        log.warning("%s is disconnected: %s", self._connection.peer, error)
        self._connection.write(commands.error(commands.NO_REQUEST, server_error_of(error), str(error)))
        self._connection.close()

    def _timed_out(self) -> None:
        if not self._connection.closed:
            self._refuse(AuthenticationError(f"no CONNECT within {limits.UNAUTHENTICATED_S:.0f} s"))
