"""Keeps a day of rates in memory: of the broker, its busiest topics and its namespaces. Knows nothing of HTTP.

A series has one point a minute for each of five columns, as 32-bit floats: `SERIES_BYTES`. Two bounds limit the number
of series, so that the history takes 7 MiB at most, and the last counters half a KiB for each loaded topic that was
used. A sample visits only topics that changed, have a backlog or a series: the others have no rates. A
point without a sample is NaN. Point `n` stands for minute `n` since the epoch; a clock that is set back adds no points.
"""

import heapq
import math
from array import array
from collections.abc import AsyncIterator
from typing import Final, NamedTuple, Protocol
from weakref import WeakKeyDictionary

from quire_broker.limits import RATES_NAMESPACES_MAX, RATES_POINTS, RATES_STEP_S, RATES_TOPICS_MAX
from quire_broker.topic.topic import Topic

COLUMNS: Final = ("messagesIn", "bytesIn", "messagesOut", "bytesOut", "backlog")
"""Four rates per second, and the entries that subscriptions have not acknowledged."""
SERIES_BYTES: Final = len(COLUMNS) * RATES_POINTS * 4
_STEP_MS = int(RATES_STEP_S * 1000)


class Values(NamedTuple):
    """One value for each column."""

    messages_in: float = 0.0
    bytes_in: float = 0.0
    messages_out: float = 0.0
    bytes_out: float = 0.0
    backlog: float = 0.0

    def plus(self, other: "Values") -> "Values":
        """Return the sums."""
        return Values(*map(sum, zip(self, other, strict=True)))

    @property
    def activity(self) -> float:
        """The order of topics: bytes per second in both directions."""
        return self.bytes_in + self.bytes_out


NOTHING: Final = Values()


def counters_of(topic: Topic) -> Values:
    """Return the counters of a topic since it was loaded, and its backlog."""
    stats = [found.stats for found in topic.subscriptions.values()]
    backlog = sum(found.cursor.backlog for found in topic.durable_subscriptions)
    messages_out, bytes_out = sum(one.messages_out for one in stats), sum(one.bytes_out for one in stats)
    return Values(topic.stats.messages_in, topic.stats.bytes_in, messages_out, bytes_out, backlog)


def rates_of(topic: Topic) -> Values:
    """Return the rates of a topic over the last tick, and its backlog."""
    stats = [found.stats for found in topic.subscriptions.values()]
    backlog = sum(found.cursor.backlog for found in topic.durable_subscriptions)
    return Values(
        topic.rates.messages.per_s,
        topic.rates.size_bytes.per_s,
        sum(one.message_rate.per_s for one in stats),
        sum(one.byte_rate.per_s for one in stats),
        backlog,
    )


class Series:
    """The points of one name: a ring for each column."""

    __slots__ = ("_rings",)

    def __init__(self) -> None:
        self._rings = [array("f", [math.nan]) * RATES_POINTS for _ in COLUMNS]

    def put(self, point: int, values: Values) -> None:
        """Set a point, in place of that of a day before."""
        for ring, value in zip(self._rings, values, strict=True):
            ring[point % RATES_POINTS] = value

    def clear(self, point: int) -> None:
        """Forget a point."""
        for ring in self._rings:
            ring[point % RATES_POINTS] = math.nan

    def column(self, number: int, last: int) -> list[float | None]:
        """Return the points of a column, the oldest first; None where there is no sample."""
        ring = self._rings[number]
        values = (ring[point % RATES_POINTS] for point in range(last + 1 - RATES_POINTS, last + 1))
        return [None if math.isnan(value) else round(value, 2) for value in values]


class SampledTopics(Protocol):
    """The topics of a sample; see `quire_broker.topic.changes`."""

    def round(self) -> AsyncIterator[Topic]:
        """Yield the topics that may have rates or a backlog."""
        ...

    def keep(self, topic: Topic) -> None:
        """Yield a topic in the next round, too."""
        ...


