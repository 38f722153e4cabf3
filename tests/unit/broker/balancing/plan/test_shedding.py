"""Moves away from overloaded brokers: when, which bundles, where to, and what holds them back."""

from dataclasses import replace
from typing import Any

import pytest

from quire_broker.balancing.plan.candidates import Rules
from quire_broker.balancing.plan.loads import BrokerId, BrokerLoad, BundleLoad, BundleName, Snapshot
from quire_broker.balancing.plan.shedding import SheddingPlan, SheddingState, plan_moves
from quire_broker.settings.balancing import BalancingSettings

AT_ONCE = BalancingSettings(hits=1)
NOW = 10_000.0
A, B, C = (BrokerId(f"{name}:1") for name in "abc")


def broker(name: BrokerId, usage: float, *rates: float, **values: Any) -> BrokerLoad:
    """Return a broker with one bundle for each rate."""
    bundles = tuple(
        BundleLoad(BundleName(f"shop/{name[0]}{number}/0x00000000_0xffffffff"), messages_per_s=rate)
        for number, rate in enumerate(rates)
    )
    given: dict[str, Any] = {"bundle_count": len(rates), "messages_per_s": sum(rates), "reported_s": NOW} | values
    return BrokerLoad(name, usage, bundles=bundles, **given)


def plan(
    *brokers: BrokerLoad,
    state: SheddingState | None = None,
    rules: Rules | None = None,
    settings: BalancingSettings = AT_ONCE,
) -> SheddingPlan:
    seen = Snapshot(NOW, {each.broker: each for each in brokers})
    return plan_moves(seen, state or SheddingState(), rules or Rules(), settings)


def moves(found: SheddingPlan) -> list[str]:
    return [f"{each.bundle.split('/')[1]} {each.source[0]}->{each.target[0]}" for each in found.moves]


@pytest.mark.parametrize(
    ("brokers", "expected"),
    [
        ([broker(A, 0.9, 45, 45), broker(B, 0.0)], ["a0 a->b"]),
        ([broker(A, 0.8, 10, 20, 30, 20), broker(B, 0.2, 20)], ["a2 a->b"]),
        ([broker(A, 0.5, 25, 25), broker(B, 0.45, 45)], []),
        ([broker(A, 0.19, 10, 9), broker(B, 0.0)], []),
        ([broker(A, 0.9, 90), broker(B, 0.0)], []),
        ([broker(A, 0.8, 50, 10, 10, 10), broker(B, 0.2, 20)], ["a1 a->b", "a2 a->b", "a3 a->b"]),
        ([broker(A, 0.95, 95), broker(B, 0.9, 45, 45)], []),
        ([broker(A, 0.9, 30, 30, 30), broker(B, 0.1, 10), broker(C, 0.0)], ["a0 a->c", "a1 a->b"]),
        ([broker(A, 0.8, 40, 40), broker(B, 0.0, draining=True), broker(C, 0.36, 36)], []),
        ([broker(A, 0.8, 40, 40), broker(B, 0.0, draining=True), broker(C, 0.3, 30)], ["a0 a->c"]),
        ([broker(A, 0.8, 60, 20), broker(B, 0.0, draining=True), broker(C, 0.3, 30)], ["a1 a->c"]),
        ([broker(A, 0.9, 45, 45)], []),
        ([broker(A, 0.9, 45, 45), broker(B, 0.0, reported_s=NOW - 1801)], []),
        ([broker(A, 0.9, 45, 45, reported_s=NOW - 1801), broker(B, 0.0)], []),
    ],
)
def test_the_largest_bundles_that_help_move_to_the_least_loaded_broker(
    brokers: list[BrokerLoad], expected: list[str]
) -> None:
    assert moves(plan(*brokers)) == expected


def test_a_broker_sheds_only_after_some_rounds_in_a_row() -> None:
    settings, state = BalancingSettings(), SheddingState()
    high, calm = (broker(A, 0.9, 45, 45), broker(B, 0.1)), (broker(A, 0.5, 45, 45), broker(B, 0.45))
    for brokers, count in ((high, 0), (high, 0), (calm, 0), (high, 0), (high, 0), (high, 1)):
        found = plan(*brokers, state=state, settings=settings)
        assert len(found.moves) == count
        state = state.after(found, NOW, settings)
    assert state.moved == {BundleName("shop/a0/0x00000000_0xffffffff"): NOW}
    assert state.touched == {A: NOW, B: NOW}


