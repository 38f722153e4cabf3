"""The load of brokers and bundles as values: everything that a decision sees. Pure.

A *usage* is the share of a broker's scarcest resource that is in use: 0.0 is idle, 1.0 is full. The usage that one
bundle causes cannot be measured; it is estimated from the bundle's share of the broker's *weight*.
"""

import re
from collections.abc import Mapping
from typing import NewType

from quire_bookie.dataclass import dataclass

BrokerId = NewType("BrokerId", str)
"""The name under which a broker is registered: host and web port."""
BundleName = NewType("BundleName", str)
"""`tenant/namespace/0xLOW_0xHIGH`."""

BYTES_PER_UNIT = 4096
"""Bytes that cost about as much as one message."""
TOPIC_UNITS = 0.1
"""Weight of a topic without traffic."""
_BUNDLE_NAME = re.compile(r"[^/]+/[^/]+/0x[0-9a-fA-F]+_0x[0-9a-fA-F]+")


def is_bundle_name(text: str) -> bool:
    """Return whether the text has the form of a bundle's name."""
    return _BUNDLE_NAME.fullmatch(text) is not None


def namespace_of(bundle: BundleName) -> str:
    """Return the `tenant/namespace` of a bundle."""
    return bundle.rpartition("/")[0]


def weight(messages_per_s: float, bytes_per_s: float, topics: int) -> float:
    """Return a number that grows with the work that the traffic causes."""
    return messages_per_s + bytes_per_s / BYTES_PER_UNIT + topics * TOPIC_UNITS


@dataclass(frozen=True, slots=True)
class BundleLoad:
    """The load of one bundle: traffic in and out together."""

    name: BundleName
    topics: int = 0
    sessions: int = 0
    """Producers and consumers."""
    messages_per_s: float = 0.0
    bytes_per_s: float = 0.0
    is_new: bool = False
    """Whether its broker has opened most of its topics so recently that it does not know their rates."""

    @property
    def weight(self) -> float:
        """See `weight`."""
        return weight(self.messages_per_s, self.bytes_per_s, self.topics)


@dataclass(frozen=True, slots=True)
class BrokerLoad:
    """The load of one broker, as its last report states it."""

    broker: BrokerId
    usage: float
    resource: str = "cpu"
    """The scarcest resource, whose usage this is."""
    bundles: tuple[BundleLoad, ...] = ()
    """Its most loaded bundles; a report does not contain all of them."""
    bundle_count: int = 0
    topics: int = 0
    messages_per_s: float = 0.0
    bytes_per_s: float = 0.0
    reported_s: float = 0.0
    """The reader's time at which the broker made this report."""
    draining: bool = False
    stated_ms: int = 0
    """The broker's wall clock when it measured."""

    @property
    def weight(self) -> float:
        """See `weight`."""
        return weight(self.messages_per_s, self.bytes_per_s, self.topics)

    def usage_of(self, bundle: BundleLoad) -> float:
        """Estimate the part of the usage that one of its bundles causes."""
        whole = self.weight
        return self.usage * min(1.0, bundle.weight / whole) if whole > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The load of all brokers at one time."""

    now_s: float
    brokers: Mapping[BrokerId, BrokerLoad]

    def usage_of_new(self, weight_known: float | None) -> float:
        """Estimate the usage that a bundle without owner will cause: from its weight, or as an average bundle."""
        loads = [each for each in self.brokers.values() if each.bundle_count]
        usage = sum(each.usage for each in loads)
        if weight_known is not None and (whole := sum(each.weight for each in loads)) > 0:
            return usage * weight_known / whole
        count = sum(each.bundle_count for each in loads)
        return usage / count if count else 0.0
