"""Opens the credentials of a broker from its settings: reads certificates and keys, and reloads changed files."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from quire_bookie.env.background import Background
from quire_bookie.env.chance import SystemChance
from quire_bookie.env.clock import WallClock
from quire_bookie.env.secret_file import SecretFiles
from quire_bookie.env.tls import ServedContext, TlsContext, server_context
from quire_bookie.tokens.files import CredentialFile
from quire_broker.security.authentication import Authentication
from quire_broker.security.credentials import Provider
from quire_broker.security.settings import AccessSettings, AuthenticationSettings, ClientCertificates, ProviderKind

PASSWORDS = "basicAuthConf"


class Access:
    """TLS and authentication of a broker. Call `open` before use; `follow` reloads its files while it serves."""

    def __init__(self, settings: AccessSettings, clock: WallClock) -> None:
        self.settings = settings
        self._clock = clock
        self._providers: Sequence[Provider] = ()
        self._followed: Callable[[], Coroutine[Any, Any, None]] | None = None
        """Renews the keys of token issuers."""
        self.tls: ServedContext | None = None
        self.authentication: Authentication | None = None

    async def open(self) -> None:
        """Read certificates and keys. ConfigError names an unusable file."""
        tls, wanted = self.settings.tls, self.settings.authentication
        if tls is not None:
            asked = tls.client_certificates
            make = partial(
                server_context,
                client_certificates=asked is not ClientCertificates.NONE,
                optional=asked is ClientCertificates.TAKEN,
            )
            self.tls = ServedContext(TlsContext(tls.files, make, tls.refresh_s, self._clock))
            await self.tls.open()
        if wanted is not None:
            self._providers = [one for kind in wanted.order if (one := await self._provider(kind, wanted)) is not None]
            self.authentication = Authentication(wanted, self._providers, self._clock)

    async def _provider(self, kind: ProviderKind, wanted: AuthenticationSettings) -> Provider | None:
        """Return a provider after its first look at its files; None if it is not configured. ConfigError."""
        # Slow to load, and rarely needed.
        if kind is ProviderKind.TOKEN and wanted.token is not None:
            from quire_bookie.tokens.opening import open_tokens
            from quire_broker.security.token_provider import TokenProvider

            tokens = await open_tokens(wanted.token, SecretFiles(), self._clock)
            return TokenProvider(tokens, tokens.refresh)
        if kind is ProviderKind.BASIC and wanted.passwords:
            from quire_bookie.tokens.opening import read_key
            from quire_broker.security.basic_provider import BasicProvider
            from quire_broker.security.passwords import users_of

            users = CredentialFile(PASSWORDS, partial(read_key, wanted.passwords, PASSWORDS, SecretFiles()), users_of)
            await users.open()
            return BasicProvider(users, SystemChance().token(32))
        if kind is ProviderKind.OPEN_ID and wanted.open_id is not None:
            from quire_bookie.tokens.issued import IssuedRules
            from quire_broker.security.issuers import Issuers
            from quire_broker.security.open_id_provider import OpenIdProvider

            found = wanted.open_id
            issuers = Issuers(found, self._clock)
            await issuers.open()
            self._followed = issuers.follow
            rules = IssuedRules(found.audiences, found.role_claim, found.leeway_s)
            return OpenIdProvider(issuers, rules, self._clock)
        return None

    def follow(self, background: Background, check: Callable[[bool], None]) -> None:
        """Reload the files, and call `check` at the interval at which credentials are checked.

        Its argument is whether the accepted credentials may have changed since the last call.
        """
        if self.tls is not None and self.tls.refresh_s > 0:
            background.keep(self.tls.follow, "TLS files")
        if self._followed is not None:
            background.keep(self._followed, "keys of token issuers")
        if self.settings.authentication is not None:
            interval_s = self.settings.authentication.check_interval_s
            background.keep(lambda: self._check(check, interval_s), "credentials")

    async def _check(self, check: Callable[[bool], None], interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            check(any([await one.refresh() for one in self._providers]))
