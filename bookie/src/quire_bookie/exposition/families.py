"""Builds the metric families of one scrape from counters. Owners of the counters choose names and values.

BookKeeper's and Pulsar's names are kept exactly, since dashboards and alerts use them. Many of BookKeeper's counters,
and ours beside them, do not end in `_total`, which OpenMetrics requires of a counter: see `PublishedCounterFamily`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Literal

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
    UnknownMetricFamily,
)

from quire_bookie import limits
from quire_bookie.metrics import LATENCY_BOUNDS_S, LatencyHistogram, quantile_s

Kind = Literal["counter", "gauge"]
Names = Mapping[str, tuple[str, Kind, str]]
"""Attribute of a Stats object: name, kind, help text."""
_TOTAL = "_total"
_BOUNDS = (*map(repr, LATENCY_BOUNDS_S), "+Inf")
_QUANTILES = (0.5, 0.75, 0.95, 0.99, 0.999, 0.9999, 1.0)


class _CompleteName(str):
    """The name of a counter to which the classic encoder must not add `_total`."""

    __slots__ = ()

    def __add__(self, suffix: str) -> str:
        return str(self) if suffix == _TOTAL else super().__add__(suffix)


class PublishedCounterFamily(UnknownMetricFamily):
    """A counter whose published name does not end in `_total`.

    The classic format shows a counter of exactly this name, as BookKeeper does. OpenMetrics reserves the type for
    names in `_total`, and another name would break dashboards: there it has the type unknown.
    """

    def __init__(self, name: str, documentation: str, labels: Sequence[str] = ()) -> None:
        super().__init__(_CompleteName(name), documentation, labels=labels)
        self.type = "counter"

    def without_type(self) -> UnknownMetricFamily:
        """Return the same samples as an unknown metric."""
        found = UnknownMetricFamily(self.name, self.documentation)
        found.samples = self.samples
        return found


Numbers = GaugeMetricFamily | CounterMetricFamily | PublishedCounterFamily
"""A family with one value per set of labels."""


def numbers(name: str, kind: Kind, text: str, labels: Sequence[str]) -> Numbers:
    """Return an empty family with these label names."""
    if kind == "gauge":
        return GaugeMetricFamily(name, text, labels=labels)
    if name.endswith(_TOTAL):
        return CounterMetricFamily(name, text, labels=labels)
    return PublishedCounterFamily(name, text, labels)


def pieces(
    name: str, kind: Kind, text: str, labels: Sequence[str], rows: Iterable[tuple[Sequence[str], float]]
) -> Iterator[Numbers]:
    """Yield a family of any size in pieces, so that the event loop can run in between. `rows`: label values, value.

    `rows` is consumed piece by piece, so it must survive changes in between. Without rows there is no family.
    """
    left = iter(rows)
    while piece := tuple(islice(left, limits.SCRAPE_PIECE_SAMPLES)):
        family = numbers(name, kind, text, labels)
        for values, value in piece:
            family.add_metric(values, value)
        yield family


class Families(Iterable[Metric]):
    """Collects families in the order in which their names first appear. A name keeps its kind, text and label names."""

    def __init__(self) -> None:
        self._numbers: dict[str, Numbers] = {}
        self._histograms: dict[str, HistogramMetricFamily] = {}
        self._summaries: dict[str, SummaryMetricFamily] = {}
        self._all: list[Metric] = []

    def __iter__(self) -> Iterator[Metric]:
        return iter(self._all)

    def add(self, name: str, kind: Kind, text: str, value: float, labels: Mapping[str, str]) -> None:
        """Add one value."""
        family = self._numbers.get(name)
        if family is None:
            family = self._numbers[name] = numbers(name, kind, text, tuple(labels))
            self._all.append(family)
        family.add_metric(tuple(labels.values()), value)

    def add_stats(self, stats: object, names: Names, labels: Mapping[str, str]) -> None:
        """Add the attributes of a Stats object that `names` lists."""
        for attribute, (name, kind, text) in names.items():
            self.add(name, kind, text, getattr(stats, attribute), labels)

    def add_histogram(self, histogram: LatencyHistogram, name: str, text: str, labels: Mapping[str, str]) -> None:
        """Add a histogram in seconds."""
        family = self._histograms.get(name)
        if family is None:
            family = self._histograms[name] = HistogramMetricFamily(name, text, labels=tuple(labels))
            self._all.append(family)
        buckets, below = [], 0
        for bound, count in zip(_BOUNDS, histogram.counts, strict=True):
            below += count
            buckets.append((bound, below))
        family.add_metric(tuple(labels.values()), buckets, histogram.seconds)

    def add_window(
        self,
        histogram: LatencyHistogram,
        window_counts: Sequence[int],
        name: str,
        text: str,
        labels: Mapping[str, str],
    ) -> None:
        """Add a summary in ms, for BookKeeper's dashboards: quantiles of a window; sum and count of all events."""
        family = self._summaries.get(name)
        if family is None:
            family = self._summaries[name] = SummaryMetricFamily(name, text, labels=tuple(labels))
            self._all.append(family)
        for share in _QUANTILES:
            value_s = quantile_s(window_counts, share)
            value_ms = float("nan") if value_s is None else value_s * 1000
            family.add_sample(name, {**labels, "quantile": repr(share)}, value_ms)
        family.add_metric(tuple(labels.values()), histogram.total, histogram.seconds * 1000)
