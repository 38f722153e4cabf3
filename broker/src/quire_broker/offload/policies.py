"""Applies the offload policies of a namespace or a topic, in Pulsar's JSON, to the broker's settings. Pure.

    offload_policies              {"managedLedgerOffloadDriver": ..., "managedLedgerOffloadBucket": ..., ...}
    offload_threshold             bytes; -1: not set
    offload_threshold_in_seconds  seconds; -1: not set
    offload_deletion_lag_ms       ms; null: not set, -1: never deletes

The thresholds and lag inside the first one take precedence. Keys of a driver (`s3ManagedLedgerOffloadBucket`) apply
if the general key is missing. Unsupported keys (threads, credentials, directories) are refused when set.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from quire_bookie.errors import ConfigError
from quire_broker.offload.settings import OFF, OffloadSettings, ReadFirst
from quire_broker.offload.target import OffloadTarget
from quire_broker.policies.fields import OFFLOAD

THRESHOLD: Final = "offload_threshold"
THRESHOLD_S: Final = "offload_threshold_in_seconds"
LAG_MS: Final = "offload_deletion_lag_ms"
_PREFIXES = {"aws-s3": "s3", "S3": "s3", "google-cloud-storage": "gcs"}
_CREDENTIALS = (
    "s3ManagedLedgerOffloadCredentialId",
    "s3ManagedLedgerOffloadCredentialSecret",
    "s3ManagedLedgerOffloadRole",
    "gcsManagedLedgerOffloadServiceAccountKeyFile",
)
_PRIORITIES = {each.value: each for each in ReadFirst} | {
    "TIERED_STORAGE_FIRST": ReadFirst.BUCKET,
    "BOOKKEEPER_FIRST": ReadFirst.BOOKIES,
}


def with_policies(base: OffloadSettings, policies: Mapping[str, Any]) -> OffloadSettings:
    """Return the broker's settings with the namespace's policies applied. ConfigError names an invalid value."""
    changes: dict[str, Any] = {}
    own = policies.get(OFFLOAD) or {}
    target = _target(own)
    if target is not None:
        changes["target"] = target
    size = _number(own, "managedLedgerOffloadThresholdInBytes", policies.get(THRESHOLD))
    if size is not None and size >= 0:
        changes["threshold_bytes"] = size
    seconds = _number(own, "managedLedgerOffloadThresholdInSeconds", policies.get(THRESHOLD_S))
    if seconds is not None and seconds >= 0:
        changes["threshold_s"] = float(seconds)
    lag_ms = _number(own, "managedLedgerOffloadDeletionLagInMillis", policies.get(LAG_MS))
    if lag_ms is not None:
        changes["deletion_lag_s"] = OFF if lag_ms < 0 else lag_ms / 1000
    priority = own.get("managedLedgerOffloadedReadPriority")
    if priority is not None:
        if priority not in _PRIORITIES:
            known = ", ".join(_PRIORITIES)
            raise ConfigError(f"managedLedgerOffloadedReadPriority {priority!r}: use one of {known}")
        changes["read_first"] = _PRIORITIES[priority]
    block_bytes = _number(own, _own_key(own, "MaxBlockSizeInBytes"), own.get("managedLedgerOffloadMaxBlockSizeInBytes"))
    if block_bytes is not None:
        changes["write"] = replace(base.write, block_bytes_max=block_bytes)
    return replace(base, **changes) if changes else base


def shown(settings: OffloadSettings) -> dict[str, Any]:
    """Return the broker's settings as policies, without the target: its URL is for administrators of the broker."""
    lag_s = settings.deletion_lag_s
    return {
        "managedLedgerOffloadThresholdInBytes": settings.threshold_bytes,
        "managedLedgerOffloadThresholdInSeconds": int(settings.threshold_s),
        "managedLedgerOffloadDeletionLagInMillis": OFF if lag_s < 0 else int(lag_s * 1000),
        "managedLedgerOffloadedReadPriority": settings.read_first.value,
        "managedLedgerOffloadMaxBlockSizeInBytes": settings.write.block_bytes_max,
    }


def check_policies(value: object) -> None:
    """Check offload policies of a namespace or a topic. ConfigError."""
    if not isinstance(value, dict):
        raise ConfigError("offload policies must be a JSON object")
    for key in _CREDENTIALS:
        if value.get(key):
            raise ConfigError(f"{key}: policies hold no credentials; provide them in the broker's environment")
    if not value.get("managedLedgerOffloadDriver"):
        raise ConfigError("offload policies need managedLedgerOffloadDriver")
    with_policies(OffloadSettings(), {OFFLOAD: value})


def _target(own: Mapping[str, Any]) -> OffloadTarget | None:
    driver = own.get("managedLedgerOffloadDriver")
    if not driver:
        return None
    names = {"bucket": "Bucket", "region": "Region", "serviceEndpoint": "ServiceEndpoint"}
    properties = {
        name: str(own.get(f"managedLedgerOffload{suffix}") or own.get(_own_key(own, suffix)) or "")
        for name, suffix in names.items()
    }
    return OffloadTarget.from_properties(str(driver), properties)


def _own_key(own: Mapping[str, Any], suffix: str) -> str:
    """Return the driver's own name of a key."""
    driver = str(own.get("managedLedgerOffloadDriver"))
    prefix = next((known for name, known in _PREFIXES.items() if name.lower() == driver.lower()), None)
    return f"{prefix}ManagedLedgerOffload{suffix}" if prefix else f"managedLedgerOffload{suffix}"


def _number(own: Mapping[str, Any], key: str, otherwise: object) -> int | None:
    value = own.get(key)
    if value is None:
        key, value = "the namespace's offload threshold or lag", otherwise
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{key}={value!r}: not an integer")
    return value
