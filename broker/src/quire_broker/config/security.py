"""The settings of a broker's security, under Pulsar's key names: its TLS port, authorization and proxies."""

from pydantic import Field, model_validator

from quire_bookie.config.roles import TextList
from quire_broker.config.access import BASIC_PROVIDERS, TOKEN_PROVIDERS, ClientAccessConfig, OptionalPort
from quire_broker.limits import PERMISSIONS_CHECK_S

AUTHORIZATION_PROVIDER = "org.apache.pulsar.broker.authorization.PulsarAuthorizationProvider"


class BrokerSecurityConfig(ClientAccessConfig):
    """Settings of TLS, authentication and authorization."""

    broker_port_tls: OptionalPort = Field(
        None,
        alias="brokerServicePortTls",
        description="port of the Pulsar protocol over TLS; empty: none",
    )
    authenticate_original_auth_data: bool = Field(
        False,
        alias="authenticateOriginalAuthData",
        description="check the token or password of a proxy's client too; the proxy must pass it on",
    )
    authorization_enabled: bool = Field(
        False, alias="authorizationEnabled", description="roles may do only what they were granted"
    )
    authorization_provider: str = Field(
        AUTHORIZATION_PROVIDER, alias="authorizationProvider", description="for compatibility; only this value"
    )
    authorization_wildcards: bool = Field(
        False, alias="authorizationAllowWildcardsMatching", description="only false: roles are matched exactly"
    )
    permissions_check_seconds: int = Field(
        int(PERMISSIONS_CHECK_S),
        alias="permissionsCheckSeconds",
        ge=1,
        description="seconds between checks whether open producers and consumers are still permitted",
    )
    audit_log: bool = Field(
        True,
        alias="auditLogEnabled",
        description="write a line to the logger quire.audit for each admin request that may change something",
    )
    super_user_roles: TextList = Field([], alias="superUserRoles", description="roles that may do everything")
    proxy_roles: TextList = Field(
        [],
        alias="proxyRoles",
        description="roles of proxies: they name the client for which they act, and both must be permitted",
    )

    @property
    def native_port_tls(self) -> int | None:
        """The port of the Pulsar protocol with TLS."""
        return self.broker_port_tls

    @model_validator(mode="after")
    def _authorization_fits(self) -> "BrokerSecurityConfig":
        if self.authorization_enabled and not self.authentication_enabled:
            raise ValueError("authorizationEnabled needs authenticationEnabled: without it no client has a role")
        if self.authorization_provider != AUTHORIZATION_PROVIDER:
            raise ValueError(f"authorizationProvider {self.authorization_provider} is not known; use the default")
        if self.authorization_wildcards:
            raise ValueError("authorizationAllowWildcardsMatching is not supported: grant to each role")
        if self.anonymous_user_role and self.anonymous_user_role in self.proxy_roles:
            raise ValueError(
                f"proxyRoles {self.anonymous_user_role}: it is also anonymousUserRole, so that every client could act "
                "for any other; give proxies a role of their own"
            )
        passed_on = self.takes_tokens or self.takes_passwords or self.takes_issued_tokens
        if self.authenticate_original_auth_data and self.authentication_enabled and not passed_on:
            raise ValueError(
                f"authenticateOriginalAuthData needs {TOKEN_PROVIDERS[0]} or {BASIC_PROVIDERS[0]}: a proxy cannot pass "
                "on a certificate"
            )
        return self
