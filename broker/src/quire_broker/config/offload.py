"""The settings of offloading to a bucket, under Pulsar's key names where they exist."""

from typing import ClassVar

from pydantic import Field, model_validator

from quire_bookie.config.sources import ProcessConfig
from quire_broker.offload.settings import OffloadSettings, TierSettings, WindowSettings, WriteSettings
from quire_broker.offload.target import DRIVERS


class OffloadConfig(ProcessConfig):
    """Settings of closed ledgers in a bucket. Credentials are not among them: they come from the usual chain."""

    SETTINGS: ClassVar[tuple[type, ...]] = (OffloadSettings, WriteSettings, TierSettings, WindowSettings)

    offload_driver: str = Field(
        "",
        alias="managedLedgerOffloadDriver",
        description="aws-s3, S3, aliyun-oss, google-cloud-storage, azureblob or quire-folder; empty: no default target",
    )
    offload_bucket: str = Field(
        "",
        alias="managedLedgerOffloadBucket",
        description="bucket, or container; for quire-folder the whole path",
    )
    offload_region: str = Field("", alias="managedLedgerOffloadRegion", description="region; empty: the process's")
    offload_endpoint: str = Field(
        "", alias="managedLedgerOffloadServiceEndpoint", description="URL of an S3 service that is not Amazon's"
    )

    @model_validator(mode="after")
    def _offload_has_a_place(self) -> "OffloadConfig":
        if self.offload_driver and self.offload_driver.lower() not in {name.lower() for name in DRIVERS}:
            raise ValueError(f"managedLedgerOffloadDriver {self.offload_driver!r}: use one of {', '.join(DRIVERS)}")
        if self.offload_driver and not self.offload_bucket:
            raise ValueError(f"managedLedgerOffloadDriver {self.offload_driver} needs managedLedgerOffloadBucket")
        return self
