"""Makes the guard of a bookie's port from its settings: reads the keys that settings name, and says how to again."""

import base64
import binascii
from functools import partial
from typing import TYPE_CHECKING

from quire_bookie.env.clock import WallClock
from quire_bookie.env.disk import Disk
from quire_bookie.env.tls import TlsContext, server_context
from quire_bookie.errors import ConfigError
from quire_bookie.server.security.auth import AuthProvider
from quire_bookie.server.security.guard import Guard
from quire_bookie.server.security.key_urls import file_path, inline_data
from quire_bookie.server.security.roles import CertificateRoles
from quire_bookie.server.security.settings import AuthKind, SecuritySettings, TokenSettings

if TYPE_CHECKING:
    from quire_bookie.server.security.token_files import TokenFile


async def open_guard(settings: SecuritySettings, disk: Disk, clock: WallClock) -> Guard:
    """The guard, with certificates and keys loaded. ConfigError names the setting or the file that is wrong."""
    tls: TlsContext | None = None
    if settings.tls is not None:
        make = partial(server_context, client_certificates=settings.tls.client_certificates)
        tls = TlsContext(settings.tls.files, make, settings.tls.refresh_s, clock)
        await tls.open()
    tls_required = settings.tls is not None and settings.tls.required
    provider: AuthProvider | None = None
    tokens: TokenFile | None = None
    if settings.auth is AuthKind.CERTIFICATE_ROLES:
        provider = CertificateRoles(tuple(settings.authorized_roles))
    elif settings.auth is AuthKind.TOKEN:
        assert settings.token is not None
        from quire_bookie.server.security.tokens import TokenAuthentication  # slow to load, and few need it

        tokens = await _tokens(settings.token, disk, clock)
        provider = TokenAuthentication(tokens, tuple(settings.authorized_roles))
    guard = Guard(settings.limits, tls=tls, tls_required=tls_required, provider=provider)
    if tokens is not None and settings.token is not None and settings.token.refresh_s > 0:
        guard.follow(tokens, settings.token.refresh_s)
    return guard


async def _tokens(settings: TokenSettings, disk: Disk, clock: WallClock) -> "TokenFile":
    from quire_bookie.server.security import token_files, tokens  # slow to load, and few need it

    def listed(data: bytes) -> tokens.TokenCheck:
        try:
            return tokens.OpaqueTokens(tokens.parse_tokens(data.decode()))
        except UnicodeDecodeError as error:
            raise ConfigError(f"tokenStaticFile {settings.tokens_path} is not UTF-8 text") from error

    claims = settings.claim, settings.audience_claim, settings.audience

    def with_secret(data: bytes) -> tokens.TokenCheck:
        return tokens.SignedTokens(tokens.secret_of(data), tokens.secret_algorithms(), clock, *claims)

    def with_public_key(data: bytes) -> tokens.TokenCheck:
        key = tokens.public_key_of(data)
        return tokens.SignedTokens(key, tokens.public_algorithm(settings.algorithm), clock, *claims)

    if settings.tokens_path:
        read = partial(_read, settings.tokens_path, "tokenStaticFile", disk)
        file = token_files.TokenFile("tokenStaticFile", read, listed)
    elif settings.secret_key:
        read = partial(_key, settings.secret_key, "tokenSecretKey", disk)
        file = token_files.TokenFile("tokenSecretKey", read, with_secret)
    else:
        read = partial(_key, settings.public_key, "tokenPublicKey", disk)
        file = token_files.TokenFile("tokenPublicKey", read, with_public_key)
    await file.open()
    return file


async def _key(value: str, setting: str, disk: Disk) -> bytes:
    """A key as Pulsar lets one be given: a `data:` URL, a `file:` URL, a path, or the key itself in base64."""
    data = inline_data(value)
    if data is not None:
        return data
    path = file_path(value)
    if value.startswith("file:") or await disk.exists(path):
        return await _read(path, setting, disk)
    try:
        return base64.b64decode(value, validate=True)
    except (ValueError, binascii.Error):
        # Not quoted: it may be a secret that was cut off.
        raise ConfigError(f"{setting} names no file that exists, and is no key in base64") from None


async def _read(path: str, setting: str, disk: Disk) -> bytes:
    try:
        return await disk.read_file(path)
    except OSError as error:
        raise ConfigError(f"{setting}: the file {path} cannot be read: {error.strerror or error}") from error
