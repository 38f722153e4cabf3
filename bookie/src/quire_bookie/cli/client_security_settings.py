"""Maps the configured TLS and authentication to the settings of a ledger client. Pure: reads no file.

Separate from the bookie's own settings, because a bookie starts without importing the client.
"""

from quire_bookie.cli.tls_files import bookie_tls_files
from quire_bookie.config.bookie_security import BookieSecurityConfig
from quire_bookie.config.client_security import TOKEN_PLUGINS, ClientSecurityConfig
from quire_bookie.config.roles import TOKEN_PROVIDERS
from quire_bookie.errors import ConfigError
from quire_bookie.settings.declared import absolute
from quire_bookie.settings.tls import ClientSecuritySettings, TlsFiles
from quire_bookie.tokens.key_urls import file_path


def own_client_security_settings(config: BookieSecurityConfig) -> ClientSecuritySettings:
    """Map the settings of the client inside a bookie's process: this bookie's certificate, and a token if configured.

    Without a token it reaches no bookie that requires one: see `require_own_token`.
    """
    token, token_path = "", ""
    if has_own_token(config):
        token, token_path = token_of(config.own_auth_parameters)
    files, refresh_s = None, float(config.tls_refresh_seconds)
    if config.uses_tls and config.tls_trust_store:
        files = bookie_tls_files(config)
    if files is None and not (token or token_path):
        return ClientSecuritySettings()
    return ClientSecuritySettings(tls=files, refresh_s=refresh_s, token=token, token_path=token_path)


def has_own_token(config: BookieSecurityConfig) -> bool:
    """Return whether the client inside the bookie authenticates with a token."""
    return config.own_auth_plugin in TOKEN_PROVIDERS


def require_own_token(config: BookieSecurityConfig) -> None:
    """Raise ConfigError if bookies require tokens and auto-recovery in this process has none."""
    if config.auth_provider in TOKEN_PROVIDERS and not has_own_token(config):
        raise ConfigError(
            "autoRecoveryDaemonEnabled with bookieAuthProviderFactoryClass token needs a token for auto-recovery: set "
            "clientAuthProviderFactoryClass=token and clientAuthParameters=file:///path/of/the/token"
        )


def client_security_settings(config: ClientSecurityConfig) -> ClientSecuritySettings:
    """Map the settings with which our ledger client connects to bookies."""
    tls: TlsFiles | None = None
    if config.uses_bookie_tls:
        with_certificate = config.bookkeeper_tls_client_authentication
        tls = TlsFiles(
            certificate=absolute(config.bookkeeper_tls_certificate_file_path) if with_certificate else "",
            key=absolute(config.bookkeeper_tls_key_file_path) if with_certificate else "",
            key_password=absolute(config.bookkeeper_tls_key_store_password_path) if with_certificate else "",
            trust=absolute(config.bookkeeper_tls_trust_certs_file_path),
        )
    token, token_path = "", ""
    if config.bookkeeper_auth_plugin in TOKEN_PLUGINS:
        token, token_path = token_of(config.bookkeeper_auth_parameters)
    return ClientSecuritySettings(
        tls=tls,
        check_host_name=config.bookkeeper_tls_host_name_verification,
        refresh_s=float(config.bookkeeper_tls_refresh_seconds),
        token=token,
        token_path=token_path,
    )


def token_of(given: str) -> tuple[str, str]:
    """Return the token itself and "", or "" and the path of its file."""
    if given.startswith("file:"):
        return "", absolute(file_path(given))
    return given.removeprefix("token:"), ""
