"""Percentiles of latencies that are counted in buckets."""

import random

import pytest

from quire_broker.cli.latencies import Latencies


def test_percentiles_are_those_of_the_values_within_one_percent() -> None:
    chance = random.Random(7)
    values = sorted(chance.lognormvariate(-5, 2) + 1e-5 for _ in range(10_000))
    found = Latencies()
    for value in values:
        found.add(value)
    for share in (0.001, 0.5, 0.9, 0.99, 0.999):
        exact = values[max(0, round(share * len(values)) - 1)]
        assert found.percentile_s(share) == pytest.approx(exact, rel=0.011), share
    assert found.percentile_s(1.0) == found.max_s == values[-1]


def test_a_latency_counts_as_often_as_it_has_messages() -> None:
    found = Latencies()
    found.add(1.0, 99)
    found.add(5.0)
    assert (found.count, found.max_s) == (100, 5.0)
    assert found.percentile_s(0.99) == pytest.approx(1.0, rel=0.011)
    assert found.percentile_s(0.999) == 5.0


def test_without_messages_there_is_no_percentile_and_times_of_zero_are_counted() -> None:
    assert Latencies().percentile_s(0.5) is None
    found = Latencies()
    found.add(0.0)
    assert found.percentile_s(0.5) is not None
