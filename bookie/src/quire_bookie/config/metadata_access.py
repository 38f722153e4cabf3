"""How a process reaches the metadata store: TLS, a certificate of its own, user and password. Names of ours."""

from pydantic import Field, model_validator

from quire_bookie import limits
from quire_bookie.config.sources import SECRET, ProcessConfig


class MetadataAccessConfig(ProcessConfig):
    """TLS and a user for the connections to etcd."""

    metadata_tls_trust_path: str = Field(
        "",
        alias="metadataTlsTrustCertsFilePath",
        description="certificates that etcd's must lead to, PEM; being set turns TLS on, as https:// in the URL does",
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
        description="look for changed certificate files so many seconds apart, and connect anew with them; 0: never",
    )
    metadata_username: str = Field(
        "", alias="metadataUsername", description="user at etcd, or file:///path of a file with it; empty: none"
    )
    metadata_password: str = Field(
        "",
        alias="metadataPassword",
        description="its password, or file:///path of a file with it, which is read at each login",
        json_schema_extra=SECRET,
    )

    @model_validator(mode="after")
    def _metadata_access_is_whole(self) -> "MetadataAccessConfig":
        if bool(self.metadata_tls_certificate_path) != bool(self.metadata_tls_key_path):
            raise ValueError("metadataTlsCertificateFilePath and metadataTlsKeyFilePath: give both or neither")
        if bool(self.metadata_username) != bool(self.metadata_password):
            raise ValueError("metadataUsername and metadataPassword: give both or neither")
        return self
