"""Splits of hot or crowded bundles: when, and at which hash."""

import pytest

from quire_broker.balancing.plan.loads import BundleLoad, BundleName
from quire_broker.balancing.plan.splitting import boundary, plan_splits
from quire_broker.settings.balancing import RANGE_HALF, TOPIC_COUNT, BalancingSettings

AT_ONCE = BalancingSettings(split_hits=1)
NAME = BundleName("shop/orders/0x00000000_0xffffffff")
MIB = 1 << 20


@pytest.mark.parametrize(
    ("load", "reason"),
    [
        (BundleLoad(NAME, topics=1001), "1001 topics, above the limit of 1000"),
        (BundleLoad(NAME, topics=1000, sessions=1000, messages_per_s=30_000, bytes_per_s=100 * MIB), None),
        (BundleLoad(NAME, topics=2, sessions=1001), "1001 producers and consumers, above the limit of 1000"),
        (BundleLoad(NAME, topics=2, messages_per_s=31_000), "31000 messages/s, above the limit of 30000"),
        (BundleLoad(NAME, topics=2, bytes_per_s=101 * MIB), "101 MiB/s, above the limit of 100"),
        (BundleLoad(NAME, topics=1, messages_per_s=31_000), None),
    ],
)
def test_a_bundle_above_a_limit_is_split(load: BundleLoad, reason: str | None) -> None:
    found = plan_splits([load], {"shop/orders": 4}, {}, AT_ONCE)
    assert [each.reason for each in found.splits] == ([] if reason is None else [reason])


def test_a_bundle_is_split_only_after_some_checks_in_a_row() -> None:
    settings, hits = BalancingSettings(), dict[BundleName, int]()
    hot, calm = BundleLoad(NAME, topics=2000), BundleLoad(NAME, topics=2)
    for load, count in ((hot, 0), (hot, 0), (calm, 0), (hot, 0), (hot, 0), (hot, 1)):
        found = plan_splits([load], {"shop/orders": 4}, hits, settings)
        assert len(found.splits) == count
        hits = dict(found.hits)


def test_splits_of_a_check_and_bundles_of_a_namespace_are_bounded() -> None:
    loads = [BundleLoad(BundleName(f"shop/orders/0x{n:08x}_0x{n + 1:08x}"), topics=2000 + n) for n in range(20)]
    assert len(plan_splits(loads, {"shop/orders": 20}, {}, AT_ONCE).splits) == 10
    found = plan_splits(loads, {"shop/orders": 125}, {}, AT_ONCE)
    assert [each.bundle for each in found.splits] == [load.name for load in reversed(loads[-3:])], "the hottest first"
    assert "already has 128 bundles" in found.notes[0]


@pytest.mark.parametrize(
    ("low", "high", "algorithm", "hashes", "expected"),
    [
        (0, 0xFFFFFFFF, RANGE_HALF, [], 0x7FFFFFFF),
        (16, 18, RANGE_HALF, [], 17),
        (16, 17, RANGE_HALF, [], None),
        (0, 100, TOPIC_COUNT, [1, 2, 3, 90], 3),
        (0, 100, TOPIC_COUNT, [1, 1, 1, 9], 5),
        (0, 100, TOPIC_COUNT, [5, 5], None),
        (0, 100, TOPIC_COUNT, [5], None),
        (0, 100, TOPIC_COUNT, [], None),
        (0, 100, TOPIC_COUNT, [0, 1], 1),
        (0, 100, TOPIC_COUNT, [99, 100], None),
    ],
)
def test_a_boundary_divides_the_range_or_the_topics(
    low: int, high: int, algorithm: str, hashes: list[int], expected: int | None
) -> None:
    assert boundary(low, high, algorithm, hashes) == expected


@pytest.mark.parametrize("seed", range(20))
def test_a_division_by_topic_count_leaves_topics_on_both_sides(seed: int) -> None:
    hashes = [(seed + 1) * number * 2_654_435_761 % 1000 for number in range(seed + 2)]
    found = boundary(0, 1000, TOPIC_COUNT, hashes)
    assert found is not None
    below = sum(value < found for value in hashes)
    assert 0 < below < len(hashes)
    assert abs(2 * below - len(hashes)) <= 2
