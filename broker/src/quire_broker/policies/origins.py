"""Which level sets each policy that is in force: the topic, its namespace, or the settings of the broker. Pure."""

from collections.abc import Mapping
from typing import Any, Final

from quire_broker.policies.backlog_quota import QUOTA_KEY, QuotaKind
from quire_broker.policies.defaults import OLD_STRATEGY, STRATEGY, UNSET
from quire_broker.policies.fields import OFFLOAD
from quire_broker.policies.rates import BY_CLUSTER, limits_nothing, read_field

TOPIC: Final = "topic"
NAMESPACE: Final = "namespace"
BROKER: Final = "broker"


def origins(
    fields: Mapping[str, str],
    levels: Mapping[str, Mapping[str, Any]],
    defaults: Mapping[str, Any],
    cluster: str,
) -> dict[str, dict[str, Any]]:
    """Return `{policy: {"value", "from", "set": {level: value}}}`.

    `fields` maps the path of a policy to its field. `levels` holds the stored policies by level, the one that counts
    most first; `defaults` those of the broker, rates as values of one cluster. A value of None: the broker has no limit
    and no setting.
    """
    found = {}
    for path, field in fields.items():
        given = {level: value for level, stored in levels.items() if (value := _given(level, stored, field, cluster))}
        found[path] = _origin({level: one[0] for level, one in given.items()}, defaults.get(field), field)
    return found


def quota_origins(levels: Mapping[str, Mapping[str, Any]], defaults: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the same for the backlog quota of each kind, by the path with its query."""
    found = {}
    for kind in QuotaKind:
        quotas = {level: (stored.get(QUOTA_KEY) or {}).get(kind.value) for level, stored in levels.items()}
        given = {level: value for level, value in quotas.items() if value is not None}
        found[f"backlogQuota?backlogQuotaType={kind.value}"] = _origin(given, defaults[kind.value], QUOTA_KEY)
    return found


def _given(level: str, stored: Mapping[str, Any], field: str, cluster: str) -> tuple[Any] | None:
    """Return the value that a level sets, in a tuple: it may be false. None: the level sets none."""
    value = read_field(stored, field, cluster)
    if field in BY_CLUSTER:
        value = None if limits_nothing(value) else value
    elif level == NAMESPACE and value in (UNSET.get(field), [], {}):  # new namespaces have these
        value = None
    if value is None and field == STRATEGY and stored.get(OLD_STRATEGY):
        value = stored[OLD_STRATEGY]
    return None if value is None else (value,)


def _origin(given: Mapping[str, Any], default: Any, field: str) -> dict[str, Any]:
    """Describe one policy. `given`: the value of each level that sets it, the one that counts most first."""
    level = next(iter(given), BROKER)
    value = given.get(level, default)
    if field == OFFLOAD:  # each of its fields is inherited by itself
        value = {}
        for fields in (default, *reversed(list(given.values()))):
            value |= fields or {}
    return {"value": value, "from": level, "set": dict(given)}
