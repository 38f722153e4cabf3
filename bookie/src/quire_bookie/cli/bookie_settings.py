"""Maps the configuration to the settings of the bookie's parts. Starts nothing; reads only the size of the memory."""

import socket
from dataclasses import replace
from os.path import abspath

from quire_bookie import limits
from quire_bookie.cli.connection_memory import memory_settings
from quire_bookie.cli.metadata_settings import metadata_settings
from quire_bookie.cli.own_address import ANY_ADDRESS
from quire_bookie.cli.security_settings import security_settings
from quire_bookie.cli.tls_files import path_of
from quire_bookie.config.bookie import BookieConfig, StorageConfig
from quire_bookie.env.machine_memory import machine_memory_bytes
from quire_bookie.errors import ConfigError
from quire_bookie.journal.settings import JournalSettings
from quire_bookie.model import BookieId
from quire_bookie.server.settings import BookieSettings, ServiceSettings
from quire_bookie.server.upkeep.compaction_schedule import CompactionSettings
from quire_bookie.server.upkeep.garbage_collection import GarbageCollectionSettings
from quire_bookie.server.upkeep.gc_fuse import FuseSettings
from quire_bookie.server.upkeep.over_replicated import OverReplicatedSettings
from quire_bookie.server.upkeep.own_rack import RackSettings
from quire_bookie.server.upkeep.quarantine_rules import QuarantineSettings
from quire_bookie.server.upkeep.scrubbing import ScrubbingSettings
from quire_bookie.storage.settings import StorageSettings

MIB = limits.MIB


def storage_settings(config: StorageConfig) -> BookieSettings:
    """Map all settings that do not depend on where the bookie runs; the caller adds folders and addresses."""
    # BookKeeper's setting includes the length field. A larger entry could not be read back by a BookKeeper client.
    frame_bytes = config.max_frame_size_bytes - limits.FRAME_LENGTH_BYTES
    return BookieSettings(
        data_dir="",
        accept_lost_volumes=config.accept_lost_volumes,
        index_cache_bytes=config.index_cache_bytes,
        rebuild_index_on_damage=config.rebuild_index_on_damage,
        disk_usage_threshold=config.disk_usage_threshold,
        disk_usage_warn_threshold=_at_most(
            config.disk_usage_warn_threshold, limits.DISK_USAGE_WARN_THRESHOLD, config.disk_usage_threshold
        ),
        disk_usage_low_watermark=_at_most(
            config.disk_usage_low_watermark, limits.DISK_USAGE_LOW_WATERMARK, config.disk_usage_threshold
        ),
        high_priority_bytes_min=config.min_usable_size_for_high_priority_writes,
        read_only_enabled=config.read_only_mode_enabled,
        read_only_on_any_disk_full=config.read_only_on_any_disk_full,
        disk_check_interval_s=config.disk_check_interval_ms / 1000,
        service=ServiceSettings(
            backpressure_pause_s=config.add_wait_ms / 1000,
            frame_bytes_max=frame_bytes,
            batch_read_bytes_max=min(config.max_batch_read_size_bytes, frame_bytes),
            reads_at_once_max=config.reads_at_once_max,
            long_polls_max=config.long_polls_max,
            long_polls_per_connection_max=config.long_polls_per_connection_max,
            first_request_s=config.first_request_s,
            memory=memory_settings(config, machine_memory_bytes()),
        ),
        journal=JournalSettings(
            file_bytes=config.journal_max_size_mb * MIB,
            group_bytes_max=min(
                config.journal_group_bytes_max or limits.JOURNAL_GROUP_BYTES_MAX, limits.JOURNAL_GROUP_BYTES_MAX
            ),
            group_entries_max=config.journal_group_entries_max or limits.JOURNAL_GROUP_ENTRIES_MAX,
            sync_data=config.journal_sync_data,
            write_data=config.journal_write_data,
            reserved_bytes=limits.DISK_RESERVED_BYTES + config.write_cache_mb * MIB,
        ),
        storage=StorageSettings(
            write_cache_bytes=config.write_cache_mb * MIB,
            read_cache_bytes=config.read_cache_mb * MIB,
            entry_log_bytes_max=config.entry_log_size_bytes,
            flush_interval_s=config.flush_interval_ms / 1000,
            deleted_ledger_memory_s=config.deleted_ledger_memory_s,
            disk_full_retry_s=config.disk_check_interval_ms / 1000,
        ),
        metadata=metadata_settings(config.metadata_session_timeout_ms),
        scrubbing=ScrubbingSettings(config.scrub_interval_s, config.scrub_bytes_per_second),
        garbage_collection=GarbageCollectionSettings(
            interval_s=config.gc_wait_time_ms / 1000,
            fuse=FuseSettings(config.gc_fuse_share, config.gc_fuse_ledgers_min),
            quarantine=QuarantineSettings(config.gc_quarantine_s, config.gc_quarantine_min_s),
            over_replicated=OverReplicatedSettings(
                config.gc_over_replicated_wait_ms / 1000, config.gc_over_replicated_at_once
            ),
        ),
        compaction=_compaction_settings(config),
    )


def _compaction_settings(config: StorageConfig) -> CompactionSettings:
    """Map the settings of compaction; zero and below mean *off*, as in BookKeeper."""
    return CompactionSettings(
        minor_threshold=max(0.0, config.minor_compaction_threshold),
        minor_interval_s=max(0.0, config.minor_compaction_interval_s),
        minor_time_max_s=max(0.0, config.minor_compaction_time_max_ms / 1000),
        major_threshold=max(0.0, config.major_compaction_threshold),
        major_interval_s=max(0.0, config.major_compaction_interval_s),
        major_time_max_s=max(0.0, config.major_compaction_time_max_ms / 1000),
        throttle_by_bytes=config.compaction_throttle_by_bytes,
        rate_bytes_s=config.compaction_rate_bytes,
        rate_entries_s=config.compaction_rate_entries,
        latency_max_s=config.compaction_latency_max_ms / 1000,
        force_when_no_space=config.force_gc_when_no_space,
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
        bookie_id=new_bookie_id(config),
        bookie_id_is_set=bool(config.bookie_id),
        http_port=config.http_port,
        http_tls=config.http_tls,
        rack=RackSettings(
            config.rack, path_of(config.rack_annotations_file), config.rack_annotation, config.rack_wait_s
        ),
        security=security_settings(config),
        metadata=metadata_settings(config.metadata_session_timeout_ms, config),
        journal_dirs=tuple(map(abspath, config.journal_directories)),
        force_read_only=config.force_read_only_bookie,
        ledger_dirs=tuple(map(abspath, config.ledger_directories)),
        index_dir=abspath(config.index_directories[0]) if config.index_directories else None,
        allow_storage_expansion=config.allow_storage_expansion,
    )


def _at_most(configured: float | None, default: float, highest: float) -> float:
    return min(default, highest) if configured is None else configured


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
