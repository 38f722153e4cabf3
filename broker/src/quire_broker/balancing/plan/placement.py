"""Decides which broker gets a bundle that has no owner: the least loaded candidate. Pure.

Below the idle threshold usages say little, so brokers are compared by their numbers of bundles. Bundles that were
assigned since a broker's last report count as pending, because its report does not show them yet.
"""

import zlib
from collections.abc import Mapping

from quire_bookie.dataclass import dataclass
from quire_broker.balancing.plan.candidates import Rules, candidates
from quire_broker.balancing.plan.loads import BrokerId, BrokerLoad, BundleName, Snapshot
from quire_broker.settings.balancing import BalancingSettings


@dataclass(frozen=True, slots=True)
class Pending:
    """The bundles that a broker was given since its last report."""

    bundles: int = 0
    usage: float = 0.0


NONE_PENDING = Pending()


@dataclass(frozen=True, slots=True)
class Placement:
    """The chosen broker, with the figures that decided."""

    bundle: BundleName
    broker: BrokerId
    usage: float
    """Of the broker, with its pending bundles, before it gets this one."""
    bundles: int
    added: float
    """The usage that the bundle is expected to cause."""
    candidates: int

    def explain(self) -> str:
        """Describe the decision in one line."""
        return (
            f"{self.bundle} to {self.broker}: the least loaded of {self.candidates} candidates, "
            f"usage {self.usage:.0%}, {self.bundles} bundles; the bundle adds about {self.added:.1%}"
        )


def place(
    bundle: BundleName,
    snapshot: Snapshot,
    rules: Rules,
    pending: Mapping[BrokerId, Pending],
    settings: BalancingSettings,
    *,
    known_weight: float | None = None,
) -> Placement | None:
    """Return the broker that gets the bundle; None if no broker may have it.

    `known_weight`: that of the bundle when it was last owned, or the one that its quota expects.
    """
    found = candidates(bundle, snapshot.brokers.values(), rules)
    if not found:
        return None

    def expected(each: BrokerLoad) -> float:
        return each.usage + pending.get(each.broker, NONE_PENDING).usage

    def count(each: BrokerLoad) -> int:
        return each.bundle_count + pending.get(each.broker, NONE_PENDING).bundles

    def rank(each: BrokerLoad) -> tuple[bool, float, int, int]:
        full = expected(each) > settings.overloaded or each.topics >= settings.topics_max
        tie = zlib.crc32(f"{bundle} {each.broker}".encode())
        return full, max(settings.idle, expected(each)), count(each), tie

    best = min(found, key=rank)
    added = snapshot.usage_of_new(known_weight)
    return Placement(bundle, best.broker, expected(best), count(best), added, len(found))
