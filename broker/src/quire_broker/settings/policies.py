"""Declares the policies of namespaces and topics that set none of their own, with Pulsar's names."""

from typing import Any, Final, Literal, TypeAlias

from quire_bookie.dataclass import dataclass
from quire_bookie.errors import ConfigError
from quire_bookie.settings.declared import setting
from quire_broker.limits import DEDUPLICATION_INTERVAL_S, PARTITIONS_MAX
from quire_broker.policies.defaults import STRATEGY
from quire_broker.policies.fields import INT_MAX
from quire_broker.wire.kinds import TYPE_NAMES

_TYPES: Final = tuple(TYPE_NAMES.values())
StrategyName: TypeAlias = Literal[
    "ALWAYS_INCOMPATIBLE",
    "ALWAYS_COMPATIBLE",
    "BACKWARD",
    "FORWARD",
    "FULL",
    "BACKWARD_TRANSITIVE",
    "FORWARD_TRANSITIVE",
    "FULL_TRANSITIVE",
]
_FULL: Final[StrategyName] = "FULL"
TopicType: TypeAlias = Literal["partitioned", "non-partitioned"]
_PLAIN: Final[TopicType] = "non-partitioned"


def _types_of(text: str) -> str:
    """Return the types in a text, joined by commas. ConfigError."""
    found = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in found if name not in _TYPES]
    if unknown or not found:
        shown = repr(unknown[0]) if unknown else "empty"
        raise ConfigError(f"subscriptionTypesEnabled: {shown} is not a type of subscriptions; use {', '.join(_TYPES)}")
    return ",".join(dict.fromkeys(found))


@dataclass(frozen=True, slots=True)
class DefaultPolicies:
    """What holds in a namespace that does not say otherwise. A limit of 0 means no limit."""

    producers_max: int = setting(
        0,
        "maxProducersPerTopic",
        "producers of a topic, unless a policy says otherwise; 0: no limit",
        short="max_producers_per_topic",
        ge=0,
        le=INT_MAX,
    )
    consumers_max: int = setting(
        0,
        "maxConsumersPerTopic",
        "consumers of a topic, unless a policy says otherwise; 0: no limit",
        short="max_consumers_per_topic",
        ge=0,
        le=INT_MAX,
    )
    subscription_consumers_max: int = setting(
        0,
        "maxConsumersPerSubscription",
        "consumers of a subscription, unless a policy says otherwise; 0: no limit",
        short="max_consumers_per_subscription",
        ge=0,
        le=INT_MAX,
    )
    subscriptions_max: int = setting(
        0,
        "maxSubscriptionsPerTopic",
        "subscriptions of a topic, unless a policy says otherwise; 0: no limit",
        short="max_subscriptions_per_topic",
        ge=0,
        le=INT_MAX,
    )
    topics_max: int = setting(
        0,
        "maxTopicsPerNamespace",
        "topics and partitions of a namespace, unless a policy says otherwise; 0: no limit",
        short="max_topics_per_namespace",
        ge=0,
        le=INT_MAX,
    )
    ttl_s: int = setting(
        0,
        "ttlDurationDefaultInSeconds",
        "messages that no subscription consumed in this time are acknowledged, unless a policy says otherwise, in s; "
        "0: never",
        short="ttl_s",
        ge=0,
        le=INT_MAX,
    )
    subscription_types: str = setting(
        ",".join(_TYPES),
        "subscriptionTypesEnabled",
        "types of subscriptions that consumers may use, unless a policy says otherwise; by comma",
        read=_types_of,
        key_default=",".join(_TYPES),
    )
    create_subscriptions: bool = setting(
        True,
        "allowAutoSubscriptionCreation",
        "a consumer's first use creates a subscription, unless a policy says otherwise",
        short="allow_auto_subscription_creation",
    )
    topic_type: TopicType = setting(
        _PLAIN,
        "allowAutoTopicCreationType",
        "the kind of topic that a client's first use creates: partitioned or non-partitioned",
        short="allow_auto_topic_creation_type",
    )
    partitions: int = setting(
        1,
        "defaultNumPartitions",
        "partitions of a topic that a client's first use creates as a partitioned one",
        short="default_num_partitions",
        ge=1,
        le=PARTITIONS_MAX,
    )
    schema_strategy: StrategyName = setting(
        _FULL,
        "schemaCompatibilityStrategy",
        "which schemas may follow those of a topic, unless a policy says otherwise",
        short="schema_compatibility_strategy",
    )
    schema_required: bool = setting(
        False,
        "isSchemaValidationEnforced",
        "producers must give a schema on topics that have one, unless a policy says otherwise",
        short="schema_validation_enforced",
    )
    schema_updates: bool = setting(
        True,
        "isAllowAutoUpdateSchemaEnabled",
        "producers register new versions of schemas, unless a policy says otherwise",
        short="allow_auto_update_schema",
    )
    delayed_delivery: bool = setting(
        True,
        "delayedDeliveryEnabled",
        "messages wait for their delivery time, unless a policy says otherwise",
        short="delayed_delivery",
    )
    encryption_required: bool = setting(
        False, "encryptionRequireOnProducer", "producers must encrypt, in all namespaces"
    )
    snapshot_interval_s: int = setting(
        int(DEDUPLICATION_INTERVAL_S),
        "brokerDeduplicationSnapshotIntervalSeconds",
        "the producers of a topic with deduplication are recorded after this time, unless a policy says otherwise, in "
        "s",
        short="deduplication_snapshot_interval_s",
        ge=1,
        le=INT_MAX,
    )

    @property
    def types(self) -> list[str]:
        """The enabled types of subscriptions."""
        return self.subscription_types.split(",")

    def restrictions(self, create_topics: bool) -> dict[str, Any]:
        """Return the policies that say something else than a namespace without any would. They are often none.

        `create_topics`: whether a client's first use creates topics.
        """
        found: dict[str, Any] = {
            "max_producers_per_topic": self.producers_max,
            "max_consumers_per_topic": self.consumers_max,
            "max_consumers_per_subscription": self.subscription_consumers_max,
            "max_subscriptions_per_topic": self.subscriptions_max,
            "max_topics_per_namespace": self.topics_max,
            "message_ttl_in_seconds": self.ttl_s,
            "schema_validation_enforced": self.schema_required,
            "encryption_required": self.encryption_required,
        }
        found = {name: value for name, value in found.items() if value}
        if self.types != list(_TYPES):
            found["subscription_types_enabled"] = self.types
        if not self.create_subscriptions:
            found["autoSubscriptionCreationOverride"] = {"allowAutoSubscriptionCreation": False}
        if self.topic_type != _PLAIN:
            found["autoTopicCreationOverride"] = {
                "allowAutoTopicCreation": create_topics,
                "topicType": self.topic_type,
                "defaultNumPartitions": self.partitions,
            }
        if self.schema_strategy != _FULL:
            found[STRATEGY] = self.schema_strategy
        if not self.schema_updates:
            found["is_allow_auto_update_schema"] = False
        if not self.delayed_delivery:
            found["delayed_delivery_policies"] = {"active": False}
        return found
