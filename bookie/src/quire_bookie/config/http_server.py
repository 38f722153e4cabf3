"""TLS of the admin HTTP port, under BookKeeper's key names where it has one; the stores are PEM files."""

from pydantic import Field, model_validator

from quire_bookie.config.sources import ProcessConfig


class HttpServerConfig(ProcessConfig):
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

    http_admin_remote: bool = Field(
        False,
        alias="httpServerAdminRemote",
        description="without authentication: answer more than probes and /metrics to other machines, too",
    )

    @model_validator(mode="after")
    def _http_tls_is_whole(self) -> "HttpServerConfig":
        if self.http_tls and not self.http_certificate_path:
            raise ValueError("httpServerTlsEnable needs httpServerKeystorePath: the certificate, PEM")
        return self
