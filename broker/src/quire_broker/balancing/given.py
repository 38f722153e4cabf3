"""The bundles that this leader has assigned or ordered to move, with sums of those that no report shows yet.

The sums are kept: a decision costs the same after ten thousand others within a minute as after none. It must never
count a bundle twice, or one that was given to another broker since.
"""

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import field, replace

from quire_bookie.dataclass import dataclass
from quire_broker.balancing.plan.candidates import Rules
from quire_broker.balancing.plan.loads import BrokerId, BrokerLoad
from quire_broker.balancing.plan.placement import Pending
from quire_broker.ownership.owners import Bundle

PENDING_S = 120.0
REPORT_LAG_S = 2.0
_UNITS = 2**53
"""Usages are summed up as integers of this part of the whole: sums and differences of them are exact."""


@dataclass(slots=True, eq=False)
class Given:
    """An assignment that this leader has made, or with `source` a move."""

    bundle: Bundle
    broker: BrokerId
    at_s: float
    usage: float = 0.0
    source: BrokerId | None = None


@dataclass(slots=True)
class _Sum:
    """What one broker was given: in order of time, with the sums of those that count."""

    recent: deque[Given] = field(default_factory=deque)
    counted: set[Given] = field(default_factory=set)
    units: int = 0

    def add(self, given: Given) -> None:
        self.recent.append(given)
        self.counted.add(given)
        self.units += _units(given)

    def drop(self, given: Given) -> None:
        if given in self.counted:
            self.counted.remove(given)
            self.units -= _units(given)

    def expire(self, until_s: float) -> None:
        while self.recent and (self.recent[0].at_s <= until_s or self.recent[0] not in self.counted):
            self.drop(self.recent.popleft())


def _units(given: Given) -> int:
    return round(given.usage * _UNITS)


class GivenBundles:
    """The bundles that were given in one term. The caller removes them: they stay when they no longer count."""

    def __init__(self) -> None:
        self._of: dict[Bundle, Given] = {}
        self._sums: dict[BrokerId, _Sum] = {}
        self._brokers: dict[str, Counter[BrokerId]] = {}
        """How many bundles of each namespace each broker was given."""

    def add(self, given: Given) -> None:
        """Add one in place of an earlier one of its bundle. None that was added before may be younger."""
        earlier = self._of.get(given.bundle)
        if earlier is not None:
            self.remove(earlier)
        self._of[given.bundle] = given
        self._sums.setdefault(given.broker, _Sum()).add(given)
        self._brokers.setdefault(str(given.bundle.namespace), Counter())[given.broker] += 1

    def remove(self, given: Given) -> None:
        """Remove one; does nothing if it was replaced."""
        if self._of.get(given.bundle) is not given:
            return
        del self._of[given.bundle]
        if given.broker in self._sums:
            self._sums[given.broker].drop(given)
        namespace = str(given.bundle.namespace)
        brokers = self._brokers[namespace]
        brokers[given.broker] -= 1
        if not brokers[given.broker]:
            del brokers[given.broker]
        if not brokers:
            del self._brokers[namespace]

    def get(self, bundle: Bundle) -> Given | None:
        """Return the assignment or move of a bundle; None if there is none."""
        return self._of.get(bundle)

    def all(self) -> list[Given]:
        """Return all of them."""
        return list(self._of.values())

    def pending(self, loads: Mapping[BrokerId, BrokerLoad], now_s: float) -> dict[BrokerId, Pending]:
        """Return what each broker was given since its last report."""
        found = {}
        for broker, total in list(self._sums.items()):
            load = loads.get(broker)
            reported_s = load.reported_s if load is not None else 0.0
            total.expire(max(reported_s - REPORT_LAG_S, now_s - PENDING_S))
            if total.counted:
                found[broker] = Pending(len(total.counted), total.units / _UNITS)
            elif not total.recent:
                del self._sums[broker]
        return found

    def placed_in(self, rules: Rules, namespace: str) -> Rules:
        """Return the rules for a bundle of this namespace with those given of its group: no owner may be read yet."""
        group = rules.groups.get(namespace)
        if group is None:
            return rules
        added: dict[BrokerId, set[str]] = {}
        for other, of in rules.groups.items():
            if of == group:
                for broker in self._brokers.get(other, ()):
                    added.setdefault(broker, set()).add(other)
        placed = dict(rules.placed)
        for broker, namespaces in added.items():
            placed[broker] = placed.get(broker, frozenset()) | namespaces
        return replace(rules, placed=placed)