def test_a_broker_that_has_begun_sheds_until_it_is_below_the_low_mark() -> None:
    settings = BalancingSettings()
    brokers = broker(A, 0.57, *[6.0] * 9), broker(B, 0.43, 43)
    assert not plan(*brokers, settings=settings).moves
    found = plan(*brokers, state=SheddingState(sources=frozenset({A})), settings=settings)
    assert moves(found) == ["a0 a->b"]
    assert not plan(broker(A, 0.54, 54), broker(B, 0.46), state=SheddingState(sources=frozenset({A}))).sources


def test_a_report_from_before_a_move_is_not_trusted() -> None:
    brokers = broker(A, 0.9, 45, 45, reported_s=NOW - 200), broker(B, 0.0)
    for touched_s, settled in ((NOW - 190, False), (NOW - 210, True), (NOW - 100, False)):
        found = plan(*brokers, state=SheddingState(touched={A: touched_s}))
        assert bool(found.moves) is settled
        assert bool(found.notes) is not settled


def test_a_moved_bundle_stays_for_the_grace_period() -> None:
    name = BundleName("shop/a0/0x00000000_0xffffffff")
    brokers = broker(A, 0.9, 45, 45), broker(B, 0.0)
    assert moves(plan(*brokers, state=SheddingState(moved={name: NOW - 1799}))) == ["a1 a->b"]
    assert moves(plan(*brokers, state=SheddingState(moved={name: NOW - 1800}))) == ["a0 a->b"]


def test_moves_within_a_minute_are_bounded() -> None:
    settings = replace(AT_ONCE, moves_per_minute_max=5)
    brokers = broker(A, 0.8, *[4.0] * 20), broker(B, 0.0)
    assert len(plan(*brokers, settings=settings).moves) == 5
    state = SheddingState(recent=(NOW - 61, NOW - 59, NOW - 1, NOW))
    assert len(plan(*brokers, state=state, settings=settings).moves) == 2
    found = plan(*brokers, state=SheddingState(recent=(NOW,) * 5), settings=settings)
    assert not found.moves
    assert "at most 5 are made in a minute" in found.notes[-1]


def test_moves_above_the_limit_wait_and_are_made_later() -> None:
    settings = replace(AT_ONCE, moves_per_minute_max=5)
    brokers = broker(A, 0.8, *[4.0] * 20), broker(B, 0.0)
    first = plan(*brokers, settings=settings)
    assert (len(first.moves), len(first.queued)) == (5, 4)
    later = plan(*brokers, state=SheddingState(queued=first.queued), settings=settings)
    assert (later.moves, later.queued) == (first.queued, ()), "the old reports lead to no further move"
    assert not plan(
        brokers[0], broker(C, 0.0), state=SheddingState(queued=first.queued), settings=BalancingSettings()
    ).moves
    draining = brokers[0], broker(B, 0.0, draining=True)
    assert not plan(*draining, state=SheddingState(queued=first.queued), settings=BalancingSettings()).moves
    for silent in (A, B):
        old = [replace(each, reported_s=NOW - 1801) if each.broker == silent else each for each in brokers]
        found = plan(*old, state=SheddingState(queued=first.queued), settings=settings)
        assert (found.moves, found.queued) == ((), ()), f"the report of {silent} is too old when the moves start"


def test_isolation_and_anti_affinity_hold_for_targets() -> None:
    brokers = broker(A, 0.9, 45, 45), broker(B, 0.0), broker(C, 0.0)
    isolated = Rules(isolation={"x": {"namespaces": ["shop/a0"], "primary": ["a"]}})
    assert moves(plan(*brokers, rules=isolated)) == ["a1 a->b"]
    grouped = Rules(groups={"shop/a0": "g", "shop/other": "g"}, placed={B: frozenset({"shop/other"})})
    assert moves(plan(*brokers, rules=grouped)) == ["a0 a->c"]
    at_home = Rules(
        groups={"shop/a0": "g", "shop/other": "g"},
        placed={B: frozenset({"shop/other"}), C: frozenset({"shop/other"})},
    )
    assert moves(plan(*brokers, rules=at_home)) == ["a1 a->b"]


def test_a_move_states_its_figures() -> None:
    (move,) = plan(broker(A, 0.9, 40, 50, resource="memory"), broker(B, 0.1)).moves
    assert move.explain() == (
        "shop/a0/0x00000000_0xffffffff from a:1 to b:1: the source uses 90% of its memory, the average is 50%, the "
        "target 10%; the bundle causes about 40.0%, so that they become 50% and 50%"
    )
