"""Maps what a person configured about TLS and authentication to the settings of a ledger client. Pure: reads no file.

Apart from the bookie's own settings: a bookie starts without importing the client.
"""

from quire_bookie.cli.security_settings import path_of, tls_settings
from quire_bookie.client.security import ClientSecuritySettings
from quire_bookie.config.bookie_security import BookieSecurityConfig
from quire_bookie.config.client_security import TOKEN_PLUGINS, ClientSecurityConfig
from quire_bookie.env.tls import TlsFiles
from quire_bookie.server.security.key_urls import file_path


def own_client_security_settings(config: BookieSecurityConfig) -> ClientSecuritySettings:
    """How the client inside a bookie's process speaks to bookies: as one with this bookie's certificate.

    A bookie has no token of its own: where bookies ask for tokens, its client reaches none.
    """
    if not (config.uses_tls and config.tls_trust_store):
        return ClientSecuritySettings()
    files = tls_settings(config).files
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
