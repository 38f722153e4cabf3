"""The fields of a namespace's policies, and the values that each may hold. Pure.

Names and types are those of Pulsar's `Policies`. Its types bound the numbers: `int` has 32 bits, `long`
64. A field that is null counts as not set. `flaw_of` checks policies before they are stored, `usable` after they are
read, because other brokers write the same nodes.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1
NAME_CHARACTERS_MAX: Final = 1024
ENTRY_FILTERS: Final = "entryFilters"
OFFLOAD: Final = "offload_policies"
PAUSE_ON_ACKS: Final = "dispatcherPauseOnAckStatePersistentEnabled"
ENTRIES_MAX: Final = 10_000
"""Maximum of one list or map."""


class Check(NamedTuple):
    """The values that a field may have. Calling it describes the expected value; None: the value is valid."""

    flaw: Callable[[Any], str | None]
    schema: Mapping[str, Any]
    """The same as a schema of OpenAPI 3.0."""

    def __call__(self, value: Any) -> str | None:
        """Check a value."""
        return self.flaw(value)


def whole(low: int, high: int) -> Check:
    """Return a check for an integer in [low, high]."""

    def check(value: Any) -> str | None:
        good = type(value) is int and low <= value <= high
        return None if good else f"an integer from {low} to {high}"

    size = "int32" if low >= -(2**31) and high <= INT_MAX else "int64"
    return Check(check, {"type": "integer", "format": size, "minimum": low, "maximum": high})


def _flag(value: Any) -> str | None:
    return None if isinstance(value, bool) else "true or false"


flag: Final = Check(_flag, {"type": "boolean"})
"""Checks for true or false."""


def _text(value: Any) -> str | None:
    good = isinstance(value, str) and len(value) <= NAME_CHARACTERS_MAX
    return None if good else f"a text of at most {NAME_CHARACTERS_MAX} characters"


text: Final = Check(_text, {"type": "string", "maxLength": NAME_CHARACTERS_MAX})
"""Checks for a text of bounded length."""


def one_of(*known: str) -> Check:
    """Return a check for one of these texts."""
    return Check(
        lambda value: None if isinstance(value, str) and value in known else f"one of {', '.join(known)}",
        {"type": "string", "enum": list(known)},
    )


def _number(value: Any) -> str | None:
    good = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LONG_MAX
    return None if good else "a number"


number: Final = Check(_number, {"type": "number", "format": "double"})
"""Checks for a number that a double can hold."""


def list_of(item: Check) -> Check:
    """Return a check for a list of bounded length."""

    def check(value: Any) -> str | None:
        if not isinstance(value, list) or len(value) > ENTRIES_MAX:
            return f"a list of at most {ENTRIES_MAX} entries"
        return next((f"a list, each entry {flaw}" for flaw in map(item.flaw, value) if flaw), None)

    return Check(check, {"type": "array", "maxItems": ENTRIES_MAX, "items": item.schema})


def map_of(item: Check) -> Check:
    """Return a check for an object of bounded size with any names."""

    def check(value: Any) -> str | None:
        if not isinstance(value, dict) or len(value) > ENTRIES_MAX:
            return f"an object of at most {ENTRIES_MAX} names"
        names = next((f"an object, each name {flaw}" for flaw in map(text.flaw, value) if flaw), None)
        return names or next((f"an object, each value {flaw}" for flaw in map(item.flaw, value.values()) if flaw), None)

    return Check(check, {"type": "object", "maxProperties": ENTRIES_MAX, "additionalProperties": item.schema})


def object_of(required: tuple[str, ...] = (), **fields: Check) -> Check:
    """Return a check for an object with only these fields. Those not required may be missing or null."""

    def check(value: Any) -> str | None:
        if not isinstance(value, dict):
            return f"an object with the fields {', '.join(fields)}"
        for name, item in value.items():
            if name not in fields:
                return f"an object without the field {name[:100]!r}; allowed are {', '.join(fields)}"
            flaw = None if item is None else fields[name](item)
            if flaw:
                return f"an object whose field {name} is {flaw}"
        return next((f"an object with the field {name}" for name in required if value.get(name) is None), None)

    properties = {
        name: item.schema if name in required else {**item.schema, "nullable": True} for name, item in fields.items()
    }
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return Check(check, schema | ({"required": list(required)} if required else {}))


def _of_offloader(value: Any) -> str | None:
    if value is None or isinstance(value, bool) or number(value) is None or text(value) is None:
        return None
    return None if map_of(text)(value) is None else "a text, a number, true, false, or an object of texts"


_SETTING: Final = Check(_of_offloader, {"description": "a text, a number, true, false, null, or an object of texts"})
"""Checks for a setting of an offloader."""


INT = whole(-(2**31), INT_MAX)
LONG = whole(-(2**63), LONG_MAX)
COUNT = whole(0, INT_MAX)
_ROLES = list_of(text)
_GRANTS = map_of(_ROLES)
_RATE = object_of(
    dispatchThrottlingRateInMsg=INT,
    dispatchThrottlingRateInByte=LONG,
    relativeToPublishRate=flag,
    ratePeriodInSecond=INT,
)
_QUOTA = object_of(limit=LONG, limitSize=LONG, limitTime=LONG, policy=text)

FIELDS: Final[Mapping[str, Check]] = {
    "auth_policies": object_of(
        namespace_auth=_GRANTS,
        destination_auth=map_of(_GRANTS),
        topic_auth=map_of(_GRANTS),
        subscription_auth_roles=map_of(_ROLES),
        quire_admin_roles=_ROLES,
    ),
    "replication_clusters": list_of(text),
    "allowed_clusters": list_of(text),
    "bundles": object_of(boundaries=list_of(text), numBundles=INT),
    "backlog_quota_map": map_of(_QUOTA),
    "clusterDispatchRate": map_of(_RATE),
    "topicDispatchRate": map_of(_RATE),
    "subscriptionDispatchRate": map_of(_RATE),
    "replicatorDispatchRate": map_of(_RATE),
    "clusterSubscribeRate": map_of(object_of(subscribeThrottlingRatePerConsumer=INT, ratePeriodInSecond=INT)),
    "publishMaxMessageRate": map_of(object_of(publishThrottlingRateInMsg=INT, publishThrottlingRateInByte=LONG)),
    "persistence": object_of(
        bookkeeperEnsemble=whole(0, INT_MAX),
        bookkeeperWriteQuorum=whole(0, INT_MAX),
        bookkeeperAckQuorum=whole(0, INT_MAX),
        managedLedgerMaxMarkDeleteRate=number,
        managedLedgerStorageClassName=text,
    ),
    "deduplicationEnabled": flag,
    "autoTopicCreationOverride": object_of(allowAutoTopicCreation=flag, topicType=text, defaultNumPartitions=COUNT),
    "autoSubscriptionCreationOverride": object_of(allowAutoSubscriptionCreation=flag),
    "latency_stats_sample_rate": map_of(INT),
    "message_ttl_in_seconds": COUNT,
    "subscription_expiration_time_minutes": COUNT,
    "retention_policies": object_of(
        ("retentionTimeInMinutes", "retentionSizeInMB"),
        retentionTimeInMinutes=whole(-1, INT_MAX),
        retentionSizeInMB=whole(-1, LONG_MAX // 2**20),
    ),
    "deleted": flag,
    "encryption_required": flag,
    "delayed_delivery_policies": object_of(active=flag, tickTime=LONG, maxDeliveryDelayInMillis=LONG),
    "inactive_topic_policies": object_of(
        inactiveTopicDeleteMode=text, maxInactiveDurationSeconds=INT, deleteWhileInactive=flag
    ),
    "subscription_auth_mode": text,
    "max_producers_per_topic": COUNT,
    "max_consumers_per_topic": COUNT,
    "max_consumers_per_subscription": COUNT,
    "max_unacked_messages_per_consumer": COUNT,
    "max_unacked_messages_per_subscription": COUNT,
    "max_subscriptions_per_topic": COUNT,
    "max_topics_per_namespace": COUNT,
    "max_message_size": COUNT,
    "compaction_threshold": whole(0, LONG_MAX),
    "offload_threshold": LONG,
    "offload_threshold_in_seconds": LONG,
    "offload_deletion_lag_ms": LONG,
    OFFLOAD: map_of(_SETTING),
    "schema_auto_update_compatibility_strategy": text,
    "schema_compatibility_strategy": text,
    "is_allow_auto_update_schema": flag,
    "schema_validation_enforced": flag,
    "deduplicationSnapshotIntervalSeconds": COUNT,
    "subscription_types_enabled": list_of(text),
    "properties": map_of(text),
    "resource_group_name": text,
    "migrated": flag,
    PAUSE_ON_ACKS: flag,
    ENTRY_FILTERS: object_of(entryFilterNames=text),
    "shadow_topics": list_of(text),
}
"""Maps each field of the node to the check of its values."""


_KEPT = frozenset({"autoTopicCreationOverride"})
"""Kept when it is read: without it the broker's own rule would create topics. The code that creates them checks it."""


def flaw_of(name: str, value: Any) -> str | None:
    """Return why a field of the policies may not be stored; None: it may."""
    check = FIELDS.get(name)
    if check is None:
        return f"policies have no field {name[:100]!r}"
    expected = None if value is None else check(value)
    return f"{name}: expected {expected}" if expected else None


def flaws_of(policies: Mapping[str, Any]) -> dict[str, str]:
    """Return the error of each present field that has one."""
    flaws = {name: flaw_of(name, value) for name, value in policies.items() if name in FIELDS}
    return {name: flaw for name, flaw in flaws.items() if flaw is not None}


def usable(policies: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return stored policies without invalid fields, and the errors of those.

    Fields that this broker does not know stay. Without a valid `auth_policies` field a namespace grants nothing.
    """
    flaws = {name: flaw for name, flaw in flaws_of(policies).items() if name not in _KEPT}
    good = {name: value for name, value in policies.items() if name not in flaws}
    return good, tuple(flaws.values())


TENANT: Final = object_of(adminRoles=_ROLES, allowedClusters=list_of(text))
"""TenantInfo."""
