"""Builds the access rules of the admin HTTP port of a bookie or of auto-recovery from the settings. Serves nothing."""

import asyncio
import contextlib
import logging
import socket

from quire_bookie.admin.access import NO_ADMINS, AdminAccess
from quire_bookie.admin.origin import AllowedHosts
from quire_bookie.cli.security_settings import role_settings
from quire_bookie.config.auto_recovery import AutoRecoveryProcessConfig
from quire_bookie.config.bookie import BookieConfig
from quire_bookie.config.roles import ROLE_PROVIDERS
from quire_bookie.env.background import Background
from quire_bookie.env.clock import WallClock
from quire_bookie.env.secret_file import SecretFiles
from quire_bookie.errors import ConfigError
from quire_bookie.server.security.auth import AuthProvider
from quire_bookie.server.security.opening import open_provider
from quire_bookie.settings.http import HttpLimits
from quire_bookie.tokens.files import TokenFile

_log = logging.getLogger("quire.admin")


def admin_access(
    config: BookieConfig | AutoRecoveryProcessConfig, provider: AuthProvider | None, own_name: str
) -> AdminAccess:
    """Build the rules; clients use the host name `own_name`. Logs a warning if no role may change anything."""
    admins = tuple(config.http_admin_roles or config.authorized_roles)
    if provider is not None and not admins:
        _log.warning("%s", NO_ADMINS)
    return AdminAccess(
        provider=provider,
        admins=admins,
        remote=config.http_admin_remote,
        metrics_need_role=config.http_authenticate_metrics,
        hosts=AllowedHosts((own_name, socket.gethostname(), *config.http_allowed_hosts)),
        bounds=config.part(HttpLimits),
    )


async def recovery_access(
    config: AutoRecoveryProcessConfig, clock: WallClock, undo: contextlib.AsyncExitStack
) -> AdminAccess:
    """Build the rules of auto-recovery's port; they follow the token file until `undo` runs. ConfigError."""
    if config.auth_provider in ROLE_PROVIDERS and not config.http_trust_path:
        raise ConfigError(
            f"bookieAuthProviderFactoryClass {config.auth_provider} takes roles from certificates, which the HTTP port "
            "requests only with httpServerTlsEnable=true and httpServerTrustStorePath: set both, or use tokens"
        )
    settings = role_settings(config)
    provider, tokens = await open_provider(settings, SecretFiles(), clock)
    if tokens is not None and settings.token is not None and settings.token.refresh_s > 0:
        background = Background(_log)
        undo.push_async_callback(background.close)
        background.start(_follow(tokens, settings.token.refresh_s), "refreshes the token file")
    return admin_access(config, provider, config.name or socket.gethostname())


async def _follow(tokens: TokenFile, refresh_s: float) -> None:
    while True:
        await asyncio.sleep(refresh_s)
        await tokens.refresh()
