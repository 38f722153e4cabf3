"""What the settings of a broker amount to as policies: `?applied=true` shows them where neither topic nor namespace set
any. Pure."""

from typing import Any

from quire_broker.offload.policies import shown
from quire_broker.policies.backlog_quota import NO_LIMIT, BacklogQuotas, QuotaKind, QuotaPolicy
from quire_broker.policies.defaults import STRATEGY
from quire_broker.policies.fields import ENTRY_FILTERS, OFFLOAD, PAUSE_ON_ACKS
from quire_broker.policies.inactivity import TOPICS, default_value
from quire_broker.server.broker import BrokerSettings

_TICK_MS = 1000
_MARK_DELETE_RATE = 1.0
"""Acknowledgments are recorded once a second at least."""


def inherited(settings: BrokerSettings) -> dict[str, Any]:
    """Return the value of each field of policies but the rates and backlog quotas."""
    topics = settings.topics
    defaults, ledger, delivery = topics.defaults, topics.ledger, topics.topic.subscriptions
    return {
        "message_ttl_in_seconds": defaults.ttl_s,
        "retention_policies": {
            "retentionTimeInMinutes": int(ledger.retention_s / 60) if ledger.retention_s >= 0 else NO_LIMIT,
            "retentionSizeInMB": ledger.retention_bytes >> 20 if ledger.retention_bytes >= 0 else NO_LIMIT,
        },
        "persistence": {
            "bookkeeperEnsemble": ledger.ensemble_size,
            "bookkeeperWriteQuorum": ledger.write_quorum,
            "bookkeeperAckQuorum": ledger.ack_quorum,
            "managedLedgerMaxMarkDeleteRate": _MARK_DELETE_RATE,
        },
        "compaction_threshold": topics.compaction.threshold_bytes,
        "deduplicationEnabled": topics.topic.deduplication,
        "deduplicationSnapshotIntervalSeconds": defaults.snapshot_interval_s,
        "delayed_delivery_policies": {
            "active": defaults.delayed_delivery,
            "tickTime": _TICK_MS,
            "maxDeliveryDelayInMillis": 0,
        },
        "max_producers_per_topic": defaults.producers_max,
        "max_consumers_per_topic": defaults.consumers_max,
        "max_consumers_per_subscription": defaults.subscription_consumers_max,
        "max_subscriptions_per_topic": defaults.subscriptions_max,
        "max_unacked_messages_per_consumer": delivery.unacked_per_consumer_max,
        "max_unacked_messages_per_subscription": delivery.unacked_per_subscription_max,
        "subscription_types_enabled": defaults.types,
        "autoSubscriptionCreationOverride": {"allowAutoSubscriptionCreation": defaults.create_subscriptions},
        "replication_clusters": [settings.cluster],
        "max_message_size": settings.session.message_bytes_max,
        STRATEGY: defaults.schema_strategy,
        "schema_validation_enforced": defaults.schema_required,
        TOPICS: default_value(topics.inactivity.rules),
        OFFLOAD: shown(ledger.offload),
        PAUSE_ON_ACKS: delivery.pause_on_acks,
        ENTRY_FILTERS: {"entryFilterNames": topics.filters},
    }


def inherited_quotas(default: BacklogQuotas) -> dict[str, Any]:
    """Return the backlog quota of each kind."""
    found = {}
    for kind, quota in ((QuotaKind.SIZE, default.size), (QuotaKind.AGE, default.age)):
        value: dict[str, Any] = {each.field: NO_LIMIT for each in QuotaKind}
        if quota is not None:
            value[kind.field] = quota.limit
        found[kind.value] = value | {"policy": str(QuotaPolicy.HOLD if quota is None else quota.policy)}
    return found
