"""The token provider of a bookie: a client sends a token as its only payload, and is let in under the role in it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from quire_bookie.server.security.auth import Admitted, AuthExchange, Peer, Refused, Step
from quire_bookie.tokens.checks import TokenCheck, TokenError

PLUGIN = "token"
"""The plugin name in every message."""


@dataclass(frozen=True, slots=True)
class TokenAuthentication:
    """The provider. `authorized` empty: every role that a valid token names."""

    check: TokenCheck
    authorized: Sequence[str] = ()
    plugin: str = PLUGIN

    def begin(self, peer: Peer) -> AuthExchange:
        """See AuthProvider."""
        return _Exchange(self)


@dataclass(slots=True)
class _Exchange:
    provider: TokenAuthentication
    _token: str = field(default="", repr=False)
    _role: str = ""

    def process(self, payload: bytes) -> Step:
        """The payload is the token."""
        try:
            token = payload.decode("utf-8").strip()
            role = self.provider.check.role_of(token)
        except UnicodeDecodeError:
            return Refused("a token that is no text")
        except TokenError as error:
            return Refused(str(error))
        if self.provider.authorized and role not in self.provider.authorized:
            return Refused(f"role {role!r} is not among authorizedRoles")
        self._token, self._role = token, role
        return Admitted(role)

    def secured(self, peer: Peer) -> Step | None:
        """TLS alone lets nobody in."""
        return None

    def is_withdrawn(self) -> bool:
        """Whether the token does not give its role any more, by the keys of now."""
        if not self._role:
            return False
        try:
            return self.provider.check.role_of(self._token) != self._role
        except TokenError:
            return True
