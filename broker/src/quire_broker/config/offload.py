"""The settings of offloading to a bucket, under Pulsar's key names where they exist."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from quire_bookie.config.sources import ProcessConfig
from quire_bookie.limits import KIB, MIB
from quire_broker.offload.format import BLOCK_BYTES_LIMIT, BLOCK_BYTES_MAX_DEFAULT, BLOCK_BYTES_MIN
from quire_broker.offload.target import DRIVERS

Threshold = Annotated[int, Field(ge=-1)]


class OffloadConfig(ProcessConfig):
    """Settings of closed ledgers in a bucket. Credentials are not among them: they come from the usual chain."""

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
    offload_threshold_bytes: Threshold = Field(
        -1,
        alias="managedLedgerOffloadAutoTriggerSizeThresholdBytes",
        description="newest bytes of each topic that stay only on bookies; 0: none, -1: no offload by size",
    )
    offload_threshold_s: Threshold = Field(
        -1,
        alias="managedLedgerOffloadThresholdInSeconds",
        description="ledgers closed for this time are offloaded; -1: no offload by age",
    )
    offload_deletion_lag_ms: Threshold = Field(
        14_400_000,
        alias="managedLedgerOffloadDeletionLagMs",
        description="time after the offload until the bookies' copy is deleted, in ms; -1: never",
    )
    offload_read_priority: Literal["tiered-storage-first", "bookkeeper-first"] = Field(
        "tiered-storage-first",
        alias="managedLedgerDataReadPriority",
        description="which copy is read first",
    )
    offload_at_once: int = Field(
        2, alias="managedLedgerOffloadMaxThreads", ge=1, le=64, description="concurrent offloads of this broker"
    )
    offload_block_bytes: int = Field(
        BLOCK_BYTES_MAX_DEFAULT,
        alias="managedLedgerOffloadMaxBlockSizeInBytes",
        ge=BLOCK_BYTES_MIN,
        le=BLOCK_BYTES_LIMIT,
        description="largest block of a data object, in bytes; an entry is found from the start of its block",
    )
    offload_read_bytes: int = Field(
        MIB,
        alias="managedLedgerOffloadReadBufferSizeInBytes",
        ge=64 * KIB,
        le=64 * MIB,
        description="bytes of one range request",
    )
    offload_prefetch: int = Field(
        4, alias="managedLedgerOffloadPrefetchRounds", ge=0, le=64, description="range requests ahead of a reader"
    )
    offload_read_cache_mb: int = Field(
        64, alias="offloadReadCacheSizeMB", ge=1, description="cached and prefetched data, all topics, in MiB"
    )
    offload_read_timeout_s: int = Field(
        30, alias="offloadReadTimeoutSeconds", ge=1, description="time after which a bucket counts as failed, in s"
    )
    offload_part_mb: int = Field(
        8, alias="offloadUploadPartSizeMB", ge=5, le=512, description="size of a part of an upload, in MiB"
    )
    offload_parts_at_once: int = Field(
        4, alias="offloadUploadPartsAtOnce", ge=1, le=64, description="concurrent parts of one upload"
    )
    offload_abandoned_s: int = Field(
        21_600,
        alias="offloadAttemptAbandonedAfterSeconds",
        ge=60,
        description="after this time an unfinished attempt may be replaced, and no longer blocks its ledger, in s",
    )

    @model_validator(mode="after")
    def _offload_has_a_place(self) -> "OffloadConfig":
        if self.offload_driver and self.offload_driver.lower() not in {name.lower() for name in DRIVERS}:
            raise ValueError(f"managedLedgerOffloadDriver {self.offload_driver!r}: use one of {', '.join(DRIVERS)}")
        if self.offload_driver and not self.offload_bucket:
            raise ValueError(f"managedLedgerOffloadDriver {self.offload_driver} needs managedLedgerOffloadBucket")
        if self.offload_read_cache_mb * MIB < 4 * self.offload_read_bytes:
            raise ValueError(
                f"offloadReadCacheSizeMB {self.offload_read_cache_mb} must hold 4 times "
                f"managedLedgerOffloadReadBufferSizeInBytes {self.offload_read_bytes}"
            )
        return self
