"""Opens the metadata store that a URL names."""

from quire_bookie.metadata.local.store import LocalMetadataStore
from quire_bookie.metadata.settings import LocalLocation, MetadataSettings, parse_metadata_url
from quire_bookie.metadata.store import MetadataStore


async def open_metadata_store(url: str, settings: MetadataSettings | None = None) -> MetadataStore:
    """A store that is ready for use; the caller closes it.

    ConfigError for a URL or settings that cannot be, StartupError for a folder that cannot be used,
    MetadataUnavailableError when no member of the etcd cluster answers within `connect_timeout_s`.
    """
    location = parse_metadata_url(url)
    settings = settings or MetadataSettings()
    if isinstance(location, LocalLocation):
        return await LocalMetadataStore.open(location.folder)
    # Here and not above: importing gRPC takes longer than a standalone Quire needs to start.
    from quire_bookie.metadata.etcd.store import EtcdMetadataStore

    return await EtcdMetadataStore.open(location, settings)
