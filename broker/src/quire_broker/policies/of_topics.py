"""The policies of single topics, and what follows from the policies of a topic. Pure.

A topic's own policies have the names and values of a namespace's, and replace these one by one; of the backlog quotas
each kind, and of the offload policies each field, by itself. They are JSON in the property
`quire.policies`: of the managed ledger of a plain topic, of the record of a partitioned topic, whose partitions have
none of their own. See docs/decisions/0026.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from quire_broker.policies.backlog_quota import QUOTA_KEY
from quire_broker.policies.fields import ENTRY_FILTERS, OFFLOAD, PAUSE_ON_ACKS, usable
from quire_broker.policies.inactivity import TOPICS
from quire_broker.policies.rates import (
    BY_CLUSTER,
    DISPATCH,
    PUBLISH,
    SUBSCRIBE,
    SUBSCRIPTION_DISPATCH,
    limits_nothing,
    read_field,
)

PROPERTY: Final = "quire.policies"
PATHS: Final[Mapping[str, str]] = {
    "messageTTL": "message_ttl_in_seconds",
    "retention": "retention_policies",
    "persistence": "persistence",
    "compactionThreshold": "compaction_threshold",
    "deduplicationEnabled": "deduplicationEnabled",
    "deduplicationSnapshotInterval": "deduplicationSnapshotIntervalSeconds",
    "delayedDelivery": "delayed_delivery_policies",
    "maxProducers": "max_producers_per_topic",
    "maxConsumers": "max_consumers_per_topic",
    "maxConsumersPerSubscription": "max_consumers_per_subscription",
    "maxSubscriptionsPerTopic": "max_subscriptions_per_topic",
    "maxUnackedMessagesOnConsumer": "max_unacked_messages_per_consumer",
    "maxUnackedMessagesOnSubscription": "max_unacked_messages_per_subscription",
    "subscriptionTypesEnabled": "subscription_types_enabled",
    "autoSubscriptionCreation": "autoSubscriptionCreationOverride",
    "replication": "replication_clusters",
    "maxMessageSize": "max_message_size",
    "schemaCompatibilityStrategy": "schema_compatibility_strategy",
    "schemaValidationEnforced": "schema_validation_enforced",
    "offloadPolicies": OFFLOAD,
    "dispatcherPauseOnAckStatePersistent": PAUSE_ON_ACKS,
    "inactiveTopicPolicies": TOPICS,
    "publishRate": PUBLISH,
    "dispatchRate": DISPATCH,
    "subscriptionDispatchRate": SUBSCRIPTION_DISPATCH,
    "subscribeRate": SUBSCRIBE,
    "entryFilters": ENTRY_FILTERS,
}
"""Maps the path of a topic's policy to its field."""


def own_policies(properties: Mapping[str, str]) -> dict[str, Any]:
    """Return a topic's own policies, without fields that are not readable or have an invalid value."""
    try:
        found = json.loads(properties.get(PROPERTY) or "{}")
    except ValueError:
        return {}
    return usable(found)[0] if isinstance(found, dict) else {}


def merged(namespace: Mapping[str, Any], own: Mapping[str, Any], cluster: str) -> dict[str, Any]:
    """Return the policies in force for a topic of a cluster."""
    quotas = {**(namespace.get(QUOTA_KEY) or {}), **(own.get(QUOTA_KEY) or {})}
    unused = [field for field in BY_CLUSTER if limits_nothing(read_field(own, field, cluster))]
    used = {name: value for name, value in own.items() if name not in unused}
    if OFFLOAD in used:
        used[OFFLOAD] = {**(namespace.get(OFFLOAD) or {}), **(used[OFFLOAD] or {})}
    return {**namespace, **used, QUOTA_KEY: quotas}


def encoded(own: Mapping[str, Any]) -> str | None:
    """Return the value of the property; None: it is removed."""
    kept = {name: value for name, value in own.items() if value not in (None, {})}
    return json.dumps(kept, separators=(",", ":")) if kept else None
