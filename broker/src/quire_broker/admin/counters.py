"""Collects a broker's counters by name: for metrics, the status page and the status line. Knows nothing of HTTP."""

from quire_broker.server.broker import RunningBroker


def counters(broker: RunningBroker) -> dict[str, int]:
    """Return the broker's counters and gauges by name, without prefix."""
    stats = broker.parts.stats
    topics = broker.topics.loaded
    values = {name: int(getattr(stats, name)) for name in type(stats).__slots__}
    values |= {
        "connections": len(broker.sessions),
        "topics": len(topics),
        "producers": sum(len(topic.producers) for topic in topics),
        "consumers": sum(
            len(subscription.consumers) for topic in topics for subscription in topic.subscriptions.values()
        ),
        "publish_pending_bytes": broker.budget.used_bytes,
        "publish_pauses": broker.budget.pauses,
        "bundles_owned": len(broker.owners.held),
        "background_tasks": len(broker.background),
        "background_failures": broker.background_failures,
        "cache_hits": broker.factory.cache.stats.hits,
        "cache_misses": broker.factory.cache.stats.misses,
        "cache_bytes": broker.factory.cache.size_bytes,
    }
    return values
