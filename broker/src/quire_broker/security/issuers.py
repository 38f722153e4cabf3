"""Keeps the public keys of trusted OpenID Connect issuers: finds, caches and renews them over HTTP.

    first token of an issuer     its keys are read; clients wait for it
    after refresh_s              they are read again; the former stay in use meanwhile, also if it fails
    after expiry_s               keys that could not be read again are dropped
    a token with an unknown key  they are read again, if the last time is unknown_key_s ago
    a failed read                is repeated after a pause; until then tokens are refused with the reason

Only issuers from the settings are asked, one request at a time for each. Redirects are not followed.
"""

import asyncio
import json
import logging
from collections.abc import Mapping
from dataclasses import field
from functools import partial
from typing import Any

import aiohttp

from quire_bookie.dataclass import dataclass
from quire_bookie.env.bounded_body import IDENTITY, read_body
from quire_bookie.env.clock import WallClock
from quire_bookie.env.tls import TlsContext, client_context
from quire_bookie.errors import ConfigError, PeerProtocolError
from quire_bookie.settings.tls import TlsFiles
from quire_bookie.tokens.issued import IssuerKey, parse_keys
from quire_broker.errors import AuthenticationError
from quire_broker.limits import ISSUER_ANSWER_BYTES_MAX, ISSUER_RETRY_S, ISSUER_WAITING_MAX
from quire_broker.security.settings import OpenIdSettings

log = logging.getLogger("quire.broker.security")
DISCOVERY = "/.well-known/openid-configuration"
_NEVER_S = float("-inf")
_SHOWN_CHARACTERS = 200
_LOOK_S = 10.0
"""Between two looks at the age of the keys; less if they must be renewed more often."""
_UNKNOWN_KEY = "the token was signed with a key that its issuer does not publish"


