"""Defines the admin HTTP port: TLS with PEM files, under BookKeeper's key names if it has one, and allowed clients."""

from typing import ClassVar

from pydantic import Field, model_validator

from quire_bookie.config.roles import TextList
from quire_bookie.config.sources import ProcessConfig
from quire_bookie.settings.http import HttpLimits


class HttpAccessConfig(ProcessConfig):
    """Settings of which clients an HTTP port of any process accepts."""

    SETTINGS: ClassVar[tuple[type, ...]] = (HttpLimits,)

    http_admin_remote: bool = Field(
        False,
        alias="httpServerAdminRemote",
        description="without authentication: serve all paths of this port to other machines too",
    )
    http_allowed_hosts: TextList = Field(
        [],
        alias="httpServerAllowedHosts",
        description="without tokens: further host names allowed in requests: a name, *.example.com, or *",
    )


class HttpServerConfig(HttpAccessConfig):
    """Settings of the TLS of the HTTP port: whether, with which certificate, and for which clients."""

    http_tls: bool = Field(False, alias="httpServerTlsEnable", description="serve the HTTP port only with TLS")
    http_certificate_path: str = Field(
        "", alias="httpServerKeystorePath", description="certificate of the HTTP port and its chain, PEM"
    )
    http_key_path: str = Field(
        "", alias="httpServerKeyPath", description="its private key, PEM; empty: it is in httpServerKeystorePath"
    )
    http_trust_path: str = Field(
        "",
        alias="httpServerTrustStorePath",
        description="CA certificates that clients need, PEM; empty: accept every client. Probes have no certificate",
    )

    @model_validator(mode="after")
    def _http_tls_is_whole(self) -> "HttpServerConfig":
        if self.http_tls and not self.http_certificate_path:
            raise ValueError("httpServerTlsEnable needs httpServerKeystorePath: the certificate, PEM")
        return self
