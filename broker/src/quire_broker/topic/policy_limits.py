"""Refuses producers, consumers and subscriptions that the policies of a topic do not allow. Decides only.

A limit of 0, or none, means no limit. Call it in the same step of the event loop as what it admits: nothing is counted
ahead.
"""

from collections.abc import Mapping
from typing import Any

from quire_broker.errors import (
    ConsumerBusyError,
    NotAllowedError,
    ProducerBusyError,
    SubscriptionNotFoundError,
)
from quire_broker.topic.message_rules import message_rules_of
from quire_broker.topic.serving import ServedSubscription, ServedTopic
from quire_broker.wire.kinds import TYPE_NAMES, SubscriptionType


def _limit(policies: Mapping[str, Any], name: str) -> int:
    value = policies.get(name)
    return value if type(value) is int and value > 0 else 0


def require_producer(policies: Mapping[str, Any], topic: ServedTopic, name: str) -> None:
    """Raise ProducerBusyError if the topic has the most producers, except for the successor of one of them."""
    limit = _limit(policies, "max_producers_per_topic")
    if limit and not topic.name.is_system and not topic.producers.has(name) and len(topic.producers.everyone) >= limit:
        raise ProducerBusyError(f"Topic '{topic.name}' reached max producers limit of {limit}")


def require_encrypted_producer(policies: Mapping[str, Any], topic: ServedTopic, *, encrypted: bool) -> None:
    """Raise NotAllowedError for a producer that does not encrypt, if the policies require it."""
    if not encrypted and not topic.name.is_system and message_rules_of(policies).encrypted:
        raise NotAllowedError(f"Encryption is required in {topic.name}")


def use_message_rules(policies: Mapping[str, Any], topic: ServedTopic) -> None:
    """Apply the rules of messages from now on. A producer without encryption is closed if they require it."""
    topic.message_rules = rules = message_rules_of(policies)
    for producer in topic.producers.everyone if rules.encrypted else ():
        if not producer.encrypted:
            topic.release_producer(producer)


def require_subscription(policies: Mapping[str, Any], topic: ServedTopic, name: str, *, by_client: bool = True) -> None:
    """Raise NotAllowedError for one more subscription than the most, SubscriptionNotFoundError if clients create none.

    A subscription that exists is never refused.
    """
    if name in topic.subscriptions or topic.name.is_system:
        return
    override = policies.get("autoSubscriptionCreationOverride")
    if by_client and isinstance(override, Mapping) and override.get("allowAutoSubscriptionCreation") is False:
        raise SubscriptionNotFoundError(
            f"Subscription '{name}' does not exist, and the policies let no client create it: ask an administrator"
        )
    limit = _limit(policies, "max_subscriptions_per_topic")
    if limit and len(topic.subscriptions) >= limit:
        raise NotAllowedError(f"Exceed the maximum number of subscriptions of the topic: {topic.name}, {limit}")


def require_type(policies: Mapping[str, Any], topic: ServedTopic, kind: SubscriptionType) -> None:
    """Raise NotAllowedError for a type that is not enabled. Without a list all are."""
    enabled = policies.get("subscription_types_enabled")
    if enabled and not topic.name.is_system and TYPE_NAMES[kind] not in enabled:
        raise NotAllowedError(f"Topic[{topic.name}] doesn't support {TYPE_NAMES[kind]} sub type!")


def require_consumer(policies: Mapping[str, Any], topic: ServedTopic, subscription: ServedSubscription) -> None:
    """Raise ConsumerBusyError if the topic or the subscription has the most consumers."""
    if topic.name.is_system:
        return
    limit = _limit(policies, "max_consumers_per_topic")
    if limit and sum(len(each.consumers) for each in topic.subscriptions.values()) >= limit:
        raise ConsumerBusyError(f"Topic '{topic.name}' reached max consumers limit of {limit}")
    limit = _limit(policies, "max_consumers_per_subscription")
    if limit and len(subscription.consumers) >= limit:
        raise ConsumerBusyError(f"Subscription '{subscription.name}' reached max consumers limit of {limit}")
