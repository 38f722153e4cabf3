"""Non-persistent topics for the admin API: their names in all brokers, and their stats in Pulsar's JSON."""

from typing import Any

from aiohttp import web

from quire_broker.admin.context import broker_of, bundles_of, namespace_of
from quire_broker.admin.spreading import on_bundles
from quire_broker.admin.stats import consumer_stats, empty_internal_stats, filter_stats, publisher_stats
from quire_broker.errors import TopicNotFoundError
from quire_broker.names import NON_PERSISTENT, TopicName
from quire_broker.ownership.owners import Bundle
from quire_broker.server.broker import RunningBroker
from quire_broker.topic.non_persistent_subscription import NonPersistentSubscription
from quire_broker.topic.non_persistent_topic import NonPersistentTopic

BUNDLES = f"/admin/v2/{NON_PERSISTENT}"
"""Path of the lists of single bundles."""


async def names_of(request: web.Request) -> list[str]:
    """Return the names of the namespace's topics, or of the bundle in the path, from the owners of its bundles."""
    broker = broker_of(request)
    namespace = namespace_of(request)

    async def one(bundle: Bundle) -> list[str]:
        ring = await broker.policies.bundles(namespace)
        here = [topic for topic in broker.topics.non_persistent.loaded if topic.name.namespace == namespace]
        return [str(topic.name) for topic in here if ring is not None and ring.bundle_at(topic.hash) == bundle.range]

    found = await on_bundles(request, await bundles_of(request), one, method="GET", suffix="", query={}, root=BUNDLES)
    return sorted(name for names in found.values() for name in names)


async def unstored_here(broker: RunningBroker, name: TopicName, *, create: bool = False) -> NonPersistentTopic:
    """Return the topic, which this broker owns. A partition of a partitioned topic begins to exist.

    TopicNotFoundError if it does not exist.
    """
    found = broker.topics.non_persistent.find(name)
    if found is not None or create:
        return found or await broker.topics.non_persistent.get(name, create=True, may_create=True)
    if name.partition < 0:
        raise TopicNotFoundError(f"Topic {name} not found")
    return await broker.topics.non_persistent.get(name, create=False)


def unstored_stats(topic: NonPersistentTopic, broker: RunningBroker) -> dict[str, Any]:
    """Return the NonPersistentTopicStats of one topic."""
    stats = topic.stats
    subscriptions = {name: _subscription(found) for name, found in topic.subscriptions.items()}
    return {
        "msgRateIn": topic.rates.messages.per_s,
        "msgThroughputIn": topic.rates.size_bytes.per_s,
        "msgRateOut": sum(found["msgRateOut"] for found in subscriptions.values()),
        "msgThroughputOut": sum(found["msgThroughputOut"] for found in subscriptions.values()),
        "msgDropRate": sum(found["msgDropRate"] for found in subscriptions.values()),
        "bytesInCounter": stats.bytes_in,
        "msgInCounter": stats.messages_in,
        "bytesOutCounter": sum(found["bytesOutCounter"] for found in subscriptions.values()),
        "msgOutCounter": sum(found["msgOutCounter"] for found in subscriptions.values()),
        "msgDropCounter": topic.dropped,
        "averageMsgSize": stats.bytes_in / stats.messages_in if stats.messages_in else 0.0,
        "storageSize": 0,
        "backlogSize": 0,
        "publishRateLimitedTimes": topic.publish_limit.times,
        "publishers": [publisher_stats(producer) for producer in topic.producers.connected],
        "waitingPublishers": topic.producers.waiting,
        "subscriptions": subscriptions,
        "replication": {},
        "ownerBroker": broker.broker_id,
    }


def unstored_internal_stats(topic: NonPersistentTopic) -> dict[str, Any]:
    """Return PersistentTopicInternalStats of a topic that stores nothing."""
    return empty_internal_stats() | {
        "entriesAddedCounter": topic.stats.entries_in,
        "cursors": {
            name: {"active": bool(found.consumers), "state": "Open"} for name, found in topic.subscriptions.items()
        },
    }


def _subscription(subscription: NonPersistentSubscription) -> dict[str, Any]:
    stats = subscription.stats
    active = subscription.active_consumer
    return {
        "msgRateOut": stats.message_rate.per_s,
        "msgThroughputOut": stats.byte_rate.per_s,
        "msgDropRate": subscription.drops.rate.per_s,
        "msgOutCounter": stats.messages_out,
        "bytesOutCounter": stats.bytes_out,
        "msgDropCounter": subscription.drops.messages,
        "msgBacklog": 0,
        "unackedMessages": 0,
        "type": subscription.type_name,
        **({} if active is None else {"activeConsumerName": active.spec.name}),
        **filter_stats(subscription.filters.stats),
        "subscriptionProperties": dict(subscription.properties),
        "consumers": [consumer_stats(consumer) for consumer in subscription.consumers],
        "isDurable": False,
        "durable": False,
    }
