"""Maps the configuration to the settings of the bookie's parts. Starts nothing; reads only the size of the memory."""

import socket
from dataclasses import replace
from os.path import abspath

from quire_bookie import limits
from quire_bookie.cli.connection_memory import memory_settings
from quire_bookie.cli.metadata_settings import metadata_settings
from quire_bookie.cli.own_address import ANY_ADDRESS
from quire_bookie.cli.security_settings import security_settings
from quire_bookie.config.bookie import BookieConfig, StorageConfig
from quire_bookie.env.machine import machine_memory_bytes
from quire_bookie.errors import ConfigError
from quire_bookie.model import BookieId
from quire_bookie.server.settings import BookieSettings
from quire_bookie.settings.collection import GarbageCollectionSettings
from quire_bookie.settings.compaction import CompactionSettings
from quire_bookie.settings.disks import DiskRules
from quire_bookie.settings.journal import JournalSettings
from quire_bookie.settings.rack import RackSettings
from quire_bookie.settings.scrubbing import ScrubbingSettings
from quire_bookie.settings.service import ServiceSettings
from quire_bookie.settings.slow import SlowSettings
from quire_bookie.settings.storage import StorageSettings
from quire_bookie.settings.traces import TraceSettings


def storage_settings(config: StorageConfig) -> BookieSettings:
    """Return the settings that do not depend on where the bookie runs; the caller adds folders and addresses."""
    disks = config.part(DiskRules)
    storage = config.part(StorageSettings, disk_full_retry_s=disks.interval_s)
    memory = memory_settings(config, machine_memory_bytes())
    service = config.part(
        ServiceSettings, memory=memory, slow=config.part(SlowSettings), traces=config.part(TraceSettings)
    )
    return BookieSettings(
        data_dir="",
        accept_lost_volumes=config.accept_lost_volumes,
        index_cache_bytes=config.index_cache_bytes,
        rebuild_index_on_damage=config.rebuild_index_on_damage,
        disks=disks,
        service=replace(service, batch_read_bytes_max=min(service.batch_read_bytes_max, service.frame_bytes_max)),
        journal=config.part(JournalSettings, reserved_bytes=limits.DISK_RESERVED_BYTES + storage.write_cache_bytes),
        storage=storage,
        metadata=metadata_settings(config.metadata_session_timeout_ms),
        scrubbing=config.part(ScrubbingSettings),
        garbage_collection=config.part(GarbageCollectionSettings),
        compaction=config.part(CompactionSettings),
    )


def bookie_settings(config: BookieConfig) -> BookieSettings:
    """Map the settings of `quire bookie start`."""
    return replace(
        storage_settings(config),
        fit_disk=True,
        data_dir=abspath(config.data),
        listen=config.listen,
        port=config.port,
        advertise=config.advertise or default_host(config.listen),
        machine=config.machine,
        bookie_id=new_bookie_id(config),
        bookie_id_is_set=bool(config.bookie_id),
        http_port=config.http_port,
        http_tls=config.http_tls,
        rack=config.part(RackSettings),
        security=security_settings(config),
        metadata=metadata_settings(config.metadata_session_timeout_ms, config),
        journal_dirs=tuple(map(abspath, config.journal_directories)),
        force_read_only=config.force_read_only_bookie,
        ledger_dirs=tuple(map(abspath, config.ledger_directories)),
        index_dir=abspath(config.index_directories[0]) if config.index_directories else None,
        allow_storage_expansion=config.allow_storage_expansion,
    )


def new_bookie_id(config: BookieConfig) -> BookieId | None:
    """Return the id of a bookie with empty storage. None: the bookie draws an id that belongs to the storage.

    An address is not used as id if the port changes with each start, nor with IPv6, whose colons confuse stock clients.
    """
    if config.bookie_id:
        return BookieId(config.bookie_id)
    host = config.advertise or default_host(config.listen)
    if not config.use_host_name_as_bookie_id:
        try:
            host = socket.gethostbyname(host)
        except OSError as error:
            raise ConfigError(
                f"useHostNameAsBookieID=false, but {host} has no IPv4 address ({error}); "
                "set advertisedAddress or bookieId"
            ) from error
    if config.bookie_id_scheme == "storage" or config.port == 0 or ":" in host:
        return None
    return BookieId(f"{host}:{config.port}")


def default_host(listen: str) -> str:
    """Return the host that clients connect to by default: the host name, or the one address that is listened on."""
    return socket.gethostname() if listen in ANY_ADDRESS else listen


def local_host(listen: str) -> str:
    """Return the host under which this machine reaches its own server."""
    return "localhost" if listen in (*ANY_ADDRESS, "127.0.0.1") else listen
