"""Maps the configured TLS and authentication of a bookie to its settings. Pure: reads no file."""

from quire_bookie.cli.tls_files import bookie_tls_files
from quire_bookie.config.bookie_security import BookieSecurityConfig
from quire_bookie.config.roles import ROLE_PROVIDERS, TOKEN_PROVIDERS, RolesConfig
from quire_bookie.settings.declared import absolute
from quire_bookie.settings.security import (
    AuthKind,
    ConnectionLimitSettings,
    RoleSettings,
    SecuritySettings,
    ServerTlsSettings,
)
from quire_bookie.settings.tokens import TokenSettings


def security_settings(config: BookieSecurityConfig) -> SecuritySettings:
    """Map which clients may connect to a bookie. ConfigError for contradictory settings."""
    return SecuritySettings(
        tls=_tls(config) if config.uses_tls else None,
        roles=role_settings(config),
        limits=config.part(ConnectionLimitSettings),
    )


def role_settings(config: RolesConfig) -> RoleSettings:
    """Map which roles a port requires. ConfigError for contradictory settings."""
    kind = AuthKind.NONE
    if config.auth_provider in ROLE_PROVIDERS:
        kind = AuthKind.CERTIFICATE_ROLES
    elif config.auth_provider in TOKEN_PROVIDERS:
        kind = AuthKind.TOKEN
    return RoleSettings(kind, tuple(config.authorized_roles), token=_token(config) if kind is AuthKind.TOKEN else None)


def _tls(config: BookieSecurityConfig) -> ServerTlsSettings:
    return ServerTlsSettings(
        bookie_tls_files(config),
        client_certificates=config.tls_client_authentication,
        required=config.tls_required,
        refresh_s=float(config.tls_refresh_seconds),
    )


def _token(config: RolesConfig) -> TokenSettings:
    return TokenSettings(
        secret_key=config.token_secret_key,
        public_key=config.token_public_key,
        algorithm=config.token_public_alg,
        claim=config.token_auth_claim,
        audience_claim=config.token_audience_claim,
        audience=config.token_audience,
        tokens_path=absolute(config.token_static_file),
        refresh_s=float(config.token_refresh_seconds),
    )
