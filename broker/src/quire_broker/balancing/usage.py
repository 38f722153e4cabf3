"""Measures what this broker uses, and what its topics do, by bundle."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from quire_bookie.env.machine import machine_cpus, machine_memory_bytes, process_cpu_s, process_memory_bytes
from quire_broker.balancing.load_report import BundleStats, Usage
from quire_broker.balancing.plan.loads import BundleName
from quire_broker.limits import TOPICS_TICK_S
from quire_broker.names import NamespaceName
from quire_broker.ownership.owners import Bundle, Owners
from quire_broker.policies.bundles import Bundles
from quire_broker.policies.store import PolicyStore
from quire_broker.topic.non_persistent_topic import NonPersistentTopic
from quire_broker.topic.topic import Topic

AnyTopic = Topic | NonPersistentTopic
RATES_KNOWN_S = 2 * TOPICS_TICK_S
"""After which the rates of a topic that was opened are known."""
TOPICS_PER_STEP = 500
"""Topics looked at in one step of the event loop."""


class UsageMeter:
    """Measures the process between two calls. `traffic`: the bytes in and out since its start."""

    def __init__(self, traffic: Callable[[], tuple[int, int]], nic_gbps: float) -> None:
        self._traffic, self._nic_gbps = traffic, nic_gbps
        self._memory_bytes = machine_memory_bytes()
        self._cpu_limit = 100.0 * min(1.0, machine_cpus())
        self._at_s: float | None = None
        self._cpu_s, self._in, self._out = process_cpu_s(), *traffic()
        self.last = Usage()
        """The last measurement."""

    def measure(self) -> Usage:
        """Return the usage since the last call. The first one has no CPU and no traffic: a start is not typical."""
        now_s, cpu_s, (size_in, size_out) = asyncio.get_running_loop().time(), process_cpu_s(), self._traffic()
        span_s = 0.0 if self._at_s is None else now_s - self._at_s
        before = self._cpu_s, self._in, self._out
        self._at_s, self._cpu_s, self._in, self._out = now_s, cpu_s, size_in, size_out
        rates = [0.0] * 3
        if span_s > 0:
            rates = [
                (after - earlier) / span_s for after, earlier in zip((cpu_s, size_in, size_out), before, strict=True)
            ]
        self.last = Usage(
            cpu_percent=100 * rates[0],
            cpu_limit_percent=self._cpu_limit,
            memory_bytes=process_memory_bytes(),
            memory_limit_bytes=self._memory_bytes,
            bytes_in_per_s=rates[1],
            bytes_out_per_s=rates[2],
            nic_gbps=self._nic_gbps,
        )
        return self.last


async def with_bundles(policies: PolicyStore, topics: Sequence[AnyTopic]) -> AsyncIterator[tuple[AnyTopic, Bundle]]:
    """Yield topics with their bundles, a few at a time: other work goes on. Omits those whose namespace is gone."""
    async for topic, ring in _with_rings(policies, topics):
        yield topic, Bundle(topic.name.namespace, ring.bundle_at(topic.hash))


async def bundle_stats(
    owners: Owners, policies: PolicyStore, topics: Sequence[AnyTopic]
) -> dict[BundleName, BundleStats]:
    """Count the loaded topics of each bundle that is ours, a few at a time: other work goes on."""
    found = {each: BundleStats() for each in owners.held}
    by_range: dict[NamespaceName, dict[str, BundleStats]] = {}
    for bundle, stats in found.items():
        by_range.setdefault(bundle.namespace, {})[bundle.range] = stats
    async for topic, ring in _with_rings(policies, topics):
        mine = by_range.get(topic.name.namespace, {}).get(ring.bundle_at(topic.hash))
        if mine is not None:
            _count(mine, topic)
    return {BundleName(str(bundle)): stats for bundle, stats in found.items()}


async def _with_rings(policies: PolicyStore, topics: Sequence[AnyTopic]) -> AsyncIterator[tuple[AnyTopic, Bundles]]:
    """Yield topics with the bundles of their namespaces."""
    rings: dict[NamespaceName, Bundles | None] = {}
    for number, topic in enumerate(topics):
        if number % TOPICS_PER_STEP == 0:
            await asyncio.sleep(0)
        namespace = topic.name.namespace
        if namespace not in rings:
            rings[namespace] = await policies.bundles(namespace)
        ring = rings[namespace]
        if ring is not None:
            yield topic, ring


def _count(stats: BundleStats, topic: AnyTopic) -> None:
    stats.topics += 1
    stats.topics_new += asyncio.get_running_loop().time() - topic.loaded_s < RATES_KNOWN_S
    stats.topic_hashes.append(topic.hash)
    stats.rate_in += topic.rates.messages.per_s
    stats.bytes_in += topic.rates.size_bytes.per_s
    stats.producers += len(topic.producers)
    for subscription in topic.subscriptions.values():
        stats.rate_out += subscription.stats.message_rate.per_s
        stats.bytes_out += subscription.stats.byte_rate.per_s
        stats.consumers += len(subscription.consumers)