@dataclass(slots=True)
class _Issuer:
    """One issuer. Times are those of the event loop."""

    keys: Mapping[str, IssuerKey] = field(default_factory=dict)
    read_s: float = _NEVER_S
    tried_s: float = _NEVER_S
    used_s: float = _NEVER_S
    failure: str = ""
    waiting: int = 0
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class Issuers:
    """The issuers of the settings. Call `open` before use."""

    def __init__(self, settings: OpenIdSettings, clock: WallClock) -> None:
        self._settings = settings
        self._issuers = {name: _Issuer() for name in settings.issuers}
        make = partial(client_context, check_host_name=True)
        self._tls = TlsContext(TlsFiles(trust=settings.trust_path), make, settings.tls_refresh_s, clock)
        self._changed = False

    async def open(self) -> None:
        """Read the authorities of the issuers' certificates. ConfigError."""
        try:
            await self._tls.open()
        except ConfigError as error:
            raise ConfigError(f"openIDTokenIssuerTrustCertsFilePath: {error}") from error

    def knows(self, issuer: str) -> bool:
        """Return whether the keys of an issuer are in memory."""
        return issuer in self._issuers and bool(self._current(self._issuers[issuer]))

    def key(self, issuer: str, key_id: str) -> IssuerKey | None:
        """Return a key that is in memory. AuthenticationError if `find` cannot find it either."""
        one = self._issuers.get(issuer)
        if one is None:
            raise AuthenticationError(self._refusal(issuer))
        key = self._current(one).get(key_id)
        if key is None:
            self._require_read(one)
        else:
            one.used_s = asyncio.get_running_loop().time()
        return key

    def _refusal(self, issuer: str) -> str:
        """Return why an issuer is not trusted. An unknown one is not repeated: anybody may have written it."""
        named = issuer.removesuffix("/") if issuer.endswith("/") else f"{issuer}/"
        if named in self._issuers:
            return (
                f"the token is of the issuer {issuer!r}, and openIDAllowedTokenIssuers names {named!r}: write the / at "
                "the end as the token has it"
            )
        return "the token is of an issuer that openIDAllowedTokenIssuers does not name"

    async def find(self, issuer: str, key_id: str) -> IssuerKey:
        """Return a key, after reading the issuer's keys. AuthenticationError."""
        one = self._issuers[issuer]
        if one.waiting >= ISSUER_WAITING_MAX:
            raise AuthenticationError("too many clients wait for the keys of the token's issuer; try again")
        one.waiting += 1
        try:
            async with one.turn:
                # Another client may have read them meanwhile.
                if (key := self.key(issuer, key_id)) is not None:
                    return key
                await self._read(issuer, one)
        finally:
            one.waiting -= 1
        if (key := self.key(issuer, key_id)) is None:
            raise AuthenticationError(_UNKNOWN_KEY)
        return key

    async def follow(self) -> None:
        """Read keys again before they are too old, until cancelled."""
        while True:
            await asyncio.sleep(min(_LOOK_S, self._settings.refresh_s / 2))
            for name, one in self._issuers.items():
                await self._renew(name, one)

    async def _renew(self, name: str, one: _Issuer) -> None:
        now_s = asyncio.get_running_loop().time()
        if not one.keys or now_s - one.read_s < self._settings.refresh_s or now_s - one.tried_s < ISSUER_RETRY_S:
            return
        async with one.turn:
            try:
                await self._read(name, one)
            except AuthenticationError as error:
                log.warning("the former keys of the token issuer %s stay in use: %s", name, error)

    def take_change(self) -> bool:
        """Return whether keys have changed since the last call."""
        changed, self._changed = self._changed, False
        return changed

    def _current(self, one: _Issuer) -> Mapping[str, IssuerKey]:
        """Return the keys, unless they are too old."""
        return one.keys if asyncio.get_running_loop().time() - one.read_s < self._settings.expiry_s else {}

    def _require_read(self, one: _Issuer) -> None:
        """Raise AuthenticationError if the keys must not be read now: every token could cause a request otherwise."""
        now_s = asyncio.get_running_loop().time()
        if one.failure and now_s - one.tried_s < ISSUER_RETRY_S:
            raise AuthenticationError(one.failure)
        if self._current(one) and now_s - one.tried_s < self._settings.unknown_key_s:
            raise AuthenticationError(_UNKNOWN_KEY)

    async def _read(self, name: str, one: _Issuer) -> None:
        """Read the keys of an issuer. AuthenticationError."""
        loop = asyncio.get_running_loop()
        try:
            keys = await self._fetch(name)
        except (aiohttp.ClientError, PeerProtocolError, OSError, TimeoutError, ValueError, RecursionError) as error:
            reason = str(error) or type(error).__name__
            log.warning("the keys of the token issuer %s cannot be read: %s", name, reason)
            one.failure = "the keys of the token's issuer cannot be read; the broker's log has the reason"
            raise AuthenticationError(one.failure) from error
        finally:
            one.tried_s = loop.time()
        log.info("the token issuer %s has %d keys", name, len(keys))
        self._changed |= bool(one.keys) and dict(one.keys) != keys
        one.keys, one.read_s, one.used_s, one.failure = keys, one.tried_s, one.tried_s, ""
        kept = sorted((each for each in self._issuers.values() if each.keys), key=lambda each: each.used_s)
        for oldest in kept[: -self._settings.issuers_max]:
            oldest.keys = {}

    async def _fetch(self, name: str) -> dict[str, IssuerKey]:
        settings = self._settings
        timeout = aiohttp.ClientTimeout(
            total=2 * (settings.connect_s + settings.read_s), sock_connect=settings.connect_s, sock_read=settings.read_s
        )
        async with aiohttp.ClientSession(headers=IDENTITY, timeout=timeout, auto_decompress=False) as session:
            about = await self._json(session, name.removesuffix("/") + DISCOVERY)
            found = about.get("issuer") if isinstance(about, dict) else None
            if found != name:
                raise ValueError(
                    f"its {DISCOVERY} names the issuer {str(found)[:_SHOWN_CHARACTERS]!r}: openIDAllowedTokenIssuers "
                    f"must have it so, and not as {name!r}"
                )
            where = about.get("jwks_uri")
            if not isinstance(where, str) or not where.startswith(("https://", "http://")):
                raise ValueError("its jwks_uri is not a URL")
            if settings.https_only and not where.startswith("https://"):
                raise ValueError("its jwks_uri does not begin with https:// (openIDRequireIssuersUseHttps)")
            return parse_keys(await self._json(session, where))

    async def _json(self, session: aiohttp.ClientSession, url: str) -> Any:
        tls = await self._tls.current() if url.startswith("https:") else True
        async with session.get(url, ssl=tls, allow_redirects=False) as answer:
            if answer.status != 200:
                raise ValueError(f"{url} answers HTTP {answer.status}")
            return json.loads(await read_body(answer, ISSUER_ANSWER_BYTES_MAX))
