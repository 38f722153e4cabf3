"""Maps the configuration of the metadata store to its settings. Pure; independent of the kind of process."""

from quire_bookie.config.metadata_access import MetadataAccessConfig
from quire_bookie.errors import ConfigError
from quire_bookie.metadata.url import EtcdLocation, parse_metadata_url
from quire_bookie.settings.declared import absolute
from quire_bookie.settings.metadata import MetadataSettings


def metadata_settings(session_timeout_ms: int, access: MetadataAccessConfig | None = None) -> MetadataSettings:
    """Map the lease time of our session, and our credentials."""
    lease_s = session_timeout_ms / 1000
    if access is None:
        return MetadataSettings(session_timeout_s=lease_s)
    return MetadataSettings(
        session_timeout_s=lease_s,
        username=access.metadata_username or None,
        password=access.metadata_password or None,
        ca_path=absolute(access.metadata_tls_trust_path) or None,
        cert_path=absolute(access.metadata_tls_certificate_path) or None,
        key_path=absolute(access.metadata_tls_key_path) or None,
        tls_refresh_s=float(access.metadata_tls_refresh_seconds),
        members_refresh_s=float(access.metadata_members_refresh_seconds),
    )


def shared_metadata_url(url: str, key: str) -> str:
    """Return the URL if several processes can share its store. ConfigError if it is empty or the embedded store."""
    if not url:
        raise ConfigError(f"--metadata (or {key}) is missing: name the cluster's etcd, e.g. etcd://localhost:2379")
    if not isinstance(parse_metadata_url(url), EtcdLocation):
        raise ConfigError(
            f"--metadata {url}: only one process can use the embedded store; name the cluster's etcd, "
            "or run `quire standalone`"
        )
    return url
