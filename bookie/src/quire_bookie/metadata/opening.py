"""Opens the metadata store that a URL names."""

from quire_bookie.errors import ConfigError
from quire_bookie.metadata.store import MetadataStore
from quire_bookie.metadata.url import LocalLocation, parse_metadata_url
from quire_bookie.settings.metadata import MetadataSettings


async def open_metadata_store(url: str, settings: MetadataSettings | None = None) -> MetadataStore:
    """Open a store; the caller closes it.

    ConfigError for an invalid URL or settings, or if the library for etcd is not installed, StartupError for a folder
    that cannot be used, MetadataUnavailableError if no member of the etcd cluster answers within
    `connect_timeout_s`.
    """
    location = parse_metadata_url(url)
    settings = settings or MetadataSettings()
    if isinstance(location, LocalLocation):
        from quire_bookie.metadata.local.store import LocalMetadataStore

        return await LocalMetadataStore.open(location.folder)
    # Imported here: SQLite and gRPC take long to import, and a process needs only one of them.
    try:
        from quire_bookie.metadata.etcd.store import EtcdMetadataStore
    except ModuleNotFoundError as missing:
        if missing.name != "grpc":
            raise
        needed = "metadata in etcd needs the library grpcio, which is not installed; run `pip install 'quire[etcd]'`"
        raise ConfigError(f"{url}: {needed}") from missing

    return await EtcdMetadataStore.open(location, settings)
