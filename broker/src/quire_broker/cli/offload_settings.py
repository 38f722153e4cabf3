"""Maps the configuration of offloading to the settings of topics and of the broker. Pure."""

from quire_bookie.limits import MIB
from quire_broker.config.offload import OffloadConfig
from quire_broker.offload.segment_writer import WriteSettings
from quire_broker.offload.settings import OFF, OffloadSettings, ReadFirst, TierSettings
from quire_broker.offload.target import OffloadTarget
from quire_broker.offload.windows import WindowSettings


def offload_settings(config: OffloadConfig) -> OffloadSettings:
    """Return the settings of topics whose namespace has no policies. ConfigError."""
    target = None
    if config.offload_driver:
        target = OffloadTarget.from_properties(
            config.offload_driver,
            {
                "bucket": config.offload_bucket,
                "region": config.offload_region,
                "serviceEndpoint": config.offload_endpoint,
            },
        )
    lag_ms = config.offload_deletion_lag_ms
    return OffloadSettings(
        target=target,
        threshold_bytes=config.offload_threshold_bytes,
        threshold_s=float(config.offload_threshold_s),
        deletion_lag_s=OFF if lag_ms < 0 else lag_ms / 1000,
        read_first=ReadFirst(config.offload_read_priority),
        abandoned_after_s=float(config.offload_abandoned_s),
        write=WriteSettings(
            block_bytes_max=config.offload_block_bytes,
            part_bytes=config.offload_part_mb * MIB,
            parts_at_once=config.offload_parts_at_once,
        ),
    )


def tier_settings(config: OffloadConfig) -> TierSettings:
    """Return the settings of the broker."""
    return TierSettings(
        at_once=config.offload_at_once,
        read_timeout_s=float(config.offload_read_timeout_s),
        windows=WindowSettings(
            capacity_bytes=config.offload_read_cache_mb * MIB,
            window_bytes=config.offload_read_bytes,
            ahead=config.offload_prefetch,
        ),
    )