class RateHistory:
    """Keeps the series of one broker. Call `sample` once a minute."""

    def __init__(self) -> None:
        self.total = Series()
        self.namespaces: dict[str, Series] = {}
        self.topics: dict[str, Series] = {}
        self._counters: WeakKeyDictionary[Topic, Values] = WeakKeyDictionary()
        self._point = -1
        self._sampled_s = math.nan

    async def sample(self, topics: SampledTopics, now_ms: int, now_s: float) -> None:
        """Add a point of these topics. Those with a backlog or a series are sampled again.

        `now_ms` gives the point, `now_s` (monotonic) the time since the last sample. The first sample has no rates.
        """
        elapsed_s = now_s - self._sampled_s
        visited: dict[str, Topic] = {}
        rates: dict[str, Values] = {}
        async for topic in topics.round():
            name, new = str(topic.name), counters_of(topic)
            rates[name] = _growth(self._counters.get(topic, NOTHING), new, elapsed_s)
            visited[name] = topic
            if new != NOTHING or topic in self._counters:
                self._counters[topic] = new
        self._sampled_s = now_s
        point = now_ms // _STEP_MS
        if not math.isnan(elapsed_s) and point > self._point:
            self._clear_until(point)
            self._add(point, rates)
        for name in self._continued(rates):
            topics.keep(visited[name])

    def _continued(self, rates: dict[str, Values]) -> list[str]:
        """Return the topics without which the next point would lack something, though they may rest until then."""
        found, namespaces = [], set(self.namespaces)
        for name, values in rates.items():
            namespace = namespace_of_topic(name)
            if values.backlog or name in self.topics or namespace in namespaces:
                found.append(name)
                namespaces.discard(namespace)
        return found

    def _clear_until(self, point: int) -> None:
        """Forget the points between the last one and this one, which still hold those of a day before."""
        for passed in range(max(self._point + 1, point - RATES_POINTS + 1), point + 1):
            for series in (self.total, *self.namespaces.values(), *self.topics.values()):
                series.clear(passed)
        self._point = point

    def _add(self, point: int, rates: dict[str, Values]) -> None:
        sums: dict[str, Values] = {}
        total = NOTHING
        for name, values in rates.items():
            namespace = namespace_of_topic(name)
            sums[namespace] = sums.get(namespace, NOTHING).plus(values)
            total = total.plus(values)
        self.total.put(point, total)
        _keep_busiest(self.topics, rates, RATES_TOPICS_MAX, point)
        _keep_busiest(self.namespaces, sums, RATES_NAMESPACES_MAX, point)

    def shown(self, series: Series) -> dict[str, object]:
        """Return a series as JSON: the time of its last point in ms, the step in s, and its columns."""
        columns = {name: series.column(number, self._point) for number, name in enumerate(COLUMNS)}
        return {"endMs": self._point * _STEP_MS, "stepS": RATES_STEP_S, **columns}


def namespace_of_topic(name: str) -> str:
    """Return tenant/namespace of a topic's whole name."""
    return "/".join(name.partition("://")[2].split("/")[:2])


def _growth(old: Values, new: Values, elapsed_s: float) -> Values:
    """Return rates from counters, which begin at 0 again when a topic is loaded or a subscription is created."""
    if not elapsed_s > 0:
        return NOTHING._replace(backlog=new.backlog)

    def rate(before: float, now: float) -> float:
        return max(0.0, now - before) / elapsed_s

    return Values(
        rate(old.messages_in, new.messages_in),
        rate(old.bytes_in, new.bytes_in),
        rate(old.messages_out, new.messages_out),
        rate(old.bytes_out, new.bytes_out),
        new.backlog,
    )


def _keep_busiest(kept: dict[str, Series], rates: dict[str, Values], count: int, point: int) -> None:
    """Add a point to the `count` busiest names; among equally busy ones those that have a series stay."""

    def order(name: str) -> tuple[float, bool, float]:
        found = rates.get(name, NOTHING)
        return found.activity, name in kept, found.backlog

    chosen = set(heapq.nlargest(count, kept.keys() | rates.keys(), key=order))
    for name in kept.keys() - chosen:
        del kept[name]
    for name in chosen & rates.keys():
        kept.setdefault(name, Series()).put(point, rates[name])
