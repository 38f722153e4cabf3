"""Counts what the topics of this broker do, by bundle, at a cost that follows the topics that are in use.

Each loaded topic has its hash in a sorted list, so that the topics of a bundle are counted without a visit. Only topics
with clients or traffic, and those opened a moment ago, are visited.
"""

import asyncio
from bisect import bisect_left, insort
from collections.abc import Mapping

from quire_broker.balancing.load_report import BundleStats
from quire_broker.balancing.plan.loads import BundleName
from quire_broker.limits import TOPICS_TICK_S
from quire_broker.names import NamespaceName
from quire_broker.ownership.owners import Bundle, Owners
from quire_broker.policies.bundles import RING_END, Bundles, range_of
from quire_broker.policies.store import PolicyStore
from quire_broker.topic.non_persistent_topic import NonPersistentTopic
from quire_broker.topic.topic import Topic
from quire_broker.topic.topics import Topics
from quire_broker.topic_steps import in_steps

AnyTopic = Topic | NonPersistentTopic
RATES_KNOWN_S = 2 * TOPICS_TICK_S
"""After which the rates of a topic that was opened are known."""


class BundleCounts:
    """Counts the loaded topics of the bundles of this broker, and what they do."""

    def __init__(self, owners: Owners, policies: PolicyStore, topics: Topics) -> None:
        self._owners, self._policies, self._topics = owners, policies, topics
        self._changed = topics.changed(self._forget)
        self._hashes: dict[NamespaceName, list[int]] = {}
        """Hashes of the topics in `_known`, sorted."""
        self._known: set[Topic] = set()
        self._one_at_a_time = asyncio.Lock()

    def _forget(self, topic: Topic) -> None:
        if topic in self._known:
            self._known.discard(topic)
            hashes = self._hashes[topic.name.namespace]
            del hashes[bisect_left(hashes, topic.hash)]
            if not hashes:
                del self._hashes[topic.name.namespace]

    async def measure(self) -> dict[BundleName, BundleStats]:
        """Count the bundles that are ours, a few topics at a time: other work goes on. MetadataError."""
        async with self._one_at_a_time:
            found = {bundle: BundleStats() for bundle in self._owners.held}
            rings = {each: await self._policies.bundles(each) for each in {bundle.namespace for bundle in found}}
            async for topic in self._changed.round():
                self._note(topic)
                if _add(found, _bundle_of(topic, rings), topic):
                    self._changed.keep(topic)
            async for other in in_steps(self._topics.non_persistent.loaded):
                bundle = _bundle_of(other, rings)
                _add(found, bundle, other)
                if bundle in found:
                    found[bundle].topic_hashes.append(other.hash)
            for bundle, stats in found.items():
                ring = rings[bundle.namespace]
                if ring is not None and bundle.range in ring.names:  # a bundle that was divided has no topics
                    stats.topic_hashes.extend(self._hashes_of(bundle))
                stats.topics = len(stats.topic_hashes)
            return {BundleName(str(bundle)): stats for bundle, stats in found.items()}

    def _note(self, topic: Topic) -> None:
        if topic not in self._known:
            self._known.add(topic)
            insort(self._hashes.setdefault(topic.name.namespace, []), topic.hash)

    def _hashes_of(self, bundle: Bundle) -> list[int]:
        low, high = range_of(bundle.range)
        hashes = self._hashes.get(bundle.namespace, [])
        end = len(hashes) if high == RING_END else bisect_left(hashes, high)
        return hashes[bisect_left(hashes, low) : end]


def _bundle_of(topic: AnyTopic, rings: Mapping[NamespaceName, Bundles | None]) -> Bundle | None:
    namespace = topic.name.namespace
    ring = rings.get(namespace)
    return None if ring is None else Bundle(namespace, ring.bundle_at(topic.hash))


def _add(found: dict[Bundle, BundleStats], bundle: Bundle | None, topic: AnyTopic) -> bool:
    """Add what a topic does to its bundle, if that is ours. Return whether the topic is in use, or new."""
    new = asyncio.get_running_loop().time() - topic.loaded_s < RATES_KNOWN_S
    rates_in = topic.rates.messages.per_s, topic.rates.size_bytes.per_s
    subscriptions = topic.subscriptions.values()
    rates_out = (
        sum(each.stats.message_rate.per_s for each in subscriptions),
        sum(each.stats.byte_rate.per_s for each in subscriptions),
    )
    clients = len(topic.producers), sum(len(each.consumers) for each in subscriptions)
    stats = None if bundle is None else found.get(bundle)
    if stats is not None:
        stats.topics_new += new
        stats.rate_in += rates_in[0]
        stats.bytes_in += rates_in[1]
        stats.rate_out += rates_out[0]
        stats.bytes_out += rates_out[1]
        stats.producers += clients[0]
        stats.consumers += clients[1]
    return new or any(rates_in) or any(rates_out) or any(clients)
