"""Creates the guard of a bookie's port, and the provider of roles of any port, with certificates and keys loaded."""

from functools import partial
from typing import TYPE_CHECKING

from quire_bookie.env.clock import WallClock
from quire_bookie.env.disk import Disk
from quire_bookie.env.tls import TlsContext, server_context
from quire_bookie.server.security.auth import AuthProvider
from quire_bookie.server.security.guard import Guard
from quire_bookie.server.security.roles import CertificateRoles
from quire_bookie.settings.security import AuthKind, RoleSettings, SecuritySettings

if TYPE_CHECKING:
    from quire_bookie.tokens.files import TokenFile
    from quire_bookie.tokens.opening import KeyFiles


async def open_guard(settings: SecuritySettings, disk: Disk, clock: WallClock) -> Guard:
    """Return the guard, with certificates and keys loaded. ConfigError names the wrong setting or file."""
    tls: TlsContext | None = None
    if settings.tls is not None:
        make = partial(server_context, client_certificates=settings.tls.client_certificates)
        tls = TlsContext(settings.tls.files, make, settings.tls.refresh_s, clock)
        await tls.open()
    tls_required = settings.tls is not None and settings.tls.required
    provider, tokens = await open_provider(settings.roles, disk, clock)
    guard = Guard(settings.limits, tls=tls, tls_required=tls_required, provider=provider)
    refresh_s = 0.0 if settings.roles.token is None else settings.roles.token.refresh_s
    if tokens is not None and refresh_s > 0:
        guard.follow(tokens, refresh_s)
    return guard


async def open_provider(
    settings: RoleSettings, files: "KeyFiles", clock: WallClock
) -> "tuple[AuthProvider | None, TokenFile | None]":
    """Return the provider, None without authentication, and for tokens also the token file to follow. ConfigError."""
    if settings.kind is AuthKind.CERTIFICATE_ROLES:
        return CertificateRoles(tuple(settings.authorized)), None
    if settings.kind is not AuthKind.TOKEN:
        return None, None
    assert settings.token is not None
    from quire_bookie.server.security.tokens import TokenAuthentication  # slow to import, and rarely needed
    from quire_bookie.tokens.opening import open_tokens

    tokens = await open_tokens(settings.token, files, clock)
    return TokenAuthentication(tokens, tuple(settings.authorized)), tokens
