"""Counters as metric families, in the library's classic text and in OpenMetrics."""

import math
from itertools import count

import pytest
from prometheus_client.exposition import choose_encoder, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families

from quire_bookie import limits
from quire_bookie.exposition.families import Families, Names, PublishedCounterFamily, numbers, pieces
from quire_bookie.metrics import LatencyHistogram
from quire_bookie.storage.stats import StorageStats
from tests.support.scrapes import ACCEPT_OPENMETRICS


class Collected:
    """A collector of these families."""

    def __init__(self, *families: Metric) -> None:
        self._families = families

    def collect(self) -> tuple[Metric, ...]:
        return self._families


def classic(families: Families) -> str:
    return generate_latest(Collected(*families)).decode()


@pytest.mark.parametrize(
    "name", ["bookkeeper_server_ADD_ENTRY_count", "bookie_MINOR_COMPACTION_TOTAL", "quire_things", "things_total_count"]
)
def test_a_counter_keeps_the_name_under_which_it_is_published(name: str) -> None:
    families = Families()
    families.add(name, "counter", "things", 7, {"bookie": "b"})
    expected = [f"# HELP {name} things", f"# TYPE {name} counter", f'{name}{{bookie="b"}} 7.0']
    assert classic(families).splitlines() == expected
    (family,) = families
    assert isinstance(family, PublishedCounterFamily)
    encode, _ = choose_encoder(ACCEPT_OPENMETRICS)
    text = encode(Collected(family.without_type())).decode()
    assert text.splitlines() == [expected[0], f"# TYPE {name} unknown", expected[2], "# EOF"]


def test_kind_and_name_choose_the_family() -> None:
    assert isinstance(numbers("a_total", "counter", "t", ()), CounterMetricFamily)
    assert isinstance(numbers("a", "counter", "t", ()), PublishedCounterFamily)
    assert isinstance(numbers("a_total", "gauge", "t", ()), GaugeMetricFamily)


def test_members_of_a_family_are_grouped_and_awkward_labels_survive() -> None:
    awkward, families = 'a"b\\c\nd', Families()
    families.add("one_total", "counter", "first\nline", 3, {"topic": awkward})
    families.add("two", "gauge", "second", 0.5, {})
    families.add("one_total", "counter", "first\nline", 4, {"topic": "other"})
    one, two = text_string_to_metric_families(classic(families))
    assert (one.name, one.type, one.documentation) == ("one", "counter", "first\nline")
    assert [(s.labels, s.value) for s in one.samples] == [({"topic": awkward}, 3), ({"topic": "other"}, 4)]
    assert (two.name, two.samples[0].value) == ("two", 0.5)


def test_the_attributes_of_a_stats_object_are_added_by_their_names() -> None:
    families = Families()
    names: Names = {
        "entries_put": ("bookie_BOOKIE_ADD_ENTRY_count", "counter", "entries"),
        "flushes": ("quire_storage_flushes", "gauge", "f"),
    }
    families.add_stats(StorageStats(entries_put=3, flushes=2), names, {"bookie": "b"})
    assert [(s.name, s.labels, s.value) for family in families for s in family.samples] == [
        ("bookie_BOOKIE_ADD_ENTRY_count", {"bookie": "b"}, 3),
        ("quire_storage_flushes", {"bookie": "b"}, 2),
    ]


def test_buckets_are_cumulative_and_those_of_several_bookies_are_one_family() -> None:
    histogram, other, families = LatencyHistogram(), LatencyHistogram(), Families()
    histogram.observe(0.0005, 2)
    histogram.observe(3.0)
    families.add_histogram(histogram, "add_seconds", "adds", {"bookie": "b"})
    families.add_histogram(other, "add_seconds", "adds", {"bookie": "c"})
    (family,) = text_string_to_metric_families(classic(families))
    assert family.type == "histogram"
    values = {(s.name, s.labels["bookie"], s.labels.get("le")): s.value for s in family.samples}
    assert values["add_seconds_bucket", "b", "0.0002"] == 0
    assert values["add_seconds_bucket", "b", "0.0005"] == 2
    assert values["add_seconds_bucket", "b", "+Inf"] == 3
    assert values["add_seconds_count", "b", None] == 3
    assert values["add_seconds_sum", "b", None] == pytest.approx(3.001)
    assert values["add_seconds_count", "c", None] == 0


def test_a_window_is_a_summary_in_ms_whose_quantiles_are_nan_without_events() -> None:
    histogram, families = LatencyHistogram(), Families()
    families.add_window(histogram, histogram.counts, "x", "text", {"success": "true"})
    histogram.observe(0.002, 2)
    families.add_window(histogram, histogram.counts, "x", "text", {"success": "false"})
    (family,) = text_string_to_metric_families(classic(families))
    assert family.type == "summary"
    values = {(s.name, s.labels["success"], s.labels.get("quantile")): s.value for s in family.samples}
    assert math.isnan(values["x", "true", "0.99"])
    assert values["x", "false", "1.0"] == pytest.approx(2.0)
    assert values["x_count", "false", None] == 2
    assert values["x_sum", "false", None] == pytest.approx(4.0)


def test_a_large_family_comes_in_pieces_that_read_their_values_late() -> None:
    read = count()
    rows = ((("t",), float(next(read))) for _ in range(2 * limits.SCRAPE_PIECE_SAMPLES + 1))
    found = pieces("quire_x", "gauge", "x", ("topic",), rows)
    assert len(next(found).samples) == limits.SCRAPE_PIECE_SAMPLES == next(read)
    assert [len(piece.samples) for piece in found] == [limits.SCRAPE_PIECE_SAMPLES, 1]


def test_without_rows_there_is_no_family() -> None:
    assert not list(pieces("quire_x", "gauge", "x", ("topic",), ()))
