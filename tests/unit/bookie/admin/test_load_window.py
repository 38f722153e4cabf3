"""The load of a bookie over the last minute, from copies of its counters."""

from dataclasses import replace

import pytest

from quire_bookie.admin.load_window import Counters, LoadWindow
from quire_bookie.metrics import LATENCY_BOUNDS_S

BUCKETS = len(LATENCY_BOUNDS_S) + 1


def counts(**by_seconds: int) -> tuple[int, ...]:
    """Return the counts by bucket: `counts(ms2=10)` has ten events of 2 ms."""
    found = [0] * BUCKETS
    for name, count in by_seconds.items():
        found[LATENCY_BOUNDS_S.index(int(name.removeprefix("ms")) / 1000)] = count
    return tuple(found)


START = Counters(100.0, counts(ms500=50), counts(ms500=50), 10**6, 10**7, 5.0)
LATER = Counters(160.0, counts(ms500=50, ms2=100), counts(ms500=50, ms5=1000), 4 * 10**6, 10**7 + 9, 11.0)


def test_the_load_is_known_a_minute_after_the_first_request() -> None:
    window = LoadWindow()
    assert window.load(START) is None
    assert window.load(replace(LATER, at_s=159.0)) is None
    found = window.load(LATER)
    assert found is not None
    assert (found.window_s, found.journal_writes, found.adds) == (60.0, 100, 1000)
    assert (found.added_bytes, found.read_bytes, found.cpu_s) == (3 * 10**6, 9, 6.0)
    assert found.journal_write_p99_s == pytest.approx(0.002, rel=0.02), "the slow writes before the window do not count"
    assert found.add_p99_s == pytest.approx(0.005, rel=0.02)


def test_without_writes_there_is_no_latency() -> None:
    window = LoadWindow()
    window.load(START)
    found = window.load(replace(START, at_s=161.0))
    assert found is not None
    assert (found.journal_writes, found.journal_write_p99_s, found.adds, found.add_p99_s) == (0, None, 0, None)


def test_requests_far_apart_get_the_time_between_them_and_frequent_ones_keep_few_copies() -> None:
    window = LoadWindow()
    window.load(START)
    found = window.load(replace(LATER, at_s=400.0))
    assert found is not None and found.window_s == 300.0
    for tenth in range(10_000):
        found = window.load(replace(LATER, at_s=400.0 + tenth / 10))
    assert found is not None and 60.0 <= found.window_s < 70.0
    assert len(window._copies) <= 10


def test_a_bookie_with_new_counters_begins_again() -> None:
    window = LoadWindow()
    window.load(LATER)
    assert window.load(Counters(300.0, counts(), counts(), 0, 0, 12.0)) is None
    found = window.load(Counters(360.0, counts(ms2=3), counts(), 0, 0, 12.0))
    assert found is not None and found.journal_writes == 3
