"""The load of a bundle that has just moved: the last measured one, until its new owner has measured it."""

import pytest

from quire_broker.balancing.plan.candidates import Rules
from quire_broker.balancing.plan.carried import FORGET_S, Measured, learned, remembered, with_carried
from quire_broker.balancing.plan.loads import BrokerId, BrokerLoad, BundleLoad, BundleName, Snapshot
from quire_broker.balancing.plan.shedding import SheddingState, plan_moves
from quire_broker.settings.balancing import BalancingSettings

A, B = BrokerId("a:1"), BrokerId("b:1")
HOT, COLD = BundleName("shop/orders/0x00000000_0x80000000"), BundleName("shop/orders/0x80000000_0xffffffff")


def of(name: BundleName, rate: float, *, is_new: bool = False, topics: int = 1) -> BundleLoad:
    """A bundle; its messages have ten bytes."""
    return BundleLoad(name, topics, topics, rate, 10 * rate, is_new)


def report(broker: BrokerId, made_s: float, *bundles: BundleLoad, usage: float = 0.5) -> BrokerLoad:
    """A report with these bundles."""
    rates = sum(each.messages_per_s for each in bundles), sum(each.bytes_per_s for each in bundles)
    return BrokerLoad(broker, usage, "cpu", bundles, len(bundles), len(bundles), *rates, made_s)


def completed(*reports: BrokerLoad) -> BrokerLoad:
    """The last of these reports, with what the ones before it have said."""
    known: dict[BundleName, Measured] = {}
    for each in reports[:-1]:
        known |= learned(known, each)
    return with_carried(reports[-1], known)


BEFORE = report(A, 0.0, of(HOT, 50.0))
FIRST = report(B, 10.0, of(HOT, 0.0, is_new=True))
LATER = report(B, 20.0, of(HOT, 5.0, is_new=True))
FULL = report(B, 30.0, of(HOT, 40.0))


@pytest.mark.parametrize(
    ("reports", "rate", "is_new"),
    [
        ([BEFORE], 50.0, False),
        ([BEFORE, FIRST], 50.0, False),
        ([BEFORE, report(A, 9.0), FIRST], 50.0, False),
        ([BEFORE, FIRST, LATER], 50.0, False),
        ([BEFORE, FIRST, LATER, FULL], 40.0, False),
        ([BEFORE, FIRST, FULL, report(A, 40.0, of(HOT, 1.0, is_new=True))], 40.0, False),
        ([BEFORE, report(B, 10.0, of(HOT, 70.0, is_new=True))], 70.0, False),
        ([BEFORE, report(B, 9.0, of(HOT, 0.0, topics=0)), FIRST], 50.0, False),
        ([BEFORE, report(A, 5.0, of(HOT, 3.0)), FIRST], 3.0, False),
        ([FULL, BEFORE, report(A, 40.0, of(HOT, 1.0, is_new=True))], 40.0, False),
        ([FIRST], 0.0, True),
    ],
    ids=[
        "one that has not moved",
        "the first report of the new owner",
        "after one of the old owner without it",
        "a second report before it is measured",
        "the new owner has measured it",
        "it goes back, and its load is that at the owner in between",
        "a higher load is believed at once",
        "no topic of it was open yet",
        "the load before the move is the last one",
        "an old report that arrives late changes nothing",
        "nothing is known of it",
    ],
)
def test_the_load_of_a_bundle(reports: list[BrokerLoad], rate: float, is_new: bool) -> None:
    (hot,) = completed(*reports).bundles
    assert (hot.messages_per_s, hot.bytes_per_s, hot.is_new) == (rate, 10 * rate, is_new)


def test_the_broker_has_the_load_too_and_other_bundles_keep_their_part() -> None:
    both = report(B, 10.0, of(HOT, 0.0, is_new=True), of(COLD, 10.0))
    found = completed(BEFORE, report(B, 0.0, of(COLD, 10.0)), both)
    assert (found.messages_per_s, found.bytes_per_s) == (60.0, 600.0)
    hot, cold = found.bundles
    assert found.usage_of(hot) > 4 * found.usage_of(cold)
    assert both.usage_of(both.bundles[0]) < 0.01, "without it the bundle seems to cost nothing"


def test_a_bundle_whose_load_is_not_known_is_not_moved() -> None:
    settings = BalancingSettings(hits=1)

    def moved(*, is_new: bool) -> list[BundleName]:
        busy = report(B, 10.0, of(HOT, 4.0, is_new=is_new), of(COLD, 10.0, is_new=is_new), usage=0.8)
        seen = Snapshot(10.0, {A: report(A, 10.0, usage=0.1), B: busy})
        return [move.bundle for move in plan_moves(seen, SheddingState(), Rules(), settings).moves]

    assert moved(is_new=False)
    assert not moved(is_new=True)


def test_loads_are_forgotten() -> None:
    known = {HOT: Measured(of(HOT, 1.0), 100.0)}
    assert remembered(known, 100.0 + FORGET_S - 1) == known
    assert not remembered(known, 100.0 + FORGET_S)
