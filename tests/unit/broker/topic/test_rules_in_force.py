"""The policies of the broker's settings: topics and namespaces without policies of their own have them."""

import asyncio

import pytest

from quire_broker.errors import NotAllowedError
from quire_broker.names import parse_topic
from quire_broker.settings.policies import DefaultPolicies
from tests.unit.broker.managed_ledger.world import World
from tests.unit.broker.topic.test_topics import NAMESPACE, TOPIC, Broker, scenario


def test_a_topic_has_them_unless_its_namespace_says_otherwise() -> None:
    async def work(world: World, broker: Broker) -> None:
        topic = await broker.topics.get(TOPIC)
        rules = await broker.topics.rules(topic)
        assert (rules["max_producers_per_topic"], rules["message_ttl_in_seconds"]) == (3, 60)
        assert rules["autoSubscriptionCreationOverride"] == {"allowAutoSubscriptionCreation": False}
        await broker.policies.update_policies(NAMESPACE, lambda own: own.update(max_producers_per_topic=0))
        assert (await broker.topics.rules(topic))["max_producers_per_topic"] == 0
        unknown = parse_topic("persistent://public/none/t")
        assert (await broker.topics.rules_of(unknown))["max_producers_per_topic"] == 3

    scenario(work, defaults=DefaultPolicies(producers_max=3, ttl_s=60, create_subscriptions=False))


def test_a_namespace_takes_no_more_topics_than_the_setting() -> None:
    async def work(world: World, broker: Broker) -> None:
        for name in ("a", "b"):
            await broker.topics.get(parse_topic(f"persistent://public/default/{name}"))
        with pytest.raises(NotAllowedError, match="maximum number of topics in namespace public/default: 2"):
            await broker.topics.get(parse_topic("persistent://public/default/c"))
        await broker.policies.update_policies(NAMESPACE, lambda own: own.update(max_topics_per_namespace=3))
        await broker.topics.get(parse_topic("persistent://public/default/c"))

    scenario(work, defaults=DefaultPolicies(topics_max=2))


def test_the_first_use_of_a_topic_creates_it_with_the_partitions_of_the_setting() -> None:
    async def work(world: World, broker: Broker) -> None:
        assert await broker.topics.partitions_for_client(TOPIC, auto_create=True) == 4
        assert await broker.policies.partitions(TOPIC) == 4

    scenario(work, defaults=DefaultPolicies(topic_type="partitioned", partitions=4))


def test_a_loaded_topic_refuses_messages_without_encryption_also_a_non_persistent_one() -> None:
    async def work(world: World, broker: Broker) -> None:
        assert (await broker.topics.get(TOPIC)).message_rules.encrypted
        unstored = await broker.topics.serve(parse_topic("non-persistent://public/default/n"))
        assert unstored.message_rules.encrypted

    scenario(work, defaults=DefaultPolicies(encryption_required=True))


def test_delayed_delivery_is_off_by_the_setting_until_a_policy_turns_it_on() -> None:
    async def work(world: World, broker: Broker) -> None:
        topic = await broker.topics.get(TOPIC)
        assert not topic.settings.subscriptions.delayed_delivery
        own = {"delayed_delivery_policies": {"active": True}}
        await broker.policies.update_policies(NAMESPACE, lambda policies: policies.update(own))
        await broker.topics.apply(topic, None)
        await asyncio.sleep(1)
        assert (await broker.topics.get(TOPIC)).settings.subscriptions.delayed_delivery

    scenario(work, defaults=DefaultPolicies(delayed_delivery=False))
