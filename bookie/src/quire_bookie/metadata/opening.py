"""Opens the metadata store that a URL names."""

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
        from quire_bookie.metadata.local.store import LocalMetadataStore

        return await LocalMetadataStore.open(location.folder)
    # Each here and not above: SQLite and gRPC take long to import, and a process needs one of them.
    from quire_bookie.metadata.etcd.store import EtcdMetadataStore

    return await EtcdMetadataStore.open(location, settings)
