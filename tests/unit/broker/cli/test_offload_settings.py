"""The configuration of offloading reaches topics and broker, and invalid values are refused."""

from typing import Any

import pytest
from pydantic import ValidationError

from quire_broker.cli.offload_settings import offload_settings
from quire_broker.config.offload import OffloadConfig
from quire_broker.offload.settings import TierSettings

BUCKET = {"offload_driver": "aws-s3", "offload_bucket": "ledgers"}
CHANGES: dict[str, Any] = {
    "offload_driver": "google-cloud-storage",
    "offload_bucket": "others",
    "offload_region": "eu-north-1",
    "offload_endpoint": "http://s3:9000",
    "offload_threshold_bytes": 1,
    "offload_threshold_s": 2,
    "offload_deletion_lag_ms": 3,
    "offload_read_priority": "bookkeeper-first",
    "offload_at_once": 4,
    "offload_block_bytes": 6_000_000,
    "offload_read_bytes": 70_000,
    "offload_prefetch": 5,
    "offload_read_cache_mb": 6,
    "offload_read_timeout_s": 7,
    "offload_part_mb": 9,
    "offload_parts_at_once": 11,
    "offload_abandoned_s": 100,
}


def config(**values: Any) -> OffloadConfig:
    return OffloadConfig.model_validate(values)


@pytest.mark.parametrize("field", sorted(OffloadConfig.model_fields))
def test_every_field_changes_its_setting(field: str) -> None:
    base, changed = config(**BUCKET), config(**(BUCKET | {field: CHANGES[field]}))
    assert (offload_settings(base), base.part(TierSettings)) != (offload_settings(changed), changed.part(TierSettings))


def test_default_settings_offload_nothing() -> None:
    assert offload_settings(config()).target is None


def test_a_negative_lag_keeps_the_bookies_copies() -> None:
    assert offload_settings(config(offload_deletion_lag_ms=-1)).deletion_lag_s == -1
    assert offload_settings(config(offload_deletion_lag_ms=1500)).deletion_lag_s == 1.5


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"offload_driver": "filesystem", "offload_bucket": "x"}, "use one of aws-s3"),
        ({"offload_driver": "aws-s3"}, "needs managedLedgerOffloadBucket"),
        ({"offload_read_cache_mb": 1}, "must hold 4 times"),
    ],
)
def test_invalid_settings_are_refused(values: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        config(**values)
