"""Makes the guard of a bookie's port from its settings: reads the keys that settings name, once, at the start."""

import base64
import binascii
from collections.abc import Sequence
from functools import partial

from quire_bookie.env.clock import WallClock
from quire_bookie.env.disk import Disk
from quire_bookie.env.tls import TlsContext, server_context
from quire_bookie.errors import ConfigError
from quire_bookie.server.security.auth import AuthProvider
from quire_bookie.server.security.guard import Guard
from quire_bookie.server.security.key_urls import file_path, inline_data
from quire_bookie.server.security.roles import CertificateRoles
from quire_bookie.server.security.settings import AuthKind, SecuritySettings, TokenSettings


async def open_guard(settings: SecuritySettings, disk: Disk, clock: WallClock) -> Guard:
    """The guard, with certificates and keys loaded. ConfigError names the setting or the file that is wrong."""
    tls: TlsContext | None = None
    if settings.tls is not None:
        make = partial(server_context, client_certificates=settings.tls.client_certificates)
        tls = TlsContext(settings.tls.files, make, settings.tls.refresh_s, clock)
        await tls.open()
    return Guard(
        settings.limits,
        tls=tls,
        tls_required=settings.tls is not None and settings.tls.required,
        provider=await _provider(settings, disk, clock),
    )


async def _provider(settings: SecuritySettings, disk: Disk, clock: WallClock) -> AuthProvider | None:
    if settings.auth is AuthKind.CERTIFICATE_ROLES:
        return CertificateRoles(tuple(settings.authorized_roles))
    if settings.auth is AuthKind.TOKEN:
        assert settings.token is not None
        return await _tokens(settings.token, tuple(settings.authorized_roles), disk, clock)
    return None


async def _tokens(settings: TokenSettings, roles: Sequence[str], disk: Disk, clock: WallClock) -> AuthProvider:
    from quire_bookie.server.security import tokens  # slow to load, and few need it

    if settings.tokens_path:
        data = await _read(settings.tokens_path, "tokenStaticFile", disk)
        try:
            return tokens.TokenAuthentication(tokens.OpaqueTokens(tokens.parse_tokens(data.decode())), roles)
        except UnicodeDecodeError as error:
            raise ConfigError(f"tokenStaticFile {settings.tokens_path} is not UTF-8 text") from error
    if settings.secret_key:
        key = tokens.secret_of(await _key(settings.secret_key, "tokenSecretKey", disk))
        algorithms = tokens.secret_algorithms()
    else:
        key = tokens.public_key_of(await _key(settings.public_key, "tokenPublicKey", disk))
        algorithms = tokens.public_algorithm(settings.algorithm)
    claims = settings.claim, settings.audience_claim, settings.audience
    return tokens.TokenAuthentication(tokens.SignedTokens(key, algorithms, clock, *claims), roles)


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
