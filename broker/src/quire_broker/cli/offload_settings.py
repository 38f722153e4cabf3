"""Maps the configuration of offloading to the settings of topics. Pure."""

from quire_broker.config.offload import OffloadConfig
from quire_broker.offload.settings import OffloadSettings
from quire_broker.offload.target import OffloadTarget


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
    return config.part(OffloadSettings, target=target)
