"""Encodes and decodes load reports in Pulsar's JSON (`LocalBrokerData`), and decides when one is published. Pure.

    /loadbalance/brokers/<id>   {"cpu": {"usage", "limit"}, "directMemory", "bandwidthIn", ..., "msgRateIn", ...,
                                 "numTopics", "numBundles", "lastStats": {bundle: {"msgRateIn", ..., "topics"}}, ...}

CPU is in percent of a core, memory in MiB, bandwidth in kbit/s. A broker's limit of CPU is one core, because one event
loop does its work. `lastStats` and `bundles` have the most loaded bundles only, which bounds the size of a report.
"""

from collections.abc import Mapping, Sequence
from dataclasses import field
from heapq import nlargest
from typing import Any

from quire_bookie.dataclass import dataclass
from quire_bookie.limits import MIB
from quire_broker.balancing.plan.loads import BrokerId, BrokerLoad, BundleLoad, BundleName, weight
from quire_broker.ownership.registration import DRAINING
from quire_broker.policies.store import Json
from quire_broker.settings.balancing import BalancingSettings

_RESOURCES = ("cpu", "directMemory", "bandwidthIn", "bandwidthOut")
_KBIT_PER_BYTE = 8 / 1000
_NUMBER_MAX = 1e18
_TRICKLE = 10.0
TOPICS_NEW = "quireNewTopics"
"""Field of a bundle in a report; other brokers ignore it."""


@dataclass(frozen=True, slots=True)
class Usage:
    """The resources that a broker uses, each with its limit; a limit of 0 is unknown."""

    cpu_percent: float = 0.0
    cpu_limit_percent: float = 100.0
    memory_bytes: int = 0
    memory_limit_bytes: int = 0
    bytes_in_per_s: float = 0.0
    bytes_out_per_s: float = 0.0
    nic_gbps: float = 0.0

    def to_json(self) -> Json:
        """Encode the usage."""
        nic = self.nic_gbps * 1e6
        memory = {"usage": self.memory_bytes / MIB, "limit": self.memory_limit_bytes / MIB}
        return {
            "cpu": {"usage": self.cpu_percent, "limit": self.cpu_limit_percent},
            "memory": memory,
            "directMemory": memory,
            "bandwidthIn": {"usage": self.bytes_in_per_s * _KBIT_PER_BYTE, "limit": nic},
            "bandwidthOut": {"usage": self.bytes_out_per_s * _KBIT_PER_BYTE, "limit": nic},
        }


@dataclass(slots=True)
class BundleStats:
    """What the broker counts of one of its bundles."""

    rate_in: float = 0.0
    rate_out: float = 0.0
    bytes_in: float = 0.0
    bytes_out: float = 0.0
    producers: int = 0
    consumers: int = 0
    topics: int = 0
    topics_new: int = 0
    """Those opened so recently that their rates are not known."""
    topic_hashes: list[int] = field(default_factory=list)
    """Hashes of its loaded topics."""

    @property
    def weight(self) -> float:
        """See `loads.weight`."""
        return weight(self.rate_in + self.rate_out, self.bytes_in + self.bytes_out, self.topics)

    def load(self, name: BundleName) -> BundleLoad:
        """Return the load of the bundle."""
        rate, size = self.rate_in + self.rate_out, self.bytes_in + self.bytes_out
        sessions = self.producers + self.consumers
        return BundleLoad(name, self.topics, sessions, rate, size, _is_new(self.topics, self.topics_new))

    def to_json(self) -> Json:
        """Encode the counts."""
        return {
            "msgRateIn": self.rate_in,
            "msgThroughputIn": self.bytes_in,
            "msgRateOut": self.rate_out,
            "msgThroughputOut": self.bytes_out,
            "consumerCount": self.consumers,
            "producerCount": self.producers,
            "topics": self.topics,
            TOPICS_NEW: self.topics_new,
            "cacheSize": 0,
        }


