"""Placement of bundles without owner: the least loaded candidate, with the bundles that are pending."""

from typing import Any

import pytest

from quire_broker.balancing.plan.candidates import Rules
from quire_broker.balancing.plan.loads import BrokerId, BrokerLoad, BundleName, Snapshot
from quire_broker.balancing.plan.placement import NONE_PENDING, Pending, place
from quire_broker.settings.balancing import BalancingSettings

SETTINGS = BalancingSettings()
A, B, C = (BrokerId(f"{name}:1") for name in "abc")


def bundle(number: int) -> BundleName:
    return BundleName(f"shop/orders/0x{number:08x}_0x{number + 1:08x}")


def snapshot(**usages: float | tuple[float, dict[str, Any]]) -> Snapshot:
    found = {}
    for name, value in usages.items():
        usage, values = value if isinstance(value, tuple) else (value, {})
        found[BrokerId(f"{name}:1")] = BrokerLoad(BrokerId(f"{name}:1"), usage, **values)
    return Snapshot(0.0, found)


@pytest.mark.parametrize(
    ("seen", "pending", "chosen"),
    [
        (snapshot(a=0.5, b=0.3, c=0.6), {}, B),
        (snapshot(a=0.5, b=0.3, c=0.6), {B: Pending(3, 0.25)}, A),
        (snapshot(a=(0.15, {"bundle_count": 5}), b=(0.01, {"bundle_count": 6})), {}, A),
        (snapshot(a=(0.15, {"bundle_count": 5}), b=(0.01, {"bundle_count": 6})), {A: Pending(2, 0.0)}, B),
        (snapshot(a=(0.3, {"topics": 50_000}), b=0.6), {}, B),
        (snapshot(a=0.9, b=0.86), {}, B),
    ],
)
def test_the_least_loaded_candidate_is_chosen(
    seen: Snapshot, pending: dict[BrokerId, Pending], chosen: BrokerId
) -> None:
    found = place(bundle(1), seen, Rules(), pending, SETTINGS)
    assert found is not None
    assert found.broker == chosen


def test_without_a_candidate_there_is_no_placement() -> None:
    policies = {"shop": {"namespaces": ["shop/.*"], "primary": ["z"]}}
    assert place(bundle(1), snapshot(a=0.1), Rules(isolation=policies), {}, SETTINGS) is None
    assert place(bundle(1), Snapshot(0.0, {}), Rules(), {}, SETTINGS) is None


def test_bundles_of_an_idle_cluster_are_spread_evenly() -> None:
    seen, pending = snapshot(a=0.05, b=0.11, c=0.02), dict[BrokerId, Pending]()
    for number in range(60):
        found = place(bundle(number), seen, Rules(), pending, SETTINGS)
        assert found is not None
        before = pending.get(found.broker, NONE_PENDING)
        pending[found.broker] = Pending(before.bundles + 1, before.usage + found.added)
    assert {broker: each.bundles for broker, each in pending.items()} == {A: 20, B: 20, C: 20}


def test_equal_brokers_do_not_all_get_the_first_bundle() -> None:
    chosen = {place(bundle(number), snapshot(a=0.0, b=0.0, c=0.0), Rules(), {}, SETTINGS) for number in range(30)}
    assert {each.broker for each in chosen if each} == {A, B, C}


def test_a_hot_bundle_counts_with_its_last_known_weight() -> None:
    seen = snapshot(a=(0.4, {"bundle_count": 2, "messages_per_s": 4000.0}), b=(0.0, {"bundle_count": 0}))
    found = place(bundle(1), seen, Rules(), {}, SETTINGS, known_weight=1000.0)
    assert found is not None
    assert found.added == pytest.approx(0.1)
    unknown = place(bundle(1), seen, Rules(), {}, SETTINGS)
    assert unknown is not None
    assert unknown.added == pytest.approx(0.2), "that of an average bundle"


def test_an_explanation_states_the_figures() -> None:
    found = place(bundle(1), snapshot(a=0.5, b=(0.3, {"bundle_count": 4})), Rules(), {}, SETTINGS)
    assert found is not None
    assert found.explain() == (
        "shop/orders/0x00000001_0x00000002 to b:1: the least loaded of 2 candidates, usage 30%, 4 bundles; "
        "the bundle adds about 7.5%"
    )
