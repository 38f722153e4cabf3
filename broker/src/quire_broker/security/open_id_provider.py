"""Authenticates by tokens of OpenID Connect issuers: Pulsar's AuthenticationProviderOpenID, for clients with OAuth2."""

from functools import partial

from quire_bookie.env.clock import WallClock
from quire_bookie.tokens.checks import TokenError
from quire_bookie.tokens.issued import IssuedRules, IssuerKey, TokenOrigin, grant_of, origin_of
from quire_broker.errors import AuthenticationError
from quire_broker.security.credentials import TOKEN, Client, Found
from quire_broker.security.issuers import Issuers


class OpenIdProvider:
    """See Provider. Its method is that of other tokens: stock clients with OAuth2 send their token so."""

    method = TOKEN

    def __init__(self, issuers: Issuers, rules: IssuedRules, clock: WallClock) -> None:
        self._issuers = issuers
        self._rules = rules
        self._clock = clock

    def admit(self, shown: str) -> Found:
        """See Provider."""
        token = shown.strip()
        origin = _origin(token)
        key = self._issuers.key(origin.issuer, origin.key_id)
        return partial(self._check, token, origin) if key is None else self._client(token, key)

    async def _check(self, token: str, origin: TokenOrigin) -> Client:
        return self._client(token, await self._issuers.find(origin.issuer, origin.key_id))

    def _client(self, token: str, key: IssuerKey) -> Client:
        try:
            grant = grant_of(token, key, self._rules, self._clock.now_ms())
        except TokenError as error:
            raise AuthenticationError(str(error)) from None
        return Client(grant.role, TOKEN, grant.end_ms, token, self)

    def is_good(self, client: Client) -> bool:
        """See Provider. A token stays good while the keys of its issuer are not known."""
        try:
            origin = _origin(client.proof)
            if not self._issuers.knows(origin.issuer):
                return True
            key = self._issuers.key(origin.issuer, origin.key_id)
            return key is not None and self._client(client.proof, key).role == client.role
        except AuthenticationError:
            return False

    async def refresh(self) -> bool:
        """See Provider."""
        return self._issuers.take_change()


def _origin(token: str) -> TokenOrigin:
    try:
        return origin_of(token)
    except TokenError as error:
        raise AuthenticationError(str(error)) from None
