"""Defines which roles clients must prove to bookies and auto-recovery, under BookKeeper's and Pulsar's key names."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from quire_bookie import limits
from quire_bookie.config.sources import SECRET, ProcessConfig

NO_PROVIDERS = ("", "null")
ROLE_PROVIDERS = ("org.apache.bookkeeper.tls.BookieAuthZFactory", "BookieAuthZFactory")
TOKEN_PROVIDERS = ("token",)


def split_list(value: Any) -> Any:
    """Split a list written with commas, as in BookKeeper; a file may also contain a real list."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


TextList = Annotated[list[str], BeforeValidator(split_list)]


class RolesConfig(ProcessConfig):
    """Settings of how a client proves its role, and which roles may connect or make changes."""

    auth_provider: str = Field(
        "",
        alias="bookieAuthProviderFactoryClass",
        description="empty: none; org.apache.bookkeeper.tls.BookieAuthZFactory: roles from certificates; token: tokens",
    )
    authorized_roles: TextList = Field(
        [], alias="authorizedRoles", description="roles that may connect; empty: with tokens every role"
    )
    http_admin_roles: TextList = Field(
        [],
        alias="httpServerAdminRoles",
        description="roles, among those that may connect, that may make changes over HTTP; empty: authorizedRoles",
    )
    http_authenticate_metrics: bool = Field(
        False, alias="authenticateMetricsEndpoint", description="with token authentication, require one for /metrics"
    )
    token_secret_key: str = Field(
        "",
        alias="tokenSecretKey",
        description="secret that signs tokens: a path, or a file:// or data:;base64, URL",
        json_schema_extra=SECRET,
    )
    token_public_key: str = Field(
        "",
        alias="tokenPublicKey",
        description="public key that verifies tokens, PEM or DER: like tokenSecretKey",
    )
    token_public_alg: str = Field("RS256", alias="tokenPublicAlg", description="signature algorithm of tokenPublicKey")
    token_auth_claim: str = Field("sub", alias="tokenAuthClaim", description="claim of a token that contains the role")
    token_audience_claim: str = Field("aud", alias="tokenAudienceClaim", description="claim that contains the audience")
    token_audience: str = Field("", alias="tokenAudience", description="audience that a token must contain; empty: any")
    token_static_file: str = Field(
        "", alias="tokenStaticFile", description="file with lines `role token`, instead of signed tokens"
    )
    token_refresh_seconds: int = Field(
        int(limits.TOKEN_REFRESH_S),
        alias="tokenFilesRefreshDurationSeconds",
        ge=0,
        description="seconds between two reads of the file with the token key or list; 0: read it once",
    )

    @model_validator(mode="after")
    def _provider_is_known(self) -> "RolesConfig":
        if self.auth_provider not in (*NO_PROVIDERS, *ROLE_PROVIDERS, *TOKEN_PROVIDERS):
            raise ValueError(
                f"bookieAuthProviderFactoryClass {self.auth_provider}: unknown; use {ROLE_PROVIDERS[0]} "
                "(roles from certificates) or token"
            )
        return self
