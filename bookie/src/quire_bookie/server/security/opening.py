"""Makes the guard of a bookie's port from its settings, with certificates and keys loaded."""

from functools import partial
from typing import TYPE_CHECKING

from quire_bookie.env.clock import WallClock
from quire_bookie.env.disk import Disk
from quire_bookie.env.tls import TlsContext, server_context
from quire_bookie.server.security.auth import AuthProvider
from quire_bookie.server.security.guard import Guard
from quire_bookie.server.security.roles import CertificateRoles
from quire_bookie.server.security.settings import AuthKind, SecuritySettings

if TYPE_CHECKING:
    from quire_bookie.tokens.files import TokenFile


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
        from quire_bookie.tokens.opening import open_tokens

        tokens = await open_tokens(settings.token, disk, clock)
        provider = TokenAuthentication(tokens, tuple(settings.authorized_roles))
    guard = Guard(settings.limits, tls=tls, tls_required=tls_required, provider=provider)
    if tokens is not None and settings.token is not None and settings.token.refresh_s > 0:
        guard.follow(tokens, settings.token.refresh_s)
    return guard
