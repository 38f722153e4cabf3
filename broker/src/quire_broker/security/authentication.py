"""Maps the credentials of a client to a role, and checks whether they are still valid. No socket, no waiting.

Never logs a token or its contents: a refusal names the kind of fault.
"""

from dataclasses import dataclass, field

from quire_bookie.env.clock import WallClock
from quire_bookie.limits import ROLE_CHARACTERS_MAX
from quire_bookie.tokens.checks import TokenCheck, TokenError
from quire_broker.errors import AuthenticationError
from quire_broker.security.settings import AuthenticationSettings

TOKEN = "token"
CERTIFICATE = "tls"
ANONYMOUS = "anonymous"
_BEARER = "bearer "


@dataclass(frozen=True, slots=True)
class Client:
    """An authenticated client: role, method, and expiry in ms since the epoch. None: as long as it is connected."""

    role: str
    method: str
    end_ms: int | None = None
    token: str = field(default="", repr=False)


class Authentication:
    """Authenticates clients."""

    def __init__(self, settings: AuthenticationSettings, tokens: TokenCheck | None, clock: WallClock) -> None:
        self._settings = settings
        self._tokens = tokens
        self._clock = clock

    def admit(self, method: str, data: bytes, common_name: str) -> Client:
        """Authenticate the client of a connection, by the method that it names. AuthenticationError with the reason.

        `common_name`: that of its verified certificate; empty without one.
        """
        if method == TOKEN and self._tokens is not None:
            try:
                return self._of_token(data.decode())
            except UnicodeDecodeError:
                raise AuthenticationError("the token is not a text") from None
        if method == CERTIFICATE and self._settings.certificates:
            return self._of_certificate(common_name)
        return self._anonymous(f"no credentials that this broker accepts: it requires {self._methods()}")

    def admit_http(self, header: str, common_name: str) -> Client:
        """Authenticate a request, by its header `Authorization`, else by its certificate. AuthenticationError."""
        if header[: len(_BEARER)].lower() == _BEARER and self._tokens is not None:
            return self._of_token(header[len(_BEARER) :].strip())
        if header:
            raise AuthenticationError("the header Authorization must be: Bearer, and a token")
        if common_name and self._settings.certificates:
            return self._of_certificate(common_name)
        return self._anonymous(f"no credentials that this broker accepts: it requires {self._methods()}")

    def admit_original(self, method: str, data: str) -> Client | None:
        """Authenticate the client for which a proxy acts, by the token that the proxy passes on. AuthenticationError.

        None: this broker trusts the name that the proxy gives.
        """
        if not self._settings.authenticate_original:
            return None
        if method != TOKEN or self._tokens is None:
            raise AuthenticationError(
                "the proxy passes on no token of its client, which authenticateOriginalAuthData requires: set "
                "forwardAuthorizationCredentials=true on the proxy"
            )
        return self._of_token(data)

    def is_good(self, client: Client, *, keys_changed: bool) -> bool:
        """Return whether a client's credentials are still valid. `keys_changed`: accepted tokens may have changed."""
        if client.end_ms is not None and self._clock.now_ms() >= client.end_ms:
            return False
        if not keys_changed or client.method != TOKEN or self._tokens is None:
            return True
        try:
            return self._tokens.role_of(client.token) == client.role
        except TokenError:
            return False

    def _of_token(self, token: str) -> Client:
        assert self._tokens is not None, "checked by the callers"
        try:
            grant = self._tokens.grant_of(token)
        except TokenError as error:
            raise AuthenticationError(str(error)) from None
        return Client(grant.role, TOKEN, grant.end_ms, token)

    def _of_certificate(self, common_name: str) -> Client:
        if not common_name:
            raise AuthenticationError(
                "the connection has no certificate that this broker trusts, or its certificate does not have one CN "
                f"of at most {ROLE_CHARACTERS_MAX} characters and without control characters"
            )
        return Client(common_name, CERTIFICATE)

    def _anonymous(self, reason: str) -> Client:
        if not self._settings.anonymous_role:
            raise AuthenticationError(reason)
        return Client(self._settings.anonymous_role, ANONYMOUS)

    def _methods(self) -> str:
        asked = [TOKEN] if self._tokens is not None else []
        return " or ".join([*asked, CERTIFICATE] if self._settings.certificates else asked)
