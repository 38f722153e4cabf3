"""Decides which brokers may own a bundle: isolation policies, anti-affinity, draining brokers. Pure.

Anti-affinity: of the candidates, those remain whose failure domain has the fewest other namespaces of the bundle's
group, and of these the ones that themselves have the fewest. Namespaces without a group may be anywhere.
"""

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any

from quire_bookie.dataclass import dataclass
from quire_broker.balancing.plan.loads import BrokerId, BrokerLoad, BundleName, namespace_of
from quire_broker.ownership.isolation import host_of, policy_for


@dataclass(frozen=True, slots=True)
class Rules:
    """What administrators have stored about where bundles may be."""

    isolation: Mapping[str, Any] = field(default_factory=dict)
    """Namespace isolation policies by name, in Pulsar's JSON."""
    groups: Mapping[str, str] = field(default_factory=dict)
    """The anti-affinity group of each namespace that has one."""
    domains: Mapping[BrokerId, str] = field(default_factory=dict)
    """The failure domain of each broker that has one. A broker without one is a domain by itself."""
    placed: Mapping[BrokerId, frozenset[str]] = field(default_factory=dict)
    """The namespaces with a group of which each broker has a bundle."""

    def domain_of(self, broker: BrokerId) -> str:
        """Return the broker's failure domain."""
        return self.domains.get(broker, f"broker {broker}")


def candidates(bundle: BundleName, brokers: Iterable[BrokerLoad], rules: Rules) -> list[BrokerLoad]:
    """Return the brokers that may own the bundle now, in their order."""
    namespace = namespace_of(bundle)
    found = [each for each in brokers if not each.draining]
    policy = policy_for(namespace, dict(rules.isolation))
    if policy is not None:
        allowed = policy.allowed(host_of(each.broker) for each in found)
        found = [each for each in found if host_of(each.broker) in allowed]
    group = rules.groups.get(namespace)
    return found if group is None else _least_affine(namespace, group, found, rules)


def _least_affine(namespace: str, group: str, found: list[BrokerLoad], rules: Rules) -> list[BrokerLoad]:
    others = frozenset(each for each, of in rules.groups.items() if of == group and each != namespace)

    def of_broker(broker: BrokerId) -> frozenset[str]:
        return others & rules.placed.get(broker, frozenset())

    by_domain: dict[str, set[str]] = {}
    for broker in {*rules.placed, *(each.broker for each in found)}:
        by_domain.setdefault(rules.domain_of(broker), set()).update(of_broker(broker))
    ranks = {each.broker: (len(by_domain[rules.domain_of(each.broker)]), len(of_broker(each.broker))) for each in found}
    least = min(ranks.values(), default=(0, 0))
    return [each for each in found if ranks[each.broker] == least]
