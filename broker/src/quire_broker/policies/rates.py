"""The rates in the policies of namespaces and topics, and which of them is in force. Pure.

A policy of rates is a map by cluster, as in Pulsar; only the entry of the own cluster counts. A topic's rate goes
before its namespace's, which goes before the broker's. A rate of 0 or less limits nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

PUBLISH: Final = "publishMaxMessageRate"
_PUBLISHED: Final = {"publishThrottlingRateInMsg": -1, "publishThrottlingRateInByte": -1}
BY_CLUSTER: Final[Mapping[str, Mapping[str, Any]]] = {PUBLISH: _PUBLISHED}
"""Fields whose values are maps by cluster, and the value of a rate without any field."""


@dataclass(frozen=True, slots=True)
class PublishRate:
    """What may be published in a second. 0: no limit."""

    messages: int = 0
    size_bytes: int = 0


def read_field(policies: Mapping[str, Any], field: str, cluster: str) -> Any:
    """Return the value of a field for the own cluster; None if it is not set."""
    found = policies.get(field)
    return (found or {}).get(cluster) if field in BY_CLUSTER else found


def stored_value(field: str, cluster: str, value: Any) -> Any:
    """Return what the field holds for this value of the own cluster. Fields that a rate lacks get their defaults."""
    if field not in BY_CLUSTER:
        return value
    return {cluster: {**BY_CLUSTER[field], **value} if isinstance(value, dict) else value}


def write_field(policies: dict[str, Any], field: str, cluster: str, value: Any) -> None:
    """Set a field for the own cluster, or remove its value with None. Values of other clusters stay."""
    if field not in BY_CLUSTER:
        policies.pop(field, None)
        if value is not None:
            policies[field] = value
        return
    others = {name: item for name, item in (policies.get(field) or {}).items() if name != cluster}
    policies[field] = others if value is None else others | stored_value(field, cluster, value)


def publish_rate(policies: Mapping[str, Any], cluster: str, default: PublishRate) -> PublishRate:
    """Return the rate in force. A rate of the policies replaces the default even if it limits nothing."""
    found = read_field(policies, PUBLISH, cluster)
    if found is None:
        return default
    messages, size_bytes = (found.get(name) or 0 for name in _PUBLISHED)
    return PublishRate(max(0, messages), max(0, size_bytes))
