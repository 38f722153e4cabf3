"""Resource quotas: valid values, and that the leader expects their traffic of bundles without a measurement."""

import json
import random
from typing import Any

import pytest

from quire_broker.balancing.events import EventKind
from quire_broker.balancing.history import forget_averages
from quire_broker.balancing.plan.loads import TOPIC_UNITS, BundleName
from quire_broker.balancing.resource_quotas import (
    DEFAULT,
    QUOTAS,
    SHOWN_DEFAULT,
    expected_weight,
    flaw_of_quota,
    weight_of_quota,
)
from tests.sim.metadata import SimMetadata, SimMetadataStore
from tests.unit.broker.balancing.brokers import NAMESPACE, balanced_brokers, until

BUNDLE = BundleName(f"{NAMESPACE}/0x00000000_0x40000000")
QUOTA = {"msgRateIn": 10, "msgRateOut": 20, "bandwidthIn": 4096, "bandwidthOut": 8192, "memory": 5, "dynamic": False}


def test_the_weight_is_that_of_the_traffic() -> None:
    assert flaw_of_quota(QUOTA) is None and flaw_of_quota(SHOWN_DEFAULT) is None
    assert weight_of_quota(QUOTA) == 33
    assert weight_of_quota({"msgRateIn": "many", "bandwidthIn": float("inf")}) == 0


@pytest.mark.parametrize(
    "change",
    [{"msgRateIn": -1}, {"msgRateIn": "10"}, {"msgRateIn": None}, {"dynamic": 1}, {"cpu": 1}, {"memory": float("nan")}],
    ids=repr,
)
def test_other_values_are_refused(change: dict[str, Any]) -> None:
    assert "a resource quota must be" in (flaw_of_quota(QUOTA | change) or "")


def test_a_wrong_value_is_reported_before_a_missing_field() -> None:
    assert "whose field msgRateIn is a number" in (flaw_of_quota({"msgRateIn": -1}) or "")
    assert "with the field msgRateOut" in (flaw_of_quota({"msgRateIn": 1}) or "")


async def test_the_quota_of_a_bundle_goes_before_the_default_and_a_damaged_one_does_not_count() -> None:
    store = SimMetadataStore(SimMetadata(random.Random(1), delay_s=(0.0, 0.0)))
    assert await expected_weight(store, BUNDLE) is None
    await store.put(f"{QUOTAS}/{DEFAULT}", json.dumps(QUOTA).encode())
    assert await expected_weight(store, BUNDLE) == 33
    await store.put(f"{QUOTAS}/{BUNDLE}", json.dumps(QUOTA | {"msgRateIn": 110}).encode())
    assert await expected_weight(store, BUNDLE) == 133
    await store.put(f"{QUOTAS}/{BUNDLE}", b"[")
    assert await expected_weight(store, BUNDLE) == 33
    await forget_averages(store, NAMESPACE)
    assert await store.get(f"{QUOTAS}/{BUNDLE}") is None


@pytest.mark.parametrize(("quota", "added"), [(None, "about 50.0%"), (QUOTA, "about 75.0%")], ids=["none", "stored"])
async def test_the_leader_assigns_a_new_bundle_with_the_traffic_of_its_quota(quota: Any, added: str) -> None:
    async with balanced_brokers("a b", bundles=4) as brokers:
        first = brokers[0]
        await first.find(0)
        await until(lambda: any(broker.owners.held for broker in brokers))
        owner = next(broker for broker in brokers if broker.owners.held)
        (held,) = owner.owners.held
        await owner.report(50.0, **{held.range[:4]: 22.0 - TOPIC_UNITS})
        await next(broker for broker in brokers if broker is not owner).report(0.0)
        view = first.balancing.leader.view
        await until(lambda: {load.usage for load in view().values()} == {0.5, 0.0})
        if quota is not None:
            await first.session.put(f"{QUOTAS}/{DEFAULT}", json.dumps(quota).encode())
        for number in range(1, 100):
            if sum(len(broker.owners.held) for broker in brokers) == 1:
                await first.find(number)
        told = [event.text for event in first.balancing.events.last if event.kind is EventKind.ASSIGNED]
        assert added in told[-1]
