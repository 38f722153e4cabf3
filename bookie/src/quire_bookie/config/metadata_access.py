"""Defines how a process connects to the metadata store: TLS, certificate, user and password. The key names are ours."""

from pydantic import Field, model_validator

from quire_bookie import limits
from quire_bookie.config.sources import SECRET, ProcessConfig


class MetadataAccessConfig(ProcessConfig):
    """Settings of TLS and the user for connections to etcd."""

    metadata_tls_trust_path: str = Field(
        "",
        alias="metadataTlsTrustCertsFilePath",
        description="trusted CA certificates of etcd, PEM; setting it turns on TLS, like https:// in the URL",
    )
    metadata_tls_certificate_path: str = Field(
        "", alias="metadataTlsCertificateFilePath", description="our certificate for etcd and its chain, PEM"
    )
    metadata_tls_key_path: str = Field(
        "", alias="metadataTlsKeyFilePath", description="the private key of that certificate, PEM"
    )
    metadata_tls_refresh_seconds: int = Field(
        int(limits.TLS_REFRESH_S),
        alias="metadataTlsCertFilesRefreshDurationSeconds",
        ge=0,
        description="time between checks for changed certificate files, which cause a reconnect, in s; 0: never",
    )
    metadata_members_refresh_seconds: int = Field(
        0,
        alias="metadataMembersRefreshSeconds",
        ge=0,
        description="time between reads of etcd's list of members, in s: the addresses that they advertise are used "
        "beside those of the URL; 0: never",
    )
    metadata_username: str = Field(
        "", alias="metadataUsername", description="etcd user, or file:///path of a file that contains it; empty: none"
    )
    metadata_password: str = Field(
        "",
        alias="metadataPassword",
        description="password of that user, or file:///path of a file that contains it, read at each login",
        json_schema_extra=SECRET,
    )

    @model_validator(mode="after")
    def _metadata_access_is_whole(self) -> "MetadataAccessConfig":
        if bool(self.metadata_tls_certificate_path) != bool(self.metadata_tls_key_path):
            raise ValueError("metadataTlsCertificateFilePath and metadataTlsKeyFilePath: give both or neither")
        if bool(self.metadata_username) != bool(self.metadata_password):
            raise ValueError("metadataUsername and metadataPassword: give both or neither")
        return self
