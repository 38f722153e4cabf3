"""The settings of tokens of OpenID Connect issuers, under the names of Pulsar's AuthenticationProviderOpenID."""

from typing import ClassVar
from urllib.parse import urlsplit

from pydantic import Field

from quire_bookie.config.roles import TextList
from quire_bookie.config.sources import ProcessConfig
from quire_broker.security.settings import OpenIdSettings

OPEN_ID_PROVIDERS = ("org.apache.pulsar.broker.authentication.oidc.AuthenticationProviderOpenID", "openid")


class OpenIdConfig(ProcessConfig):
    """Settings of the issuers of tokens, and of the claims that are required."""

    SETTINGS: ClassVar[tuple[type, ...]] = (OpenIdSettings,)

    open_id_issuers: TextList = Field(
        [],
        alias="openIDAllowedTokenIssuers",
        max_length=100,
        description="URLs of the issuers whose tokens are accepted, as in the claim iss",
    )
    open_id_audiences: TextList = Field(
        [], alias="openIDAllowedAudiences", description="audiences: a token must name one of them in its claim aud"
    )
    open_id_trust_path: str = Field(
        "",
        alias="openIDTokenIssuerTrustCertsFilePath",
        description="authorities of the issuers' certificates, PEM; empty: those of the system",
    )
    open_id_fallback: str = Field(
        "DISABLED",
        alias="openIDFallbackDiscoveryMode",
        description="only DISABLED: only issuers of openIDAllowedTokenIssuers are trusted",
    )

    def require_open_id(self) -> None:
        """Raise ValueError unless tokens of an issuer could be accepted."""
        for key, given, example in (
            ("openIDAllowedTokenIssuers", self.open_id_issuers, "https://accounts.example.com"),
            ("openIDAllowedAudiences", self.open_id_audiences, "pulsar"),
        ):
            if not given:
                raise ValueError(f"{OPEN_ID_PROVIDERS[0]} needs {key}, e.g. {key}={example}")
        for issuer in self.open_id_issuers:
            url = urlsplit(issuer)
            plain = not url.query and not url.fragment and "@" not in url.netloc
            if url.scheme not in ("https", "http") or not url.hostname or not plain:
                raise ValueError(
                    f"openIDAllowedTokenIssuers names {issuer!r}, which is not a URL of the form https://host/path; "
                    "give issuers as their tokens have them in the claim iss"
                )
            if self.part(OpenIdSettings).https_only and url.scheme != "https":
                raise ValueError(
                    f"openIDAllowedTokenIssuers {issuer} does not begin with https://; it is accepted with "
                    "openIDRequireIssuersUseHttps=false"
                )
        if self.open_id_fallback != "DISABLED":
            raise ValueError(
                f"openIDFallbackDiscoveryMode {self.open_id_fallback} is not supported: name the issuer of the "
                "Kubernetes API server in openIDAllowedTokenIssuers"
            )
