"""The settings of TLS and of how clients authenticate, of brokers and proxies, under Pulsar's key names."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from quire_bookie import limits as bookie_limits
from quire_bookie.config.http_server import HttpAccessConfig
from quire_bookie.config.roles import TextList
from quire_bookie.config.sources import SECRET
from quire_broker.config.open_id import OPEN_ID_PROVIDERS, OpenIdConfig
from quire_broker.limits import CREDENTIALS_CHECK_S

TOKEN_PROVIDERS = ("org.apache.pulsar.broker.authentication.AuthenticationProviderToken", "token")
BASIC_PROVIDERS = ("org.apache.pulsar.broker.authentication.AuthenticationProviderBasic", "basic")
TLS_PROVIDERS = ("org.apache.pulsar.broker.authentication.AuthenticationProviderTls", "tls")

PROVIDERS = (TOKEN_PROVIDERS, TLS_PROVIDERS, BASIC_PROVIDERS, OPEN_ID_PROVIDERS)


def _none_of_empty(value: Any) -> Any:
    """Convert Pulsar's empty value of an unset port to None."""
    return None if value == "" else value


OptionalPort = Annotated[Annotated[int, Field(ge=0, le=65535)] | None, BeforeValidator(_none_of_empty)]


class ClientAccessConfig(HttpAccessConfig, OpenIdConfig):
    """Settings of TLS, and of the authentication of clients."""

    http_port_tls: OptionalPort = Field(
        None,
        alias="webServicePortTls",
        description="port of REST, health and metrics over TLS; empty: none",
    )
    tls_certificate_file_path: str = Field(
        "", alias="tlsCertificateFilePath", description="the certificate of the ports with TLS and its chain, PEM"
    )
    tls_key_file_path: str = Field("", alias="tlsKeyFilePath", description="the private key of the certificate, PEM")
    tls_trust_certs_file_path: str = Field(
        "", alias="tlsTrustCertsFilePath", description="authorities that clients' certificates must chain to, PEM"
    )
    broker_client_trust_certs_file_path: str = Field(
        "",
        alias="brokerClientTrustCertsFilePath",
        description="authorities of brokers' certificates, for connections to them, PEM; empty: "
        "tlsTrustCertsFilePath, else those of the system",
    )
    tls_require_client_certificate: bool = Field(
        False,
        alias="tlsRequireTrustedClientCertOnConnect",
        description="only clients with a certificate issued by an authority of tlsTrustCertsFilePath",
    )
    tls_allow_insecure_connection: bool = Field(
        False, alias="tlsAllowInsecureConnection", description="only false: a client's certificate is always checked"
    )
    tls_protocols: TextList = Field([], alias="tlsProtocols", description="of TLSv1.2,TLSv1.3; empty: both")
    tls_ciphers: str = Field("", alias="tlsCiphers", description="for TLSv1.2, OpenSSL's names, joined by colons")
    tls_refresh_seconds: int = Field(
        int(bookie_limits.TLS_REFRESH_S),
        alias="tlsCertRefreshCheckDurationSec",
        ge=0,
        description="seconds between checks for changed certificate files; 0: never",
    )
    authentication_enabled: bool = Field(False, alias="authenticationEnabled", description="clients must authenticate")
    authentication_providers: TextList = Field(
        [],
        alias="authenticationProviders",
        description="AuthenticationProviderToken, AuthenticationProviderTls, AuthenticationProviderBasic, "
        "oidc.AuthenticationProviderOpenID (with Pulsar's package), or token, tls, basic, openid; those of one method "
        "are asked in this order",
    )
    authentication_refresh_check_seconds: int = Field(
        int(CREDENTIALS_CHECK_S),
        alias="authenticationRefreshCheckSeconds",
        ge=1,
        description="seconds between checks for expired tokens on open connections, and for a changed key",
    )
    anonymous_user_role: str = Field(
        "", alias="anonymousUserRole", description="role of clients without credentials; empty: they are refused"
    )
    basic_auth_conf: str = Field(
        "",
        alias="basicAuthConf",
        description="users and hashes of their passwords, as htpasswd writes them: a path, file:// or data:;base64, "
        "URL, or the content in base64",
        json_schema_extra=SECRET,
    )
    token_secret_key: str = Field(
        "",
        alias="tokenSecretKey",
        description="secret that signs tokens: a path, file:// or data:;base64, URL",
        json_schema_extra=SECRET,
    )
    token_public_key: str = Field(
        "", alias="tokenPublicKey", description="public key of the tokens' signer, PEM or DER: as tokenSecretKey"
    )
    token_public_alg: str = Field("RS256", alias="tokenPublicAlg", description="signature algorithm of tokenPublicKey")
    token_auth_claim: str = Field("sub", alias="tokenAuthClaim", description="claim of a token that names the role")
    token_audience_claim: str = Field("aud", alias="tokenAudienceClaim", description="claim that names the audience")
    token_audience: str = Field("", alias="tokenAudience", description="audience that a token must name; empty: any")

    @property
    def native_port_tls(self) -> int | None:
        """The port of the Pulsar protocol with TLS; each kind of process has its own key for it."""
        raise NotImplementedError

    @property
    def serves_tls(self) -> bool:
        """Whether there is a port with TLS."""
        return self.native_port_tls is not None or self.http_port_tls is not None

    @property
    def takes_tokens(self) -> bool:
        """Whether clients authenticate by tokens."""
        return any(name in TOKEN_PROVIDERS for name in self.authentication_providers)

    @property
    def takes_passwords(self) -> bool:
        """Whether clients authenticate by user and password."""
        return any(name in BASIC_PROVIDERS for name in self.authentication_providers)

    @property
    def takes_issued_tokens(self) -> bool:
        """Whether clients authenticate by tokens of OpenID Connect issuers."""
        return any(name in OPEN_ID_PROVIDERS for name in self.authentication_providers)

    @property
    def takes_certificates(self) -> bool:
        """Whether clients authenticate by certificates."""
        return any(name in TLS_PROVIDERS for name in self.authentication_providers)

    @property
    def doubts(self) -> list[str]:
        """Providers without authentication, which would leave every client in."""
        if self.authentication_enabled or not self.authentication_providers:
            return super().doubts
        return [
            *super().doubts,
            f"authenticationProviders {','.join(self.authentication_providers)} has no effect, and every client is let "
            "in: set authenticationEnabled=true, or remove it",
        ]

    @model_validator(mode="after")
    def _tls_is_whole(self) -> "ClientAccessConfig":
        if self.serves_tls and not (self.tls_certificate_file_path and self.tls_key_file_path):
            raise ValueError("ports with TLS need tlsCertificateFilePath and tlsKeyFilePath")
        if self.tls_require_client_certificate and not self.tls_trust_certs_file_path:
            raise ValueError("tlsRequireTrustedClientCertOnConnect needs tlsTrustCertsFilePath")
        if self.tls_allow_insecure_connection:
            raise ValueError("tlsAllowInsecureConnection is not supported: certificates of clients are always checked")
        return self

    @model_validator(mode="after")
    def _authentication_fits(self) -> "ClientAccessConfig":
        kinds = [next((known for known in PROVIDERS if n in known), None) for n in self.authentication_providers]
        if None in kinds:
            unknown = self.authentication_providers[kinds.index(None)]
            raise ValueError(
                f"authenticationProviders {unknown} is not known; use of {', '.join(known[0] for known in PROVIDERS)}"
            )
        if len(set(kinds)) < len(kinds):
            raise ValueError("authenticationProviders names a provider twice; remove one of them")
        if self.authentication_enabled and not self.authentication_providers:
            raise ValueError(f"authenticationEnabled needs authenticationProviders, e.g. {TOKEN_PROVIDERS[0]}")
        keys = [key for key in (self.token_secret_key, self.token_public_key) if key]
        if self.authentication_enabled and self.takes_tokens and len(keys) != 1:
            raise ValueError(f"tokens need exactly one of tokenSecretKey and tokenPublicKey; {len(keys)} are set")
        if self.authentication_enabled and self.takes_passwords and not self.basic_auth_conf:
            raise ValueError(f"{BASIC_PROVIDERS[0]} needs basicAuthConf: a file that htpasswd writes")
        if self.authentication_enabled and self.takes_issued_tokens:
            self.require_open_id()
        has_trust = self.serves_tls and self.tls_trust_certs_file_path
        if self.authentication_enabled and self.takes_certificates and not has_trust:
            raise ValueError(f"{TLS_PROVIDERS[0]} needs a port with TLS and tlsTrustCertsFilePath")
        return self
