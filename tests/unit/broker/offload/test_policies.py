"""A namespace's offload policies over the broker's settings."""

from typing import Any

import pytest

from quire_bookie.errors import ConfigError
from quire_broker.offload.policies import check_policies, with_policies
from quire_broker.offload.settings import OffloadSettings, ReadFirst

BASE = OffloadSettings(threshold_bytes=10)
OWN = {
    "managedLedgerOffloadDriver": "aws-s3",
    "s3ManagedLedgerOffloadBucket": "old",
    "managedLedgerOffloadRegion": "eu-north-1",
    "managedLedgerOffloadThresholdInBytes": 5,
    "managedLedgerOffloadDeletionLagInMillis": 0,
    "managedLedgerOffloadedReadPriority": "BOOKKEEPER_FIRST",
}


def test_a_namespace_without_policies_changes_nothing() -> None:
    assert with_policies(BASE, {"offload_threshold": -1, "offload_threshold_in_seconds": -1}) is BASE


def test_offload_policies_take_precedence_over_thresholds() -> None:
    found = with_policies(BASE, {"offload_policies": OWN, "offload_threshold": 99, "offload_threshold_in_seconds": 60})
    assert found.target is not None and found.target.url == "s3://old" and found.target.region == "eu-north-1"
    assert (found.threshold_bytes, found.threshold_s, found.deletion_lag_s) == (5, 60.0, 0.0)
    assert found.read_first is ReadFirst.BOOKIES


def test_thresholds_alone_apply_to_the_brokers_target() -> None:
    found = with_policies(BASE, {"offload_threshold": 0, "offload_deletion_lag_ms": -1})
    assert (found.target, found.threshold_bytes, found.deletion_lag_s) == (None, 0, -1)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ([], "a JSON object"),
        ({}, "need managedLedgerOffloadDriver"),
        ({"managedLedgerOffloadDriver": "aws-s3"}, "without a bucket"),
        (OWN | {"s3ManagedLedgerOffloadCredentialSecret": "x"}, "policies hold no credentials"),
        (OWN | {"managedLedgerOffloadedReadPriority": "both"}, "use one of"),
        (OWN | {"managedLedgerOffloadThresholdInBytes": "5"}, "not an integer"),
    ],
)
def test_invalid_policies_are_refused(value: Any, says: str) -> None:
    check_policies(OWN)
    with pytest.raises(ConfigError, match=says):
        check_policies(value)
