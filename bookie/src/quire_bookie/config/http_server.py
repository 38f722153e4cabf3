"""The admin HTTP port: TLS under BookKeeper's key names where it has one, with PEM files, and who is answered."""

from pydantic import Field, model_validator

from quire_bookie import limits
from quire_bookie.config.roles import TextList
from quire_bookie.config.sources import ProcessConfig


class HttpAccessConfig(ProcessConfig):
    """Who is answered by an HTTP port, whatever process serves it."""

    http_admin_remote: bool = Field(
        False,
        alias="httpServerAdminRemote",
        description="without authentication: answer other machines all that this port serves",
    )
    http_allowed_hosts: TextList = Field(
        [],
        alias="httpServerAllowedHosts",
        description="without tokens: names by which the port is asked, besides its own: a name, *.example.com, or *",
    )
    http_header_timeout_ms: int = Field(
        int(limits.HTTP_HEADER_TIMEOUT_S * 1000),
        alias="httpServerHeaderTimeoutMs",
        ge=0,
        description="an HTTP connection whose request has no complete header by then is closed, in ms; 0: never",
    )
    http_connections_per_address: int = Field(
        limits.HTTP_CONNECTIONS_PER_ADDRESS_MAX,
        alias="httpServerMaxConnectionsPerAddress",
        ge=0,
        description="HTTP connections at once of one client address; 0: no limit",
    )


class HttpServerConfig(HttpAccessConfig):
    """Whether the HTTP port speaks TLS, with which certificate, and to whom."""

    http_tls: bool = Field(False, alias="httpServerTlsEnable", description="the HTTP port speaks TLS, and only TLS")
    http_certificate_path: str = Field(
        "", alias="httpServerKeystorePath", description="certificate of the HTTP port and its chain, PEM"
    )
    http_key_path: str = Field(
        "", alias="httpServerKeyPath", description="its private key, PEM; empty: it is in httpServerKeystorePath too"
    )
    http_trust_path: str = Field(
        "",
        alias="httpServerTrustStorePath",
        description="only clients whose certificate leads to one of these, PEM; empty: every client. Probes have none",
    )

    @model_validator(mode="after")
    def _http_tls_is_whole(self) -> "HttpServerConfig":
        if self.http_tls and not self.http_certificate_path:
            raise ValueError("httpServerTlsEnable needs httpServerKeystorePath: the certificate, PEM")
        return self
