"""Defines metrics readings and renders them as Prometheus text. The owners of the counters choose names and values.

Bookies and brokers both use `render`; nothing is registered, and nothing is kept between two scrapes except the counts
of a `LatencyWindow`. Callers measure latencies and count them in a `LatencyHistogram`.
Text format: https://prometheus.io/docs/instrumenting/exposition_formats/, version 0.0.4.
"""

import math
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SKIPPED = "quire_metrics_skipped_values"
Kind = Literal["counter", "gauge", "histogram", "summary"]

LATENCY_BOUNDS_S = (
    *(0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0),
)
"""Upper bounds of the buckets: a durable add takes 0.1 to 20 ms, a stalled disk seconds; clients time out at 30 s."""
_QUANTILES = (0.5, 0.75, 0.95, 0.99, 0.999, 0.9999, 1.0)


class LatencyHistogram:
    """Counts durations in buckets. Cheap enough to be called once per run of entries."""

    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(LATENCY_BOUNDS_S) + 1)
        """Per bucket, not cumulative; the last one is for durations above the largest bound."""
        self.seconds = 0.0
        """Sum of all observed durations."""

    def observe(self, seconds: float, count: int = 1) -> None:
        """Count `count` events that took `seconds` each."""
        self.counts[bisect_left(LATENCY_BOUNDS_S, seconds)] += count
        self.seconds += seconds * count

    def add(self, other: "LatencyHistogram") -> None:
        """Add the counts of another histogram."""
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        self.seconds += other.seconds

    @property
    def total(self) -> int:
        """Number of observed events."""
        return sum(self.counts)

    def since(self, earlier: Sequence[int] | None) -> list[int]:
        """Return the counts since an earlier copy of `counts`."""
        return list(self.counts) if earlier is None else [n - was for n, was in zip(self.counts, earlier, strict=True)]


def quantile_s(counts: Sequence[int], share: float) -> float | None:
    """Return the latency in seconds that `share` of the events did not exceed, interpolated. None: no events."""
    total = sum(counts)
    if not total:
        return None
    wanted = share * total
    below = 0
    for bucket, count in enumerate(counts):
        if count and below + count >= wanted:
            lower = LATENCY_BOUNDS_S[bucket - 1] if bucket else 0.0
            upper = LATENCY_BOUNDS_S[min(bucket, len(LATENCY_BOUNDS_S) - 1)]
            return lower + (upper - lower) * (wanted - below) / count
        below += count
    return LATENCY_BOUNDS_S[-1]


class LatencyWindow:
    """Computes quantiles of about the last minute from scrapes of one histogram. Keeps a few copies of its counts."""

    __slots__ = ("_copies", "_span_s")

    def __init__(self, span_s: float = 60.0) -> None:
        self._span_s = span_s
        self._copies: deque[tuple[float, list[int]]] = deque()

    def look(self, histogram: LatencyHistogram, now_s: float) -> list[int]:
        """Return the counts of the window that ends now: since the newest copy at least `span_s` old, else all."""
        if self._copies and any(count < 0 for count in histogram.since(self._copies[-1][1])):
            self._copies.clear()  # the histogram was replaced by a new one
        while len(self._copies) > 1 and self._copies[1][0] <= now_s - self._span_s:
            self._copies.popleft()
        start = self._copies[0][1] if self._copies and self._copies[0][0] <= now_s - self._span_s else None
        if not self._copies or now_s - self._copies[-1][0] >= self._span_s / 8:
            self._copies.append((now_s, list(histogram.counts)))
        return histogram.since(start)


@dataclass(frozen=True, slots=True)
class Reading:
    """One present value. Readings of one name share kind and text; units are in the name or the text.

    `suffix`: `_bucket`, `_sum` or `_count` of a histogram or summary, whose name is the family's.
    """

    name: str
    kind: Kind
    text: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)
    suffix: str = ""


def of_stats(
    stats: object, names: Mapping[str, tuple[str, Kind, str]], labels: Mapping[str, str] | None = None
) -> list[Reading]:
    """Return readings of a Stats dataclass: `names` maps its attributes to name, kind and text."""
    return [
        Reading(name, kind, text, getattr(stats, attribute), labels or {})
        for attribute, (name, kind, text) in names.items()
    ]


def of_histogram(
    histogram: LatencyHistogram, name: str, text: str, labels: Mapping[str, str] | None = None
) -> list[Reading]:
    """Return a Prometheus histogram in seconds."""
    labels = labels or {}
    found = []
    below = 0
    for bound, count in zip((*map(repr, LATENCY_BOUNDS_S), "+Inf"), histogram.counts, strict=True):
        below += count
        found.append(Reading(name, "histogram", text, below, {**labels, "le": bound}, "_bucket"))
    found.append(Reading(name, "histogram", text, histogram.seconds, labels, "_sum"))
    found.append(Reading(name, "histogram", text, below, labels, "_count"))
    return found


def of_window(
    histogram: LatencyHistogram,
    window_counts: Sequence[int],
    name: str,
    text: str,
    labels: Mapping[str, str] | None = None,
) -> list[Reading]:
    """Return a summary in milliseconds, for BookKeeper's dashboards: quantiles of a window; sum and count of all."""
    labels = labels or {}
    found = []
    for share in _QUANTILES:
        value_s = quantile_s(window_counts, share)
        value_ms = float("nan") if value_s is None else value_s * 1000
        found.append(Reading(name, "summary", text, value_ms, {**labels, "quantile": repr(share)}))
    found.append(Reading(name, "summary", text, histogram.seconds * 1000, labels, "_sum"))
    found.append(Reading(name, "summary", text, histogram.total, labels, "_count"))
    return found


def render(readings: Iterable[Reading]) -> str:
    """Render Prometheus text. Readings of one name are grouped, in the order in which the names first appear.

    A value that is not a number, or does not fit a double, is omitted and counted by `SKIPPED`, so that the other
    readings of the process stay visible.
    """
    families: dict[str, list[tuple[Reading, str]]] = {}
    skipped: Counter[str] = Counter()
    for reading in readings:
        value = _number(reading.value)
        if value is None:
            skipped[reading.name] += 1
        else:
            families.setdefault(reading.name, []).append((reading, value))
    for name, count in skipped.items():
        found = Reading(SKIPPED, "gauge", "values omitted from this response, by metric", count, {"metric": name})
        families.setdefault(SKIPPED, []).append((found, repr(count)))
    lines: list[str] = []
    for name, members in families.items():
        first, _ = members[0]
        lines.append(f"# HELP {name} {_escaped(first.text, quotes=False)}")
        lines.append(f"# TYPE {name} {first.kind}")
        lines.extend(f"{name}{reading.suffix}{_labels(reading.labels)} {value}" for reading, value in members)
    return "\n".join(lines) + "\n"


def _number(value: object) -> str | None:
    """Return the value in Prometheus's format; None if a double cannot represent it."""
    if not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    if math.isfinite(number):
        return repr(int(value)) if number.is_integer() else repr(value)
    return "NaN" if math.isnan(number) else ("+Inf" if number > 0 else "-Inf")


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str, *, quotes: bool = True) -> str:
    text = value.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quotes else text
