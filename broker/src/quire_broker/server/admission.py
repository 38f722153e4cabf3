"""Authenticates the client of one connection, at CONNECT and as long as the connection lives.

    before CONNECT         nothing is answered, frames are small, and it has half a minute; without authentication too
    at CONNECT             its credentials are checked
    its token expires,     a client that supports it is asked for another (AUTH_CHALLENGE) and continues meanwhile;
    or its key is changed  other clients, and those that have not answered by the next check, are disconnected
    AUTH_RESPONSE          another token of the same role is accepted; another role is not

Without authentication every client is accepted.
"""

import asyncio
import logging

from quire_broker import limits
from quire_broker.errors import AuthenticationError, AuthorizationError, BrokerError, server_error_of
from quire_broker.security.authentication import TOKEN, Client
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
            self._refuse_proxies(request)
            shown = (request.auth_method_name, request.auth_data, self._connection.common_name)
            self._take(self._parts.authentication.admit(*shown))
        except BrokerError as error:
            self._refuse(error)
            return False
        self._finish()
        self._version = request.protocol_version
        self._answers_challenges = request.feature_flags.supports_auth_refresh and (
            request.protocol_version >= AUTH_RESPONSE_VERSION
        )
        log.info("%s is %r", self._connection.peer, self.role)
        return True

    def answered(self, response: pb.CommandAuthResponse) -> None:
        """Handle AUTH_RESPONSE: accept a token that replaces the expired one."""
        if self._client is None or self._parts.authentication is None or not self._challenged:
            return
        try:
            data = response.response
            client = self._parts.authentication.admit(
                data.auth_method_name, data.auth_data, self._connection.common_name
            )
            if client.role != self.role:
                raise AuthenticationError(f"the new token is of role {client.role!r}, the connection of {self.role!r}")
            self._take(client)
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
        elif not authentication.is_good(client, keys_changed=keys_changed):
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

    def _take(self, client: Client) -> None:
        self._client = client
        self.rights = Rights(self._parts.authorization, client.role)
        self._parts.stats.authentications += 1

    def _refuse(self, error: BrokerError) -> None:
        self._parts.stats.authentications_failed += 1
        log.warning("%s is disconnected: %s", self._connection.peer, error)
        self._connection.write(commands.error(commands.NO_REQUEST, server_error_of(error), str(error)))
        self._connection.close()

    def _refuse_proxies(self, request: pb.CommandConnect) -> None:
        if request.original_principal or request.proxy_to_broker_url:
            raise AuthorizationError("connections of Pulsar's proxy are not supported: connect to the broker directly")

    def _timed_out(self) -> None:
        if not self._connection.closed:
            self._refuse(AuthenticationError(f"no CONNECT within {limits.UNAUTHENTICATED_S:.0f} s"))
