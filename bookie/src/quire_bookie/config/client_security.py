"""Defines TLS and authentication of a process's ledger client towards bookies, under Pulsar's key names."""

from typing import Literal

from pydantic import Field, model_validator

from quire_bookie import limits
from quire_bookie.config.bookie_security import TLS_FACTORIES, require_pem
from quire_bookie.config.roles import NO_PROVIDERS
from quire_bookie.config.sources import NO_EFFECT, SECRET, ProcessConfig

TOKEN_PLUGINS = ("token",)


class ClientSecurityConfig(ProcessConfig):
    """Settings of TLS and of the token or certificate for connections to bookies."""

    bookkeeper_tls_provider_factory_class: str = Field(
        TLS_FACTORIES[0],
        alias="bookkeeperTLSProviderFactoryClass",
        description="for compatibility; the two keys below turn on TLS",
    )
    bookkeeper_tls_client_authentication: bool = Field(
        False,
        alias="bookkeeperTLSClientAuthentication",
        description="use TLS towards bookies, with the certificate of bookkeeperTLSCertificateFilePath",
    )
    bookkeeper_tls_trust_certs_file_path: str = Field(
        "",
        alias="bookkeeperTLSTrustCertsFilePath",
        description="trusted CA certificates of bookies, PEM; setting it turns on TLS towards bookies",
    )
    bookkeeper_tls_certificate_file_path: str = Field(
        "", alias="bookkeeperTLSCertificateFilePath", description="our certificate and its chain, PEM"
    )
    bookkeeper_tls_key_file_path: str = Field(
        "", alias="bookkeeperTLSKeyFilePath", description="the private key of our certificate, PEM"
    )
    bookkeeper_tls_key_store_password_path: str = Field(
        "", alias="bookkeeperTLSKeyStorePasswordPath", description="file with the password of the private key"
    )
    bookkeeper_tls_trust_store_password_path: str = Field(
        "",
        alias="bookkeeperTLSTrustStorePasswordPath",
        description="for compatibility; PEM certificates have none",
        json_schema_extra={NO_EFFECT: "trusted certificates in PEM have no password"},
    )
    bookkeeper_tls_key_file_type: Literal["PEM", "JKS", "PKCS12"] = Field(
        "PEM", alias="bookkeeperTLSKeyFileType", description="PEM; JKS and PKCS12 are refused, with a way to convert"
    )
    bookkeeper_tls_trust_cert_types: Literal["PEM", "JKS", "PKCS12"] = Field(
        "PEM", alias="bookkeeperTLSTrustCertTypes", description="like bookkeeperTLSKeyFileType"
    )
    bookkeeper_tls_host_name_verification: bool = Field(
        True,
        alias="bookkeeperTLSHostnameVerificationEnabled",
        description="require that a bookie's certificate is for its registered host",
    )
    bookkeeper_tls_refresh_seconds: int = Field(
        int(limits.TLS_REFRESH_S),
        alias="bookkeeperTlsCertFilesRefreshDurationSeconds",
        ge=0,
        description="shortest time between checks for changed certificate files, in s; 0: never",
    )
    bookkeeper_auth_plugin: str = Field(
        "", alias="bookkeeperClientAuthenticationPlugin", description="empty: none; token: a token on each connection"
    )
    bookkeeper_auth_parameters_name: str = Field(
        "",
        alias="bookkeeperClientAuthenticationParametersName",
        description="for compatibility",
        json_schema_extra={NO_EFFECT: "the plugin token has one parameter"},
    )
    bookkeeper_auth_parameters: str = Field(
        "",
        alias="bookkeeperClientAuthenticationParameters",
        description="the token: file:///path (read for each connection) or token:<the token>",
        json_schema_extra=SECRET,
    )

    @model_validator(mode="after")
    def _client_security_fits(self) -> "ClientSecurityConfig":
        if self.bookkeeper_tls_provider_factory_class not in (*NO_PROVIDERS, *TLS_FACTORIES):
            raise ValueError(
                f"bookkeeperTLSProviderFactoryClass {self.bookkeeper_tls_provider_factory_class}: unknown; "
                f"use {TLS_FACTORIES[0]}"
            )
        if self.bookkeeper_auth_plugin not in (*NO_PROVIDERS, *TOKEN_PLUGINS):
            raise ValueError(f"bookkeeperClientAuthenticationPlugin {self.bookkeeper_auth_plugin}: unknown; use token")
        if self.bookkeeper_auth_plugin in TOKEN_PLUGINS and not self.bookkeeper_auth_parameters:
            raise ValueError(
                "bookkeeperClientAuthenticationPlugin token needs the token: set "
                "bookkeeperClientAuthenticationParameters to file:///path/of/the/token"
            )
        if self.uses_bookie_tls:
            require_pem("bookkeeperTLSKeyFileType", self.bookkeeper_tls_key_file_type)
            require_pem("bookkeeperTLSTrustCertTypes", self.bookkeeper_tls_trust_cert_types)
        own = (self.bookkeeper_tls_certificate_file_path, self.bookkeeper_tls_key_file_path)
        if self.bookkeeper_tls_client_authentication and not all(own):
            raise ValueError(
                "bookkeeperTLSClientAuthentication needs bookkeeperTLSCertificateFilePath and bookkeeperTLSKeyFilePath"
            )
        return self

    @property
    def uses_bookie_tls(self) -> bool:
        """Whether connections to bookies use TLS."""
        return self.bookkeeper_tls_client_authentication or bool(self.bookkeeper_tls_trust_certs_file_path)
