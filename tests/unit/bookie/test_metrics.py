"""Histograms of latencies, their quantiles, and windows over them."""

import math
from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire_bookie.metrics import LATENCY_BOUNDS_S, LatencyHistogram, LatencyWindow, quantile_s


def test_a_latency_falls_into_the_bucket_whose_bound_it_does_not_exceed() -> None:
    histogram = LatencyHistogram()
    histogram.observe(0.001, 3)
    histogram.observe(0.0011)
    histogram.observe(99.0)
    at = LATENCY_BOUNDS_S.index(0.001)
    assert histogram.counts[at] == 3
    assert histogram.counts[at + 1] == 1
    assert histogram.counts[-1] == 1
    assert histogram.total == 5
    assert histogram.seconds == pytest.approx(99.0041)


@given(st.lists(st.floats(0.00001, 29.0), min_size=1), st.sampled_from([0.5, 0.99, 1.0]))
def test_a_quantile_lies_in_the_bucket_of_its_value(seconds: list[float], share: float) -> None:
    histogram = LatencyHistogram()
    for each in seconds:
        histogram.observe(each)
    exact = sorted(seconds)[max(0, math.ceil(share * len(seconds)) - 1)]
    bucket = bisect_left(LATENCY_BOUNDS_S, exact)
    found = quantile_s(histogram.counts, share)
    assert found is not None
    assert (LATENCY_BOUNDS_S[bucket - 1] if bucket else 0.0) <= found <= LATENCY_BOUNDS_S[bucket] * 1.000001


def test_without_events_there_is_no_quantile() -> None:
    assert quantile_s(LatencyHistogram().counts, 0.5) is None


def test_a_window_drops_counts_older_than_its_span() -> None:
    histogram, window = LatencyHistogram(), LatencyWindow(60.0)
    histogram.observe(5.0)
    assert sum(window.counts(histogram, 0.0)) == 1  # everything, without an earlier copy
    histogram.observe(0.001)
    assert sum(window.counts(histogram, 30.0)) == 2
    histogram.observe(0.001)
    assert sum(window.counts(histogram, 65.0)) == 2  # since second 0
    assert sum(window.counts(histogram, 95.0)) == 1  # since second 30
    assert sum(window.counts(histogram, 1000.0)) == 0


def test_often_scraped_windows_keep_few_copies() -> None:
    histogram, window = LatencyHistogram(), LatencyWindow(60.0)
    for tenth in range(10_000):
        window.counts(histogram, tenth / 10)
    assert len(window._copies) <= 12


def test_a_window_restarts_with_another_histogram() -> None:
    window, old, new = LatencyWindow(60.0), LatencyHistogram(), LatencyHistogram()
    old.observe(0.1, 10)
    window.counts(old, 0.0)
    new.observe(0.1, 2)
    assert sum(window.counts(new, 100.0)) == 2
