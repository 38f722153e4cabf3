"""Authenticates by tokens that a key from the settings verifies: Pulsar's AuthenticationProviderToken."""

from collections.abc import Awaitable, Callable

from quire_bookie.tokens.checks import TokenCheck, TokenError
from quire_broker.errors import AuthenticationError
from quire_broker.security.credentials import TOKEN, Client


class TokenProvider:
    """See Provider."""

    method = TOKEN

    def __init__(self, tokens: TokenCheck, refresh: Callable[[], Awaitable[bool]] | None = None) -> None:
        """`refresh`: that of the file that `tokens` follows, if it follows one."""
        self._tokens = tokens
        self._refresh = refresh

    def admit(self, shown: str) -> Client:
        """See Provider. White space around the token is ignored: files with tokens often end with a newline."""
        token = shown.strip()
        try:
            grant = self._tokens.grant_of(token)
        except TokenError as error:
            raise AuthenticationError(str(error)) from None
        return Client(grant.role, TOKEN, grant.end_ms, token, self)

    def is_good(self, client: Client) -> bool:
        """See Provider."""
        try:
            return self._tokens.role_of(client.proof) == client.role
        except TokenError:
            return False

    async def refresh(self) -> bool:
        """See Provider."""
        return self._refresh is not None and await self._refresh()
