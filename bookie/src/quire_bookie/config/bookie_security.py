"""The settings of a bookie's TLS, authentication and connection limits, under BookKeeper's and Pulsar's key names."""

from typing import Literal

from pydantic import Field, model_validator

from quire_bookie import limits
from quire_bookie.config.roles import NO_PROVIDERS, TOKEN_PROVIDERS, RolesConfig, TextList
from quire_bookie.config.sources import SECRET

TLS_FACTORIES = ("org.apache.bookkeeper.tls.TLSContextFactory", "TLSContextFactory")


def require_pem(key: str, value: str) -> None:
    """ValueError for the store types that only Java reads, with the way out."""
    if value != "PEM":
        raise ValueError(
            f"{key} {value} is a form that only Java reads; convert the store to PEM (keytool -importkeystore to "
            f"PKCS12, then openssl pkcs12 -in store.p12 -nodes -out store.pem) and set {key}=PEM"
        )


class BookieSecurityConfig(RolesConfig):
    """Who may talk to a bookie, and how."""

    tls_provider_factory_class: str = Field(
        "",
        alias="tlsProviderFactoryClass",
        description="org.apache.bookkeeper.tls.TLSContextFactory turns TLS (START_TLS) on; empty: off",
    )
    tls_provider: str = Field(
        "OpenSSL", alias="tlsProvider", description="taken for BookKeeper's sake; it is always OpenSSL"
    )
    tls_required: bool = Field(
        False, alias="tlsRequired", description="answer nothing but START_TLS in clear; off: clients choose"
    )
    tls_client_authentication: bool = Field(
        False,
        alias="tlsClientAuthentication",
        description="mutual TLS: only clients with a trusted certificate",
    )
    tls_certificate_path: str = Field(
        "", alias="tlsCertificatePath", description="the bookie's certificate and its chain, PEM"
    )
    tls_key_store: str = Field("", alias="tlsKeyStore", description="the private key of the certificate, PEM")
    tls_key_store_password_path: str = Field(
        "", alias="tlsKeyStorePasswordPath", description="file with the password of the private key; empty: it has none"
    )
    tls_key_store_type: Literal["PEM", "JKS", "PKCS12"] = Field(
        "PEM", alias="tlsKeyStoreType", description="PEM; Java's JKS and PKCS12 are refused with the way to convert"
    )
    tls_trust_store: str = Field(
        "", alias="tlsTrustStore", description="certificates that a client's must lead to, PEM; needed for mutual TLS"
    )
    tls_trust_store_type: Literal["PEM", "JKS", "PKCS12"] = Field(
        "PEM", alias="tlsTrustStoreType", description="as tlsKeyStoreType"
    )
    tls_trust_store_password_path: str = Field(
        "", alias="tlsTrustStorePasswordPath", description="taken for BookKeeper's sake; PEM certificates have none"
    )
    tls_refresh_seconds: int = Field(
        int(limits.TLS_REFRESH_S),
        alias="tlsCertFilesRefreshDurationSeconds",
        ge=0,
        description="look for changed certificate files at least so many seconds apart; 0: never",
    )
    tls_enabled_protocols: TextList = Field(
        [], alias="tlsEnabledProtocols", description="of TLSv1.2,TLSv1.3; empty: both"
    )
    tls_enabled_cipher_suites: str = Field(
        "",
        alias="tlsEnabledCipherSuites",
        description="for TLSv1.2: OpenSSL's names joined by colons",
    )
    own_auth_plugin: str = Field(
        "",
        alias="clientAuthProviderFactoryClass",
        description="how the client inside this bookie authenticates to bookies; empty: not; token: with a token",
    )
    own_auth_parameters: str = Field(
        "",
        alias="clientAuthParameters",
        description="the token of that client: file:///path (read for each connection) or token:<the token>",
        json_schema_extra=SECRET,
    )
    max_connections: int = Field(
        limits.CONNECTIONS_MAX, alias="maxConnections", ge=0, description="connections at once; 0: no limit"
    )
    max_connections_per_address: int = Field(
        limits.CONNECTIONS_PER_ADDRESS_MAX,
        alias="maxConnectionsPerAddress",
        ge=0,
        description="connections at once of one client address; 0: no limit",
    )
    unauthenticated_timeout_ms: int = Field(
        int(limits.UNAUTHENTICATED_S * 1000),
        alias="unauthenticatedTimeoutMs",
        ge=0,
        description="a connection that has not authenticated by then is closed, in ms; 0: never",
    )
    unauthenticated_frame_bytes: int = Field(
        limits.UNAUTHENTICATED_FRAME_BYTES_MAX,
        alias="unauthenticatedMaxFrameSizeBytes",
        ge=1024,
        description="largest frame before authentication, in bytes",
    )
    tls_handshake_timeout_ms: int = Field(
        int(limits.TLS_HANDSHAKE_TIMEOUT_S * 1000),
        alias="tlsHandshakeTimeoutMs",
        ge=100,
        description="a TLS handshake that is not done by then is broken off, in ms",
    )

    @model_validator(mode="after")
    def _security_fits(self) -> "BookieSecurityConfig":
        if self.tls_provider_factory_class not in (*NO_PROVIDERS, *TLS_FACTORIES):
            raise ValueError(
                f"tlsProviderFactoryClass {self.tls_provider_factory_class} is not known; use {TLS_FACTORIES[0]}"
            )
        if self.uses_tls:
            require_pem("tlsKeyStoreType", self.tls_key_store_type)
            require_pem("tlsTrustStoreType", self.tls_trust_store_type)
        if self.own_auth_plugin not in (*NO_PROVIDERS, *TOKEN_PROVIDERS):
            raise ValueError(f"clientAuthProviderFactoryClass {self.own_auth_plugin} is not known; there is token")
        if self.own_auth_plugin in TOKEN_PROVIDERS and not self.own_auth_parameters:
            raise ValueError(
                "clientAuthProviderFactoryClass token needs the token: set clientAuthParameters to "
                "file:///path/of/the/token"
            )
        if self.tls_required and not self.uses_tls:
            raise ValueError(f"tlsRequired is set without TLS; set tlsProviderFactoryClass={TLS_FACTORIES[0]}")
        return self

    @property
    def uses_tls(self) -> bool:
        """Whether START_TLS is offered."""
        return self.tls_provider_factory_class in TLS_FACTORIES
