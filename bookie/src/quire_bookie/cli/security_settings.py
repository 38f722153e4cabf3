"""Maps what a person configured about TLS and authentication to the settings of the rooms. Pure: reads no file."""

from os.path import abspath

from quire_bookie.client.security import ClientSecuritySettings
from quire_bookie.config.bookie_security import ROLE_PROVIDERS, TOKEN_PROVIDERS, BookieSecurityConfig
from quire_bookie.config.client_security import TOKEN_PLUGINS, ClientSecurityConfig
from quire_bookie.env.tls import TlsFiles
from quire_bookie.server.security.key_urls import file_path
from quire_bookie.server.security.settings import (
    AuthKind,
    ConnectionLimitSettings,
    SecuritySettings,
    ServerTlsSettings,
    TokenSettings,
)


def security_settings(config: BookieSecurityConfig) -> SecuritySettings:
    """Who may talk to a bookie. ConfigError for parts that contradict each other."""
    auth = AuthKind.NONE
    if config.auth_provider in ROLE_PROVIDERS:
        auth = AuthKind.CERTIFICATE_ROLES
    elif config.auth_provider in TOKEN_PROVIDERS:
        auth = AuthKind.TOKEN
    return SecuritySettings(
        tls=_tls(config) if config.uses_tls else None,
        auth=auth,
        authorized_roles=tuple(config.authorized_roles),
        token=_token(config) if auth is AuthKind.TOKEN else None,
        limits=ConnectionLimitSettings(
            connections_max=config.max_connections,
            connections_per_address_max=config.max_connections_per_address,
            unauthenticated_s=config.unauthenticated_timeout_ms / 1000,
            unauthenticated_frame_bytes_max=config.unauthenticated_frame_bytes,
            handshake_timeout_s=config.tls_handshake_timeout_ms / 1000,
        ),
    )


def own_client_security_settings(config: BookieSecurityConfig) -> ClientSecuritySettings:
    """How the client inside a bookie's process speaks to bookies: as one with this bookie's certificate.

    A bookie has no token of its own: where bookies ask for tokens, its client reaches none.
    """
    if not (config.uses_tls and config.tls_trust_store):
        return ClientSecuritySettings()
    files = _tls(config).files
    return ClientSecuritySettings(tls=files, refresh_s=float(config.tls_refresh_seconds))


def client_security_settings(config: ClientSecurityConfig) -> ClientSecuritySettings:
    """How our ledger client speaks to bookies."""
    tls: TlsFiles | None = None
    if config.uses_bookie_tls:
        with_certificate = config.bookkeeper_tls_client_authentication
        tls = TlsFiles(
            certificate=path_of(config.bookkeeper_tls_certificate_file_path) if with_certificate else "",
            key=path_of(config.bookkeeper_tls_key_file_path) if with_certificate else "",
            key_password=path_of(config.bookkeeper_tls_key_store_password_path) if with_certificate else "",
            trust=path_of(config.bookkeeper_tls_trust_certs_file_path),
        )
    given = config.bookkeeper_auth_parameters if config.bookkeeper_auth_plugin in TOKEN_PLUGINS else ""
    from_file = given.startswith("file:")
    return ClientSecuritySettings(
        tls=tls,
        check_host_name=config.bookkeeper_tls_host_name_verification,
        refresh_s=float(config.bookkeeper_tls_refresh_seconds),
        token="" if from_file else given.removeprefix("token:"),
        token_path=path_of(file_path(given)) if from_file else "",
    )


def path_of(value: str) -> str:
    """An absolute path; nothing for nothing."""
    return abspath(value) if value else ""


def _tls(config: BookieSecurityConfig) -> ServerTlsSettings:
    return ServerTlsSettings(
        TlsFiles(
            certificate=path_of(config.tls_certificate_path),
            key=path_of(config.tls_key_store),
            key_password=path_of(config.tls_key_store_password_path),
            trust=path_of(config.tls_trust_store),
            protocols=tuple(config.tls_enabled_protocols),
            ciphers=config.tls_enabled_cipher_suites,
        ),
        client_certificates=config.tls_client_authentication,
        required=config.tls_required,
        refresh_s=float(config.tls_refresh_seconds),
    )


def _token(config: BookieSecurityConfig) -> TokenSettings:
    return TokenSettings(
        secret_key=config.token_secret_key,
        public_key=config.token_public_key,
        algorithm=config.token_public_alg,
        claim=config.token_auth_claim,
        audience_claim=config.token_audience_claim,
        audience=config.token_audience,
        tokens_path=path_of(config.token_static_file),
    )
