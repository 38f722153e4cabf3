"""Limits of producers, consumers and subscriptions by policies: at each limit, one above it, and without one."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from quire_broker.errors import (
    ConsumerBusyError,
    NotAllowedError,
    ProducerBusyError,
    SubscriptionNotFoundError,
)
from quire_broker.names import parse_topic
from quire_broker.topic import policy_limits
from quire_broker.topic.producers import Producer, Producers
from quire_broker.topic.serving import ServedSubscription, ServedTopic
from quire_broker.wire.kinds import AccessMode, SubscriptionType
from tests.unit.broker.topic.test_topics import Link

SYSTEM = "persistent://public/default/__change_events"


def _topic(name: str = "persistent://public/default/t", **consumers: int) -> ServedTopic:
    """Return a topic with subscriptions that have these numbers of consumers."""
    subscriptions = {one: SimpleNamespace(name=one, consumers=[None] * count) for one, count in consumers.items()}

    async def keep(epoch: int) -> None:
        """Store no epoch: only shared producers are added."""

    found = SimpleNamespace(name=parse_topic(name), subscriptions=subscriptions, producers=Producers(None, keep))
    return cast(ServedTopic, found)


async def _produce(topic: ServedTopic, name: str, mode: AccessMode = AccessMode.SHARED) -> None:
    await topic.producers.add(Producer(1, name, Link(), mode=mode), None)


async def test_the_most_producers_are_admitted_and_a_successor_of_one_of_them() -> None:
    topic, policies = _topic(), {"max_producers_per_topic": 2}
    for name in ("a", "b"):
        policy_limits.require_producer(policies, topic, name)
        await _produce(topic, name)
    with pytest.raises(ProducerBusyError, match="reached max producers limit of 2"):
        policy_limits.require_producer(policies, topic, "c")
    policy_limits.require_producer(policies, topic, "b")


async def test_a_producer_that_waits_counts() -> None:
    topic, policies = _topic(), {"max_producers_per_topic": 2}
    await _produce(topic, "a")
    await _produce(topic, "b", AccessMode.WAIT_FOR_EXCLUSIVE)
    with pytest.raises(ProducerBusyError):
        policy_limits.require_producer(policies, topic, "c")


async def test_producers_without_encryption_are_refused_and_closed() -> None:
    topic, required = _topic(), {"encryption_required": True}
    policy_limits.require_encrypted_producer(required, topic, encrypted=True)
    policy_limits.require_encrypted_producer({}, topic, encrypted=False)
    policy_limits.require_encrypted_producer(required, _topic(SYSTEM), encrypted=False)
    with pytest.raises(NotAllowedError, match="Encryption is required in persistent://public/default/t"):
        policy_limits.require_encrypted_producer(required, topic, encrypted=False)
    await topic.producers.add(Producer(1, "plain", Link()), None)
    await topic.producers.add(Producer(2, "secret", Link(), encrypted=True), None)
    closed: list[str] = []
    cast(Any, topic).release_producer = lambda producer: closed.append(producer.name)
    policy_limits.use_message_rules({}, topic)
    assert closed == []
    policy_limits.use_message_rules(required, topic)
    assert closed == ["plain"]


@pytest.mark.parametrize("limit", [None, 0, -1, True, "2"])
async def test_no_usable_number_is_no_limit(limit: Any) -> None:
    names = ("producers_per_topic", "consumers_per_topic", "consumers_per_subscription", "subscriptions_per_topic")
    policies = {f"max_{name}": limit for name in names}
    topic = _topic(s=9)
    await _produce(topic, "a")
    policy_limits.require_producer(policies, topic, "b")
    policy_limits.require_subscription(policies, topic, "t")
    policy_limits.require_consumer(policies, topic, topic.subscriptions["s"])
    policy_limits.require_type({}, topic, SubscriptionType.SHARED)


async def test_system_topics_have_no_limits() -> None:
    topic = _topic(SYSTEM, s=1)
    await _produce(topic, "a")
    names = ("producers_per_topic", "consumers_per_topic", "consumers_per_subscription", "subscriptions_per_topic")
    policies: dict[str, Any] = {f"max_{name}": 1 for name in names}
    policies |= {"subscription_types_enabled": ["Shared"]}
    policies |= {"autoSubscriptionCreationOverride": {"allowAutoSubscriptionCreation": False}}
    policy_limits.require_producer(policies, topic, "b")
    policy_limits.require_subscription(policies, topic, "t")
    policy_limits.require_consumer(policies, topic, topic.subscriptions["s"])
    policy_limits.require_type(policies, topic, SubscriptionType.FAILOVER)


def test_the_most_subscriptions_are_admitted_and_those_that_exist() -> None:
    policies = {"max_subscriptions_per_topic": 2}
    policy_limits.require_subscription(policies, _topic(a=0), "b")
    full = _topic(a=0, b=0)
    with pytest.raises(NotAllowedError, match="Exceed the maximum number of subscriptions of the topic"):
        policy_limits.require_subscription(policies, full, "c")
    policy_limits.require_subscription(policies, full, "b")


@pytest.mark.parametrize("override", [None, {}, {"allowAutoSubscriptionCreation": True}])
def test_clients_create_subscriptions_unless_the_policies_forbid_it(override: Any) -> None:
    policy_limits.require_subscription({"autoSubscriptionCreationOverride": override}, _topic(), "a")


def test_where_clients_create_no_subscription_an_administrator_does() -> None:
    policies = {"autoSubscriptionCreationOverride": {"allowAutoSubscriptionCreation": False}}
    with pytest.raises(SubscriptionNotFoundError, match="the policies let no client create it"):
        policy_limits.require_subscription(policies, _topic(), "a")
    policy_limits.require_subscription(policies, _topic(), "a", by_client=False)
    policy_limits.require_subscription(policies, _topic(a=0), "a")


def test_only_enabled_types_are_served_and_an_empty_list_enables_all() -> None:
    policies = {"subscription_types_enabled": ["Shared", "Key_Shared"]}
    for kind in (SubscriptionType.SHARED, SubscriptionType.KEY_SHARED):
        policy_limits.require_type(policies, _topic(), kind)
    with pytest.raises(NotAllowedError, match="doesn't support Failover sub type"):
        policy_limits.require_type(policies, _topic(), SubscriptionType.FAILOVER)
    policy_limits.require_type({"subscription_types_enabled": []}, _topic(), SubscriptionType.FAILOVER)


def _require_consumer(policies: dict[str, int], topic: ServedTopic, name: str) -> None:
    subscription: ServedSubscription = topic.subscriptions[name]
    policy_limits.require_consumer(policies, topic, subscription)


def test_the_consumers_of_all_subscriptions_count_for_the_topic() -> None:
    policies = {"max_consumers_per_topic": 3}
    _require_consumer(policies, _topic(a=1, b=1), "a")
    with pytest.raises(ConsumerBusyError, match="reached max consumers limit of 3"):
        _require_consumer(policies, _topic(a=1, b=2), "a")


def test_the_consumers_of_a_subscription_are_limited_for_itself() -> None:
    policies = {"max_consumers_per_subscription": 2}
    _require_consumer(policies, _topic(a=1, b=9), "a")
    with pytest.raises(ConsumerBusyError, match="Subscription 'a' reached max consumers limit of 2"):
        _require_consumer(policies, _topic(a=2, b=0), "a")