def report_of(
    usage: Usage, bundles: Mapping[BundleName, BundleStats], before: Sequence[str], now_ms: int, bundles_max: int
) -> Json:
    """Return the fields of a load report. `before`: the bundles of the last one."""
    heaviest = nlargest(bundles_max, bundles, key=lambda name: bundles[name].weight)
    stats, known = list(bundles.values()), set(before)
    found = usage.to_json() | {
        "msgThroughputIn": sum(each.bytes_in for each in stats),
        "msgThroughputOut": sum(each.bytes_out for each in stats),
        "msgRateIn": sum(each.rate_in for each in stats),
        "msgRateOut": sum(each.rate_out for each in stats),
        "lastUpdate": now_ms,
        "lastStats": {name: bundles[name].to_json() for name in heaviest},
        "numTopics": sum(each.topics for each in stats),
        "numBundles": len(bundles),
        "numConsumers": sum(each.consumers for each in stats),
        "numProducers": sum(each.producers for each in stats),
        "bundles": heaviest,
        "lastBundleGains": [name for name in heaviest if name not in known],
        "lastBundleLosses": sorted(known - bundles.keys()),
    }
    return found | {"maxResourceUsage": _scarcest(found)[0]}


def number_of(data: Any, key: str) -> float:
    """Return a number of a decoded JSON object; 0 if it is missing, of another type, or too large to be true."""
    value = data.get(key) if isinstance(data, dict) else None
    if not isinstance(value, int | float) or isinstance(value, bool):
        return 0.0
    return float(value) if abs(value) <= _NUMBER_MAX else 0.0


def _scarcest(data: Json) -> tuple[float, str]:
    """Return usage and name of the resource that is used most. Resources without a limit do not count."""
    shares = [(0.0, "cpu")]
    for name in _RESOURCES:
        limit = number_of(data.get(name), "limit")
        if limit > 0:
            shares.append((max(0.0, number_of(data.get(name), "usage")) / limit, name))
    return max(shares, key=lambda each: each[0])


def load_of(broker: str, data: Json, reported_s: float) -> BrokerLoad:
    """Decode a report of any broker; missing or invalid fields count as nothing."""
    usage, resource = _scarcest(data)
    stats = data.get("lastStats")
    bundles = tuple(
        BundleLoad(
            BundleName(str(name)),
            int(number_of(each, "topics")),
            int(number_of(each, "producerCount") + number_of(each, "consumerCount")),
            number_of(each, "msgRateIn") + number_of(each, "msgRateOut"),
            number_of(each, "msgThroughputIn") + number_of(each, "msgThroughputOut"),
            _is_new(number_of(each, "topics"), number_of(each, TOPICS_NEW)),
        )
        for name, each in (stats.items() if isinstance(stats, dict) else ())
    )
    return BrokerLoad(
        BrokerId(broker),
        usage,
        resource,
        bundles,
        int(number_of(data, "numBundles")),
        int(number_of(data, "numTopics")),
        number_of(data, "msgRateIn") + number_of(data, "msgRateOut"),
        number_of(data, "msgThroughputIn") + number_of(data, "msgThroughputOut"),
        reported_s,
        data.get(DRAINING) is True,
        int(number_of(data, "lastUpdate")),
    )


def changed_enough(last: BrokerLoad, now: BrokerLoad, settings: BalancingSettings) -> bool:
    """Return whether a report differs so much from the last one that it is worth a write."""
    if last.bundle_count != now.bundle_count or last.draining != now.draining:
        return True
    if any(bundle.is_new for bundle in last.bundles):
        return True  # the leader waits for what it knows now
    if abs(last.usage - now.usage) > settings.report_change:
        return True
    for before, after in ((last.messages_per_s, now.messages_per_s), (last.bytes_per_s, now.bytes_per_s)):
        if abs(after - before) > settings.report_change * max(before, 1.0) and _matters(last, now):
            return True
    return abs(last.topics - now.topics) > settings.report_change * max(last.topics, 10)


def _is_new(topics: float, topics_new: float) -> bool:
    return 2 * topics_new > topics


def _matters(last: BrokerLoad, now: BrokerLoad) -> bool:
    """Return whether either has more than a trickle of traffic, whose rate changes by large factors all the time."""
    return max(weight(each.messages_per_s, each.bytes_per_s, 0) for each in (last, now)) > _TRICKLE
