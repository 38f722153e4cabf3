"""Keeps the averages of the traffic of bundles, and writes them where Pulsar's leaders do.

    /loadbalance/bundle-data/<t>/<ns>/<bundle>   {"shortTermData": {"maxSamples": 10, "numSamples", "msgThroughputIn",
                                                 ...}, "longTermData": {"maxSamples": 1000, ...}, "topics"}

A bundle without owner has no report: from this its weight is known. A sample is one load report with the bundle.
"""

import logging
from dataclasses import field

from quire_bookie.dataclass import dataclass
from quire_bookie.errors import MetadataFormatError
from quire_bookie.metadata.retrying import watch_with_retries, with_retries
from quire_bookie.metadata.store import Delete, EventKind, MetadataStore
from quire_broker.balancing.load_report import number_of
from quire_broker.balancing.plan.loads import BundleLoad, BundleName, Snapshot, weight
from quire_broker.balancing.resource_quotas import QUOTAS
from quire_broker.names import NamespaceName
from quire_broker.policies.store import Json, decode_json, encode_json

BUNDLE_DATA = "/loadbalance/bundle-data"
SHORT_SAMPLES, LONG_SAMPLES = 10, 1000
WRITES_MAX = 500
"""Bundles whose averages are written in one round, the most loaded ones."""
PRUNE_ROUNDS = 60
"""Calls of `add` between two looks for bundles that are in no report. One that is in none at two looks is dropped."""
_CHANGE = 0.1
_log = logging.getLogger("quire.broker.balancing")


@dataclass(slots=True)
class Average:
    """Averages over the last samples; the first samples count in full."""

    samples_max: int
    samples: int = 0
    messages_per_s: float = 0.0
    bytes_per_s: float = 0.0

    def add(self, load: BundleLoad) -> None:
        """Add a sample."""
        self.samples = min(self.samples + 1, self.samples_max)
        part = 1 / self.samples
        self.messages_per_s += (load.messages_per_s - self.messages_per_s) * part
        self.bytes_per_s += (load.bytes_per_s - self.bytes_per_s) * part

    def to_json(self) -> Json:
        """Encode the averages. In and out are known together only: they are written as in."""
        return {
            "maxSamples": self.samples_max,
            "numSamples": self.samples,
            "msgThroughputIn": self.bytes_per_s,
            "msgThroughputOut": 0.0,
            "msgRateIn": self.messages_per_s,
            "msgRateOut": 0.0,
        }


@dataclass(slots=True)
class BundleHistory:
    """The averages of one bundle."""

    short: Average = field(default_factory=lambda: Average(SHORT_SAMPLES))
    long: Average = field(default_factory=lambda: Average(LONG_SAMPLES))
    topics: int = 0
    written: float = -1.0
    """Its weight when it was last written."""

    @property
    def weight(self) -> float:
        """See `loads.weight`."""
        return weight(self.long.messages_per_s, self.long.bytes_per_s, self.topics)


def stored_weight(data: Json) -> float:
    """Return the weight of a bundle by a node that any broker wrote."""
    average = data.get("longTermData")
    return weight(
        number_of(average, "msgRateIn") + number_of(average, "msgRateOut"),
        number_of(average, "msgThroughputIn") + number_of(average, "msgThroughputOut"),
        int(number_of(data, "topics")),
    )


async def forget_averages(metadata: MetadataStore, namespace: NamespaceName) -> None:
    """Remove the averages and quotas of the bundles of a namespace that is being deleted. MetadataError."""
    prefixes = f"{BUNDLE_DATA}/{namespace}/", f"{QUOTAS}/{namespace}/"
    for key in [node.key for prefix in prefixes async for page in metadata.scan(prefix) for node in page]:
        await metadata.transact([], [Delete(key)])


class History:
    """The averages of all bundles that are in load reports. Of the leader alone.

    Of bundles that are in none it keeps the weight only, as long as the store has their averages.
    """

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata
        self._bundles: dict[BundleName, BundleHistory] = {}
        self._weights: dict[BundleName, float] = {}
        """Of bundles without a report for a while; those in `_bundles` are newer."""
        self._seen_s: dict[str, float] = {}
        self._rounds = 0
        self._absent: set[BundleName] = set()
        """Bundles of `_bundles` that were in no report at the last look."""

    def add(self, snapshot: Snapshot) -> None:
        """Add the reports that arrived since the last call."""
        for broker, load in snapshot.brokers.items():
            if self._seen_s.get(broker) == load.reported_s:
                continue
            self._seen_s[broker] = load.reported_s
            for bundle in load.bundles:
                found = self._bundles.setdefault(bundle.name, BundleHistory())
                found.short.add(bundle)
                found.long.add(bundle)
                found.topics = bundle.topics
        self._rounds += 1
        if self._rounds % PRUNE_ROUNDS == 0:
            self._prune(snapshot)

    def _prune(self, snapshot: Snapshot) -> None:
        """Drop the bundles that are in no report, now and at the look before."""
        absent = self._bundles.keys() - {bundle.name for load in snapshot.brokers.values() for bundle in load.bundles}
        for name in absent & self._absent:
            dropped = self._bundles.pop(name)
            if dropped.written >= 0:
                self._weights[name] = dropped.weight
        self._absent = absent & self._bundles.keys()
        self._seen_s = {broker: at_s for broker, at_s in self._seen_s.items() if broker in snapshot.brokers}

    async def follow(self) -> None:
        """Read the weights that earlier leaders have written, and forget bundles that are deleted, until cancelled."""
        watch = await watch_with_retries(self._metadata, f"{BUNDLE_DATA}/", _log.info)
        try:
            await self.load()
            async for event in watch:
                if event.kind is EventKind.RESYNC:
                    await self.load()
                elif event.kind is EventKind.DELETED:
                    name = BundleName(event.key.removeprefix(f"{BUNDLE_DATA}/"))
                    self._bundles.pop(name, None)
                    self._weights.pop(name, None)
        finally:
            await watch.close()

    async def load(self) -> None:
        """Read the weights that are stored."""
        self._weights = await with_retries(self._stored, "read the averages of bundles", _log.info)

    async def _stored(self) -> dict[BundleName, float]:
        found = {}
        async for page in self._metadata.scan(f"{BUNDLE_DATA}/"):
            for node in page:
                try:
                    weight = stored_weight(decode_json(node.key, node.value))
                except MetadataFormatError as error:
                    _log.info("the averages of a bundle are not used: %s", error)
                    continue
                found[BundleName(node.key.removeprefix(f"{BUNDLE_DATA}/"))] = weight
        return found

    def weight_of(self, bundle: BundleName) -> float | None:
        """Return the weight that a bundle had; None if it is not known."""
        known = self._bundles.get(bundle)
        return self._weights.get(bundle) if known is None else known.weight

    async def write(self) -> int:
        """Write the averages that have changed; return how many. MetadataError."""
        changed = [
            (name, each)
            for name, each in self._bundles.items()
            if abs(each.weight - each.written) > _CHANGE * max(1.0, each.written)
        ]
        changed.sort(key=lambda item: -item[1].weight)
        for name, each in changed[:WRITES_MAX]:
            if self._bundles.get(name) is not each:
                continue  # it was deleted meanwhile
            value = {"shortTermData": each.short.to_json(), "longTermData": each.long.to_json(), "topics": each.topics}
            await self._metadata.put(f"{BUNDLE_DATA}/{name}", encode_json(value))
            each.written = each.weight
        return len(changed[:WRITES_MAX])
