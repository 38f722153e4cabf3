"""The settings of tokens of OpenID Connect issuers, under the names of Pulsar's AuthenticationProviderOpenID."""

from urllib.parse import urlsplit

from pydantic import Field

from quire_bookie.config.roles import TextList
from quire_bookie.config.sources import ProcessConfig
from quire_broker import limits

OPEN_ID_PROVIDERS = ("org.apache.pulsar.broker.authentication.oidc.AuthenticationProviderOpenID", "openid")


class OpenIdConfig(ProcessConfig):
    """Settings of the issuers of tokens, and of the claims that are required."""

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
    open_id_role_claim: str = Field(
        "sub",
        alias="openIDRoleClaim",
        min_length=1,
        description="claim of a token that names the role; of a list the first one",
    )
    open_id_leeway_s: int = Field(
        0,
        alias="openIDAcceptedTimeLeewaySeconds",
        ge=0,
        le=3600,
        description="how far the clock of an issuer may differ, in s",
    )
    open_id_cache_size: int = Field(
        5, alias="openIDCacheSize", ge=1, le=100, description="issuers whose keys are kept in memory"
    )
    open_id_refresh_s: int = Field(
        int(limits.ISSUER_REFRESH_S),
        alias="openIDCacheRefreshAfterWriteSeconds",
        ge=1,
        description="the keys of an issuer are read again after this time, in s; the former are used meanwhile",
    )
    open_id_expiry_s: int = Field(
        int(limits.ISSUER_EXPIRY_S),
        alias="openIDCacheExpirationSeconds",
        ge=1,
        description="keys that could not be read again for this time are dropped, in s",
    )
    open_id_connect_ms: int = Field(
        int(limits.ISSUER_CONNECT_S * 1000),
        alias="openIDHttpConnectionTimeoutMillis",
        ge=1,
        le=60_000,
        description="time to connect to an issuer, in ms",
    )
    open_id_read_ms: int = Field(
        int(limits.ISSUER_READ_S * 1000),
        alias="openIDHttpReadTimeoutMillis",
        ge=1,
        le=60_000,
        description="time in which an issuer must send something, in ms",
    )
    open_id_unknown_key_s: int = Field(
        int(limits.ISSUER_UNKNOWN_KEY_S),
        alias="openIDKeyIdCacheMissRefreshSeconds",
        ge=1,
        description="a token with an unknown key causes another read of its issuer's keys after this time, in s",
    )
    open_id_https: bool = Field(
        True, alias="openIDRequireIssuersUseHttps", description="refuse issuers and keys without https://"
    )
    open_id_fallback: str = Field(
        "DISABLED",
        alias="openIDFallbackDiscoveryMode",
        description="only DISABLED: only issuers of openIDAllowedTokenIssuers are trusted",
    )

    def require_open_id(self) -> None:
        """Raise ValueError unless tokens of an issuer could be accepted."""
        for key, given in (
            ("openIDAllowedTokenIssuers", self.open_id_issuers),
            ("openIDAllowedAudiences", self.open_id_audiences),
        ):
            if not given:
                raise ValueError(f"{OPEN_ID_PROVIDERS[0]} needs {key}")
        for issuer in self.open_id_issuers:
            url = urlsplit(issuer)
            plain = not url.query and not url.fragment and "@" not in url.netloc
            if url.scheme not in ("https", "http") or not url.hostname or not plain:
                raise ValueError("openIDAllowedTokenIssuers must be URLs of the form https://host/path")
            if self.open_id_https and url.scheme != "https":
                raise ValueError(
                    f"openIDAllowedTokenIssuers {issuer} does not begin with https://; it is accepted with "
                    "openIDRequireIssuersUseHttps=false"
                )
        if self.open_id_fallback != "DISABLED":
            raise ValueError(
                f"openIDFallbackDiscoveryMode {self.open_id_fallback} is not supported: name the issuer of the "
                "Kubernetes API server in openIDAllowedTokenIssuers"
            )
