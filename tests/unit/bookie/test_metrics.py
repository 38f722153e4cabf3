"""Readings as Prometheus text, parsed by Prometheus' own parser."""

import dataclasses
import math
from bisect import bisect_left
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from quire_bookie.admin.names import (
    COLLECTION,
    COMPACTION,
    COMPACTION_SCHEDULE,
    JOURNAL,
    LATENCIES,
    REGISTRATION,
    SCRUBBING,
    SERVER,
    STORAGE,
)
from quire_bookie.journal.writer import JournalStats
from quire_bookie.metrics import (
    LATENCY_BOUNDS_S,
    SKIPPED,
    LatencyHistogram,
    LatencyWindow,
    Reading,
    of_histogram,
    of_stats,
    of_window,
    quantile_s,
    render,
)
from quire_bookie.server.settings import BookieStats
from quire_bookie.server.start.registration import RegistrationStats
from quire_bookie.server.upkeep.compaction_schedule import CompactionScheduleStats
from quire_bookie.server.upkeep.garbage_collection import GarbageCollectionStats
from quire_bookie.server.upkeep.scrubbing import ScrubbingStats
from quire_bookie.storage.compaction import CompactionStats
from quire_bookie.storage.stats import StorageStats


def test_text_survives_prometheus_parser() -> None:
    awkward = 'a"b\\c\nd'
    text = render(
        [
            Reading("one_total", "counter", "first\nline", 3, {"topic": awkward}),
            Reading("two", "gauge", "second", 0.5),
            Reading("one_total", "counter", "first\nline", 4, {"topic": "other"}),
        ]
    )
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert [(s.labels, s.value) for s in families["one"].samples] == [({"topic": awkward}, 3), ({"topic": "other"}, 4)]
    assert families["one"].type == "counter"
    assert families["two"].samples[0].value == 0.5


@pytest.mark.parametrize("bad", [10**400, -(10**400), "12", None, [1]])
def test_a_value_that_is_not_a_number_is_omitted_and_counted(bad: Any) -> None:
    good = Reading("quire_good", "gauge", "text", 7, {"topic": "a"})
    text = render([Reading("quire_quota", "gauge", "text", bad), good, Reading("quire_quota", "gauge", "text", bad)])
    found = {family.name: family.samples for family in text_string_to_metric_families(text)}
    assert sorted(found) == ["quire_good", SKIPPED]
    assert found["quire_good"][0].value == 7
    assert [(sample.labels, sample.value) for sample in found[SKIPPED]] == [({"metric": "quire_quota"}, 2)]


@pytest.mark.parametrize("value", [math.inf, -math.inf, 0, -1.0, 1e300, 10**300, 0.1, True])
def test_every_double_is_shown(value: float) -> None:
    text = render([Reading("quire_good", "gauge", "text", value)])
    (family,) = text_string_to_metric_families(text)
    assert family.samples[0].value == value


def test_members_of_a_family_are_grouped() -> None:
    lines = render([Reading("a", "gauge", "", 1), Reading("b", "gauge", "", 2), Reading("a", "gauge", "", 3)])
    assert [line for line in lines.splitlines() if not line.startswith("#")] == ["a 1", "a 3", "b 2"]


def test_every_counter_of_a_bookie_has_a_name() -> None:
    seen: set[str] = set()
    for stats, names in (
        (BookieStats(), SERVER),
        (JournalStats(), JOURNAL),
        (StorageStats(), STORAGE),
        (GarbageCollectionStats(), COLLECTION),
        (CompactionStats(), COMPACTION),
        (CompactionScheduleStats(), COMPACTION_SCHEDULE),
        (RegistrationStats(), REGISTRATION),
        (ScrubbingStats(), SCRUBBING),
    ):
        fields = {field.name for field in dataclasses.fields(stats)}
        latencies = {name for name in fields if isinstance(getattr(stats, name), LatencyHistogram)}
        assert latencies <= LATENCIES.keys(), "a name in LATENCIES for each histogram"
        fields -= latencies
        # The same deletions are counted by garbage collection, which decides on them.
        assert fields <= set(names) | ({"ledgers_deleted"} if isinstance(stats, StorageStats) else set()), type(stats)
        assert set(names) <= fields, type(stats).__name__
        readings = of_stats(stats, names, {"bookie": "b"})
        assert not seen & {reading.name for reading in readings}, "one name, one meaning"
        seen |= {reading.name for reading in readings}


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


def test_buckets_are_cumulative_as_prometheus_requires() -> None:
    histogram = LatencyHistogram()
    histogram.observe(0.0005, 2)
    histogram.observe(3.0)
    text = render(of_histogram(histogram, "add_seconds", "adds", {"bookie": "b"}))
    (family,) = text_string_to_metric_families(text)
    assert family.type == "histogram"
    values = {(s.name, s.labels.get("le")): s.value for s in family.samples}
    assert values["add_seconds_bucket", "0.0002"] == 0
    assert values["add_seconds_bucket", "0.0005"] == 2
    assert values["add_seconds_bucket", "+Inf"] == 3
    assert values["add_seconds_count", None] == 3
    assert values["add_seconds_sum", None] == pytest.approx(3.001)


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


def test_without_events_there_is_no_quantile_and_nan_is_shown() -> None:
    histogram = LatencyHistogram()
    assert quantile_s(histogram.counts, 0.5) is None
    (family,) = text_string_to_metric_families(render(of_window(histogram, histogram.counts, "x", "text")))
    assert all(math.isnan(s.value) for s in family.samples if "quantile" in s.labels)


def test_a_window_drops_counts_older_than_its_span() -> None:
    histogram, window = LatencyHistogram(), LatencyWindow(60.0)
    histogram.observe(5.0)
    assert sum(window.look(histogram, 0.0)) == 1  # everything, without an earlier copy
    histogram.observe(0.001)
    assert sum(window.look(histogram, 30.0)) == 2
    histogram.observe(0.001)
    assert sum(window.look(histogram, 65.0)) == 2  # since second 0
    assert sum(window.look(histogram, 95.0)) == 1  # since second 30
    assert sum(window.look(histogram, 1000.0)) == 0


def test_often_scraped_windows_keep_few_copies() -> None:
    histogram, window = LatencyHistogram(), LatencyWindow(60.0)
    for tenth in range(10_000):
        window.look(histogram, tenth / 10)
    assert len(window._copies) <= 12


def test_a_window_restarts_with_another_histogram() -> None:
    window, old, new = LatencyWindow(60.0), LatencyHistogram(), LatencyHistogram()
    old.observe(0.1, 10)
    window.look(old, 0.0)
    new.observe(0.1, 2)
    assert sum(window.look(new, 100.0)) == 2
