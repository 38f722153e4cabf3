"""Collects a broker's counters by name: for metrics, the status page and the status line. Knows nothing of HTTP."""

from quire_broker.server.broker import RunningBroker


async def counters(broker: RunningBroker) -> dict[str, int]:
    """Return the broker's counters and gauges by name, without prefix. Counts a few topics in each step of the loop."""
    producers = consumers = 0
    async for topic in broker.topics.in_steps():
        producers += len(topic.producers)
        consumers += sum(len(subscription.consumers) for subscription in topic.subscriptions.values())
    stats = broker.parts.stats
    values = {name: int(getattr(stats, name)) for name in type(stats).__slots__}
    values |= {
        "connections": len(broker.sessions),
        "topics": broker.topics.count,
        "producers": producers,
        "consumers": consumers,
        "publish_pending_bytes": broker.budget.used_bytes,
        "publish_pauses": broker.budget.pauses,
        "bundles_owned": len(broker.owners.held),
        "background_tasks": len(broker.background),
        "background_failures": broker.background_failures,
        "cache_hits": broker.factory.cache.stats.hits,
        "cache_misses": broker.factory.cache.stats.misses,
        "cache_joined": broker.factory.cache.stats.joined,
        "cache_bytes": broker.factory.cache.size_bytes,
        "catch_up_reads": broker.factory.turns.stats.reads,
        "catch_up_waits": broker.factory.turns.stats.waits,
    }
    return values
