"""Opens the credentials of a broker from its settings: reads certificates and keys, and reloads changed files."""

import asyncio
from collections.abc import Callable
from functools import partial

from quire_bookie.env.background import Background
from quire_bookie.env.clock import WallClock
from quire_bookie.env.secret_file import SecretFiles
from quire_bookie.env.tls import ServedContext, TlsContext, server_context
from quire_bookie.tokens.files import TokenFile
from quire_broker.security.authentication import Authentication
from quire_broker.security.settings import AccessSettings, ClientCertificates


class Access:
    """TLS and authentication of a broker. Call `open` before use; `follow` reloads its files while it serves."""

    def __init__(self, settings: AccessSettings, clock: WallClock) -> None:
        self.settings = settings
        self._clock = clock
        self._tokens: TokenFile | None = None
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
            if wanted.token is not None:
                from quire_bookie.tokens.opening import open_tokens  # slow to load, and rarely needed

                self._tokens = await open_tokens(wanted.token, SecretFiles(), self._clock)
            self.authentication = Authentication(wanted, self._tokens, self._clock)

    def follow(self, background: Background, check: Callable[[bool], None]) -> None:
        """Reload the files, and call `check` at the interval at which credentials are checked.

        Its argument is whether the accepted tokens may have changed since the last call.
        """
        if self.tls is not None and self.tls.refresh_s > 0:
            background.keep(self.tls.follow, "TLS files")
        if self.settings.authentication is not None:
            interval_s = self.settings.authentication.check_interval_s
            background.keep(lambda: self._check(check, interval_s), "credentials")

    async def _check(self, check: Callable[[bool], None], interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            changed = self._tokens is not None and await self._tokens.refresh()
            check(changed)
