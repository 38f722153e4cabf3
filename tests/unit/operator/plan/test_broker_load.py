"""The recommended number of brokers, from what they use."""

from dataclasses import replace

import pytest

from quire_operator.api.managed_ledger import BrokerLoad
from quire_operator.cluster.broker_rest import busiest
from quire_operator.plan.broker_load import broker_load
from quire_operator.plan.ledger_observation import LedgerObservation
from quire_operator.plan.managed_ledger import plan_managed_ledger
from tests.unit.operator.plan.test_managed_ledger import seen


def using(*shares: float | None, target: int = 60) -> LedgerObservation:
    """Return the observation in which each broker uses this share."""
    found = seen(brokers={"replicas": len(shares), "targetUsage": target})
    return replace(found, broker_usages={f"orders-broker-{at}": share for at, share in enumerate(shares)})


@pytest.mark.parametrize(
    ("shares", "target", "recommended", "percent"),
    [
        ((0.0,), 60, 1, 0),
        ((0.65,), 60, 1, 65),  # within a tenth
        ((0.67,), 60, 2, 67),
        ((0.9,), 30, 3, 90),
        ((0.9, 0.9), 60, 3, 90),
        ((0.9, 0.1), 60, 2, 50),  # balancing moves bundles, not more brokers
        ((0.2, 0.2, 0.2), 60, 2, 20),  # one would have no room
        ((0.1, 0.1, 0.1), 60, 1, 10),
    ],
)
def test_brokers_are_recommended_by_their_use(
    shares: tuple[float, ...], target: int, recommended: int, percent: int
) -> None:
    found = broker_load(using(*shares, target=target))
    assert found is not None
    assert (found.recommended, found.usage_percent, found.replicas) == (recommended, percent, len(shares))
    assert f"uses {percent} %" in found.message and f"targetUsage is {target}" in found.message


def test_an_unknown_load_recommends_nothing_and_nothing_changes_the_number() -> None:
    assert broker_load(using(0.9, None)) is None
    assert broker_load(using()) is None, "it is stopped"
    found = plan_managed_ledger(using(0.99), "quire:1")
    assert found.status.broker_load is not None and found.status.broker_load.recommended == 2
    assert found.status.replicas == 1


def test_a_recommendation_is_renewed_once_a_minute() -> None:
    first = broker_load(using(0.9))
    assert first is not None

    def later(seconds: float, before: BrokerLoad, *shares: float) -> BrokerLoad | None:
        found = using(*shares)
        status = found.resource.status.model_copy(update={"broker_load": before})
        resource = found.resource.model_copy(update={"status": status})
        return broker_load(replace(found, now_s=found.now_s + seconds, resource=resource))

    assert later(30, first, 0.1) == first
    second = later(61, first, 0.1)
    assert second is not None and second.usage_percent == 10
    third = later(30, first, 0.1, 0.1)
    assert third is not None and third.replicas == 2, "another number of brokers"


@pytest.mark.parametrize(
    ("report", "share"),
    [
        ({"cpu": {"usage": 30.0, "limit": 100.0}, "bandwidthIn": {"usage": 7.0, "limit": 0}}, 0.3),
        ({"cpu": {"usage": 30.0, "limit": 50.0}, "bandwidthOut": {"usage": 9e5, "limit": 1e6}}, 0.9),
        ({"cpu": {"usage": 1.0, "limit": 100.0}, "directMemory": {"usage": 99, "limit": 100}}, 0.01),
        ({"lastUpdate": 1}, None),
        ({"cpu": "much"}, None),
        ({"cpu": {"usage": 1.0, "limit": 0}}, None),
        ([], None),
        (None, None),
    ],
)
def test_the_busiest_resource_of_a_load_report_counts(report: object, share: float | None) -> None:
    assert busiest(report) == share
