"""The token provider of a bookie: a client sends a token as its only payload, and is admitted with the token's role."""

from collections.abc import Sequence
from dataclasses import field

from quire_bookie.dataclass import dataclass
from quire_bookie.server.security.auth import Admitted, AuthExchange, Peer, Refused, Step
from quire_bookie.tokens.checks import TokenCheck, TokenError

PLUGIN = "token"
"""The plugin name in every message."""


@dataclass(frozen=True, slots=True)
class TokenAuthentication:
    """Authenticates clients by token. `authorized` empty: every role that a valid token names."""

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
        """Verify the token in the payload."""
        try:
            token = payload.decode("utf-8").strip()
            role = self.provider.check.role_of(token)
        except UnicodeDecodeError:
            return Refused("the token is not UTF-8 text")
        except TokenError as error:
            return Refused(str(error))
        if self.provider.authorized and role not in self.provider.authorized:
            return Refused(f"role {role!r} is not among authorizedRoles")
        self._token, self._role = token, role
        return Admitted(role)

    def secured(self, peer: Peer) -> Step | None:
        """Return None: TLS alone does not authenticate."""
        return None

    def is_withdrawn(self) -> bool:
        """Whether the current keys no longer accept the token for its role."""
        if not self._role:
            return False
        try:
            return self.provider.check.role_of(self._token) != self._role
        except TokenError:
            return True
