"""Defines a bookie's TLS, authentication and connection limits, under BookKeeper's and Pulsar's key names."""

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from quire_bookie import limits
from quire_bookie.config.roles import NO_PROVIDERS, TOKEN_PROVIDERS, RolesConfig, TextList
from quire_bookie.config.sources import NO_EFFECT, SECRET
from quire_bookie.settings.security import ConnectionLimitSettings

TLS_FACTORIES = ("org.apache.bookkeeper.tls.TLSContextFactory", "TLSContextFactory")


def require_pem(key: str, value: str) -> None:
    """Raise ValueError, with the remedy, for the store types that only Java reads."""
    if value != "PEM":
        raise ValueError(
            f"{key} {value} is a format that only Java reads; convert the store to PEM (keytool -importkeystore to "
            f"PKCS12, then openssl pkcs12 -in store.p12 -nodes -out store.pem) and set {key}=PEM"
        )


class BookieSecurityConfig(RolesConfig):
    """Settings of which clients may connect to a bookie, and how."""

    SETTINGS: ClassVar[tuple[type, ...]] = (ConnectionLimitSettings,)

    tls_provider_factory_class: str = Field(
        "",
        alias="tlsProviderFactoryClass",
        description="org.apache.bookkeeper.tls.TLSContextFactory turns on TLS (START_TLS); empty: off",
    )
    tls_provider: str = Field(
        "OpenSSL",
        alias="tlsProvider",
        description="for compatibility; it is always OpenSSL",
        json_schema_extra={NO_EFFECT: "it is always OpenSSL"},
    )
    tls_required: bool = Field(
        False, alias="tlsRequired", description="accept only START_TLS in plaintext; false: clients choose"
    )
    tls_client_authentication: bool = Field(
        False,
        alias="tlsClientAuthentication",
        description="mutual TLS: accept only clients with a trusted certificate",
    )
    tls_certificate_path: str = Field(
        "", alias="tlsCertificatePath", description="the bookie's certificate and its chain, PEM"
    )
    tls_key_store: str = Field("", alias="tlsKeyStore", description="the private key of the certificate, PEM")
    tls_key_store_password_path: str = Field(
        "", alias="tlsKeyStorePasswordPath", description="file with the password of the private key; empty: no password"
    )
    tls_key_store_type: Literal["PEM", "JKS", "PKCS12"] = Field(
        "PEM", alias="tlsKeyStoreType", description="PEM; Java's JKS and PKCS12 are refused, with a way to convert"
    )
    tls_trust_store: str = Field(
        "", alias="tlsTrustStore", description="trusted CA certificates of clients, PEM; needed for mutual TLS"
    )
    tls_trust_store_type: Literal["PEM", "JKS", "PKCS12"] = Field(
        "PEM", alias="tlsTrustStoreType", description="like tlsKeyStoreType"
    )
    tls_trust_store_password_path: str = Field(
        "",
        alias="tlsTrustStorePasswordPath",
        description="for compatibility; PEM certificates have none",
        json_schema_extra={NO_EFFECT: "trusted certificates in PEM have no password"},
    )
    tls_refresh_seconds: int = Field(
        int(limits.TLS_REFRESH_S),
        alias="tlsCertFilesRefreshDurationSeconds",
        ge=0,
        description="shortest time between checks for changed certificate files, in s; 0: never",
    )
    tls_enabled_protocols: TextList = Field(
        [], alias="tlsEnabledProtocols", description="TLSv1.2,TLSv1.3 or one of them; empty: both"
    )
    tls_enabled_cipher_suites: str = Field(
        "",
        alias="tlsEnabledCipherSuites",
        description="for TLSv1.2: OpenSSL's names, separated by colons",
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

    @model_validator(mode="after")
    def _security_fits(self) -> "BookieSecurityConfig":
        if self.tls_provider_factory_class not in (*NO_PROVIDERS, *TLS_FACTORIES):
            raise ValueError(
                f"tlsProviderFactoryClass {self.tls_provider_factory_class}: unknown; use {TLS_FACTORIES[0]}"
            )
        if self.uses_tls:
            require_pem("tlsKeyStoreType", self.tls_key_store_type)
            require_pem("tlsTrustStoreType", self.tls_trust_store_type)
        if self.own_auth_plugin not in (*NO_PROVIDERS, *TOKEN_PROVIDERS):
            raise ValueError(f"clientAuthProviderFactoryClass {self.own_auth_plugin}: unknown; use token")
        if self.own_auth_plugin in TOKEN_PROVIDERS and not self.own_auth_parameters:
            raise ValueError(
                "clientAuthProviderFactoryClass token needs the token: set clientAuthParameters to "
                "file:///path/of/the/token"
            )
        if self.tls_required and not self.uses_tls:
            raise ValueError(f"tlsRequired needs TLS; set tlsProviderFactoryClass={TLS_FACTORIES[0]}")
        return self

    @property
    def uses_tls(self) -> bool:
        """Whether START_TLS is offered."""
        return self.tls_provider_factory_class in TLS_FACTORIES
