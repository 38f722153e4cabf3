"""How a process reaches secured bookies: TLS and authentication of its ledger client, under Pulsar's key names."""

from typing import Literal

from pydantic import Field, model_validator

from quire_bookie import limits
from quire_bookie.config.bookie_security import TLS_FACTORIES, require_pem
from quire_bookie.config.roles import NO_PROVIDERS
from quire_bookie.config.sources import SECRET, ProcessConfig

TOKEN_PLUGINS = ("token",)


class ClientSecurityConfig(ProcessConfig):
    """TLS and a token, or a certificate, for the connections to bookies."""

    bookkeeper_tls_provider_factory_class: str = Field(
        TLS_FACTORIES[0],
        alias="bookkeeperTLSProviderFactoryClass",
        description="taken for Pulsar's sake; the two keys below turn TLS on",
    )
    bookkeeper_tls_client_authentication: bool = Field(
        False,
        alias="bookkeeperTLSClientAuthentication",
        description="TLS towards bookies, with the certificate of bookkeeperTLSCertificateFilePath",
    )
    bookkeeper_tls_trust_certs_file_path: str = Field(
        "",
        alias="bookkeeperTLSTrustCertsFilePath",
        description="certificates that a bookie's must lead to, PEM; being set turns TLS towards bookies on",
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
        description="taken for Pulsar's sake; PEM certificates have none",
    )
    bookkeeper_tls_key_file_type: Literal["PEM", "JKS", "PKCS12"] = Field(
        "PEM", alias="bookkeeperTLSKeyFileType", description="PEM; JKS and PKCS12 are refused with the way to convert"
    )
    bookkeeper_tls_trust_cert_types: Literal["PEM", "JKS", "PKCS12"] = Field(
        "PEM", alias="bookkeeperTLSTrustCertTypes", description="as bookkeeperTLSKeyFileType"
    )
    bookkeeper_tls_host_name_verification: bool = Field(
        True,
        alias="bookkeeperTLSHostnameVerificationEnabled",
        description="a bookie's certificate must be for the host that it registered",
    )
    bookkeeper_tls_refresh_seconds: int = Field(
        int(limits.TLS_REFRESH_S),
        alias="bookkeeperTlsCertFilesRefreshDurationSeconds",
        ge=0,
        description="look for changed certificate files at least so many seconds apart; 0: never",
    )
    bookkeeper_auth_plugin: str = Field(
        "", alias="bookkeeperClientAuthenticationPlugin", description="empty: none; token: a token for each connection"
    )
    bookkeeper_auth_parameters_name: str = Field(
        "", alias="bookkeeperClientAuthenticationParametersName", description="taken for Pulsar's sake"
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
                f"bookkeeperTLSProviderFactoryClass {self.bookkeeper_tls_provider_factory_class} is not known; "
                f"use {TLS_FACTORIES[0]}"
            )
        if self.bookkeeper_auth_plugin not in (*NO_PROVIDERS, *TOKEN_PLUGINS):
            raise ValueError(
                f"bookkeeperClientAuthenticationPlugin {self.bookkeeper_auth_plugin} is not known; there is token"
            )
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
        """Whether bookies are asked for TLS."""
        return self.bookkeeper_tls_client_authentication or bool(self.bookkeeper_tls_trust_certs_file_path)
