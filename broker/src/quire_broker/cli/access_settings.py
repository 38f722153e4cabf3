"""Maps the configuration of a broker's security to its settings. Pure: reads no file."""

from collections.abc import Iterable
from dataclasses import replace

from quire_bookie.settings.declared import absolute
from quire_bookie.settings.http import HttpLimits
from quire_bookie.settings.tls import TlsFiles
from quire_bookie.settings.tokens import TokenSettings
from quire_broker.config.access import BASIC_PROVIDERS, TOKEN_PROVIDERS, ClientAccessConfig
from quire_broker.config.open_id import OPEN_ID_PROVIDERS
from quire_broker.config.security import BrokerSecurityConfig
from quire_broker.security.settings import (
    AccessSettings,
    AuthenticationSettings,
    ClientCertificates,
    OpenIdSettings,
    PeerTlsSettings,
    ProviderKind,
    ServerTlsSettings,
)

_KINDS = (
    dict.fromkeys(TOKEN_PROVIDERS, ProviderKind.TOKEN)
    | dict.fromkeys(BASIC_PROVIDERS, ProviderKind.BASIC)
    | dict.fromkeys(OPEN_ID_PROVIDERS, ProviderKind.OPEN_ID)
)


def access_settings(config: BrokerSecurityConfig, own_names: Iterable[str]) -> AccessSettings:
    """Return the settings of TLS, authentication and authorization. `own_names`: names that the broker publishes."""
    found = client_access_settings(config, own_names)
    if found.authentication is not None:
        checks = replace(found.authentication, authenticate_original=config.authenticate_original_auth_data)
        found = replace(found, authentication=checks)
    return replace(
        found,
        authorization=config.authorization_enabled,
        super_users=frozenset(config.super_user_roles),
        proxy_roles=frozenset(config.proxy_roles),
        audit=config.audit_log,
        permissions_check_s=float(config.permissions_check_seconds),
    )


def client_access_settings(config: ClientAccessConfig, own_names: Iterable[str]) -> AccessSettings:
    """Return the settings of TLS and authentication, for brokers and proxies."""
    return AccessSettings(
        tls=_tls(config) if config.serves_tls else None,
        authentication=_authentication(config) if config.authentication_enabled else None,
        admin_remote=config.http_admin_remote,
        # Names of one part are always accepted.
        allowed_hosts=tuple(dict.fromkeys([*(name for name in own_names if "." in name), *config.http_allowed_hosts])),
        http=config.part(HttpLimits),
        peers=PeerTlsSettings(
            TlsFiles(trust=absolute(config.broker_client_trust_certs_file_path or config.tls_trust_certs_file_path)),
            refresh_s=float(config.tls_refresh_seconds),
        ),
    )


def _tls(config: ClientAccessConfig) -> ServerTlsSettings:
    asked = ClientCertificates.NONE
    if config.tls_require_client_certificate:
        asked = ClientCertificates.REQUIRED
    elif config.tls_trust_certs_file_path and config.authentication_enabled and config.takes_certificates:
        asked = ClientCertificates.TAKEN
    return ServerTlsSettings(
        TlsFiles(
            certificate=absolute(config.tls_certificate_file_path),
            key=absolute(config.tls_key_file_path),
            trust=absolute(config.tls_trust_certs_file_path),
            protocols=tuple(config.tls_protocols),
            ciphers=config.tls_ciphers,
        ),
        asked,
        refresh_s=float(config.tls_refresh_seconds),
    )


def _authentication(config: ClientAccessConfig) -> AuthenticationSettings:
    token = None
    if config.takes_tokens:
        token = TokenSettings(
            secret_key=config.token_secret_key,
            public_key=config.token_public_key,
            algorithm=config.token_public_alg,
            claim=config.token_auth_claim,
            audience_claim=config.token_audience_claim,
            audience=config.token_audience,
        )
    return AuthenticationSettings(
        token=token,
        certificates=config.takes_certificates,
        passwords=config.basic_auth_conf if config.takes_passwords else "",
        open_id=_open_id(config) if config.takes_issued_tokens else None,
        order=tuple(_KINDS[name] for name in config.authentication_providers if name in _KINDS),
        anonymous_role=config.anonymous_user_role,
        check_interval_s=float(config.authentication_refresh_check_seconds),
    )


def _open_id(config: ClientAccessConfig) -> OpenIdSettings:
    return config.part(
        OpenIdSettings,
        issuers=tuple(config.open_id_issuers),
        audiences=frozenset(config.open_id_audiences),
        trust_path=absolute(config.open_id_trust_path),
        tls_refresh_s=float(config.tls_refresh_seconds),
    )
