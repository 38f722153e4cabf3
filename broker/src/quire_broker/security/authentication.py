"""Maps the credentials of a client to a role, and checks whether they are still valid. No socket.

Providers of one method are asked in the order of `authenticationProviders`: the first that accepts decides. Never logs
a token, a password or their contents: a refusal names the kind of fault.
"""

import base64
import binascii
from collections.abc import Sequence
from functools import partial

from quire_bookie.env.clock import WallClock
from quire_bookie.limits import ROLE_CHARACTERS_MAX
from quire_broker.errors import AuthenticationError
from quire_broker.security.credentials import ANONYMOUS, BASIC, CERTIFICATE, TOKEN, Client, Found, Provider, settled
from quire_broker.security.settings import AuthenticationSettings

_SCHEMES = {"bearer": TOKEN, "basic": BASIC}
"""Methods by the scheme of the header `Authorization`."""


class Authentication:
    """Authenticates clients."""

    def __init__(self, settings: AuthenticationSettings, providers: Sequence[Provider], clock: WallClock) -> None:
        self._settings = settings
        self._clock = clock
        self._providers: dict[str, list[Provider]] = {}
        for provider in providers:
            self._providers.setdefault(provider.method, []).append(provider)

    def admit(self, method: str, data: bytes, common_name: str) -> Found:
        """Authenticate the client of a connection, by the method that it names. AuthenticationError with the reason.

        `common_name`: that of its verified certificate; empty without one.
        """
        if method in self._providers:
            try:
                return self._first(method, data.decode())
            except UnicodeDecodeError:
                raise AuthenticationError(f"the credentials of method {method} are not a text") from None
        if method == CERTIFICATE and self._settings.certificates:
            return self._of_certificate(common_name)
        return self._anonymous(f"no credentials that this broker accepts: it requires {self._methods()}")

    def admit_http(self, header: str, common_name: str) -> Found:
        """Authenticate a request, by its header `Authorization`, else by its certificate. AuthenticationError."""
        method = method_of(header)
        if method in self._providers:
            return self._first(method, shown_in(header))
        if header:
            raise AuthenticationError(f"the header Authorization must be: {' or: '.join(self._headers())}")
        if common_name and self._settings.certificates:
            return self._of_certificate(common_name)
        return self._anonymous(f"no credentials that this broker accepts: it requires {self._methods()}")

    def admit_original(self, method: str, data: str) -> Found | None:
        """Authenticate the client for which a proxy acts, by the credentials that it passes on. AuthenticationError.

        None: this broker trusts the name that the proxy gives.
        """
        if not self._settings.authenticate_original:
            return None
        if method not in self._providers:
            raise AuthenticationError(
                "the proxy passes on no credentials of its client, which authenticateOriginalAuthData requires: set "
                "forwardAuthorizationCredentials=true on the proxy"
            )
        return self._first(method, data)

    def is_good(self, client: Client, *, keys_changed: bool) -> bool:
        """Return whether a client's credentials are still valid. `keys_changed`: those accepted may have changed."""
        if client.end_ms is not None and self._clock.now_ms() >= client.end_ms:
            return False
        return not keys_changed or client.provider is None or client.provider.is_good(client)

    def _first(self, method: str, shown: str) -> Found:
        return self._next(self._providers[method], shown, [])

    def _next(self, providers: Sequence[Provider], shown: str, reasons: list[str]) -> Found:
        """Return the client that the first of these providers accepts. AuthenticationError with all reasons."""
        for number, provider in enumerate(providers, 1):
            try:
                found = provider.admit(shown)
            except AuthenticationError as error:
                reasons.append(str(error))
                continue
            if isinstance(found, Client):
                return found
            return partial(self._after, found, providers[number:], shown, reasons)
        raise AuthenticationError("; ".join(dict.fromkeys(reasons)))

    async def _after(self, found: Found, others: Sequence[Provider], shown: str, reasons: list[str]) -> Client:
        """Return the client of a check; if it fails, that of the other providers. AuthenticationError."""
        try:
            return await settled(found)
        except AuthenticationError as error:
            return await settled(self._next(others, shown, [*reasons, str(error)]))

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
        asked = list(self._providers)
        return " or ".join([*asked, CERTIFICATE] if self._settings.certificates else asked)

    def _headers(self) -> list[str]:
        forms = {TOKEN: "Bearer, and a token", BASIC: "Basic, and user:password in base64"}
        return [text for method, text in forms.items() if method in self._providers] or ["absent"]

    def challenge(self) -> str:
        """Return the value of WWW-Authenticate for a client without a role."""
        forms = {TOKEN: "Bearer", BASIC: 'Basic realm="quire"'}
        return ", ".join(text for method, text in forms.items() if method in self._providers) or "Bearer"


def method_of(header: str) -> str:
    """Return the method of a header `Authorization`; empty if there is none of its name."""
    return _SCHEMES.get(header.partition(" ")[0].lower(), "")


def shown_in(header: str) -> str:
    """Return the credentials of such a header as clients of the Pulsar protocol send them. AuthenticationError."""
    shown = header.partition(" ")[2]
    return _decoded(shown) if method_of(header) == BASIC else shown.strip()


def _decoded(shown: str) -> str:
    try:
        return base64.b64decode(shown.strip(), validate=True).decode()
    except (binascii.Error, ValueError):  # UnicodeDecodeError is one
        raise AuthenticationError("the header Authorization: Basic must be user:password in base64") from None
