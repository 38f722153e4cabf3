"""The zone of each broker is its failure domain; brokers of others are left alone."""

from dataclasses import replace

from quire_operator.plan.actions import SetFailureDomain
from quire_operator.plan.failure_domains import failure_domains
from quire_operator.plan.ledger_observation import LedgerObservation
from quire_operator.plan.managed_ledger import plan_managed_ledger
from quire_operator.plan.observation import ObservedPod, ObservedStatefulSet
from tests.unit.operator.plan.test_managed_ledger import seen

OTHER = "billing-broker-0.billing-brokers.ns.svc:8080"


def broker(ordinal: int) -> str:
    return f"orders-broker-{ordinal}.orders-brokers.ns.svc:8080"


def world(domains: dict[str, tuple[str, ...]] | None, *zones: str | None) -> LedgerObservation:
    pods = tuple(
        ObservedPod(f"orders-broker-{number}", f"u{number}", ready=True, zone=zone) for number, zone in enumerate(zones)
    )
    stateful_set = ObservedStatefulSet("orders-broker", "u", len(zones))
    given = seen(brokers={"replicas": len(zones)})
    return replace(given, pods=pods, stateful_set=stateful_set, failure_domains=domains)


def test_brokers_are_in_the_domain_of_their_zone() -> None:
    assert failure_domains(world({}, "a", "b", "a")) == [
        SetFailureDomain("a", (broker(0), broker(2))),
        SetFailureDomain("b", (broker(1),)),
    ]
    assert failure_domains(world({"a": (broker(2), broker(0)), "b": (broker(1),)}, "a", "b", "a")) == []


def test_brokers_of_others_stay_and_ours_follow_their_pods() -> None:
    there = {"a": (OTHER, broker(0), broker(7)), "b": (broker(1),)}
    assert failure_domains(world(there, "b", "b")) == [
        SetFailureDomain("a", (OTHER,)),
        SetFailureDomain("b", (broker(0), broker(1))),
    ]


def test_a_broker_whose_zone_is_not_known_stays() -> None:
    assert failure_domains(world({"a": (broker(0),)}, None, "a")) == [SetFailureDomain("a", (broker(0), broker(1)))]


def test_a_node_without_a_zone_is_in_no_domain() -> None:
    assert failure_domains(world({}, "", "")) == []


def test_the_plan_sets_them_only_if_they_are_known() -> None:
    assert SetFailureDomain("a", (broker(0), broker(1))) in plan_managed_ledger(world({}, "a", "a"), "quire:1").actions
    unknown = plan_managed_ledger(world(None, "a", "a"), "quire:1")
    assert not [one for one in unknown.actions if isinstance(one, SetFailureDomain)]
