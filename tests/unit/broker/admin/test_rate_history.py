"""The history of rates: points, gaps, counters that begin again, and its bounds. No broker runs."""

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from quire_broker.admin import rate_history
from quire_broker.admin.rate_history import SERIES_BYTES, RateHistory, namespace_of_topic
from quire_broker.limits import RATES_NAMESPACES_MAX, RATES_POINTS, RATES_TOPICS_MAX
from quire_broker.topic.topic import Topic

MINUTE_MS = 60_000


class _Topic:
    """What the history reads of a topic with one subscription."""

    def __init__(self, name: str) -> None:
        self.name = f"persistent://{name}"
        self.stats = SimpleNamespace(messages_in=0, bytes_in=0)
        subscription = SimpleNamespace(
            stats=SimpleNamespace(messages_out=0, bytes_out=0), cursor=SimpleNamespace(backlog=0)
        )
        self.subscriptions, self.durable_subscriptions = {"s": subscription}, [subscription]


class Broker:
    """The loaded topics, and those that the history wants to see again."""

    def __init__(self) -> None:
        self.history = RateHistory()
        self.loaded: dict[str, _Topic] = {}
        self.kept: list[str] = []
        self._given: list[_Topic] = []

    def topic(self, name: str, messages: int = 0, size_bytes: int = 0, backlog: int = 0, out: int = 0) -> _Topic:
        """Set the counters of a topic, loaded if necessary."""
        found = self.loaded.setdefault(name, _Topic(name))
        found.stats.messages_in, found.stats.bytes_in = messages, size_bytes
        (subscription,) = found.durable_subscriptions
        subscription.stats.messages_out, subscription.stats.bytes_out = out, 10 * out
        subscription.cursor.backlog = backlog
        return found

    async def round(self) -> AsyncIterator[Topic]:
        """See SampledTopics."""
        self.kept = []
        for one in self._given:
            yield cast(Topic, one)

    def keep(self, topic: Topic) -> None:
        """See SampledTopics."""
        self.kept.append(str(topic.name).removeprefix("persistent://"))

    async def sample(self, minute: int, *topics: _Topic, at_s: float | None = None) -> None:
        """Sample at that minute of both clocks. `at_s`: of the monotonic one instead."""
        self._given = list(topics)
        await self.history.sample(self, minute * MINUTE_MS, minute * 60.0 if at_s is None else at_s)


def last(history: RateHistory, name: str, column: str = "messagesIn", count: int = 1) -> list[Any]:
    """Return the last points of a topic's column."""
    points = cast(list[Any], history.shown(history.topics[f"persistent://{name}"])[column])
    return points[-count:]


async def test_a_point_has_the_growth_per_second_and_the_backlog() -> None:
    broker = Broker()
    await broker.sample(100, broker.topic("a/b/t", 50))
    await broker.sample(101, broker.topic("a/b/t", 170, 6000, 7, out=60))
    history = broker.history
    assert last(history, "a/b/t", count=2) == [None, 2.0]
    assert last(history, "a/b/t", "bytesIn") == [100.0]
    assert last(history, "a/b/t", "messagesOut") == [1.0]
    assert last(history, "a/b/t", "bytesOut") == [10.0]
    assert last(history, "a/b/t", "backlog") == [7.0]
    shown = history.shown(history.total)
    assert shown["endMs"] == 101 * MINUTE_MS and len(cast(Any, shown["messagesIn"])) == RATES_POINTS


async def test_a_namespace_and_the_broker_have_the_sums() -> None:
    broker = Broker()
    await broker.sample(1)
    await broker.sample(2, broker.topic("a/b/t", 60), broker.topic("a/b/u", 120), broker.topic("a/c/t", 60))
    history = broker.history
    assert cast(Any, history.shown(history.namespaces["a/b"])["messagesIn"])[-1] == 3.0
    assert cast(Any, history.shown(history.total)["messagesIn"])[-1] == 4.0


async def test_counters_that_begin_again_give_no_negative_rate() -> None:
    broker = Broker()
    await broker.sample(1, broker.topic("a/b/t", out=600))
    await broker.sample(2, broker.topic("a/b/t", out=60))
    assert last(broker.history, "a/b/t", "messagesOut") == [0.0]


async def test_a_topic_that_is_loaded_again_begins_at_zero() -> None:
    broker = Broker()
    await broker.sample(1, broker.topic("a/b/t", 600))
    del broker.loaded["a/b/t"]
    await broker.sample(2, broker.topic("a/b/t", 60))
    assert last(broker.history, "a/b/t") == [1.0]


async def test_a_topic_that_rests_is_not_visited_and_its_rate_counts_from_its_last_visit() -> None:
    broker = Broker()
    await broker.sample(1, broker.topic("a/b/t", 60))
    await broker.sample(2)
    await broker.sample(3, broker.topic("a/b/t", 180))
    assert last(broker.history, "a/b/t", count=3) == [None, None, 2.0]


async def test_topics_with_a_backlog_or_a_series_and_one_of_each_namespace_are_sampled_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rate_history, "RATES_TOPICS_MAX", 1)
    broker = Broker()
    behind, idle = broker.topic("a/b/behind", backlog=1), broker.topic("a/b/idle")
    await broker.sample(1, behind, idle)
    assert broker.kept == ["a/b/behind"], "no point yet"
    busy, others = broker.topic("a/b/busy", 60, 60), [broker.topic(f"a/{n}/idle") for n in "cd"]
    await broker.sample(2, behind, idle, busy, *others)
    assert broker.kept == ["a/b/behind", "a/b/busy", "a/c/idle", "a/d/idle"]
    await broker.sample(3, behind, busy, *others)
    history = broker.history
    assert cast(Any, history.shown(history.namespaces["a/c"])["backlog"])[-2:] == [0.0, 0.0]
    assert cast(Any, history.shown(history.total)["backlog"])[-1] == 1.0


async def test_minutes_without_a_sample_are_gaps_and_not_those_of_a_day_before() -> None:
    broker = Broker()
    for minute in range(1, 5):
        await broker.sample(minute, broker.topic("a/b/t", 60 * minute))
    await broker.sample(RATES_POINTS + 4, broker.topic("a/b/t", 60 * (RATES_POINTS + 4)))
    assert last(broker.history, "a/b/t", count=RATES_POINTS) == [None] * (RATES_POINTS - 1) + [1.0]


async def test_a_clock_that_is_set_back_adds_no_point() -> None:
    broker = Broker()
    for minute in (9, 10):
        await broker.sample(minute, broker.topic("a/b/t", 60 * minute))
    await broker.sample(5, broker.topic("a/b/t", 6000), at_s=700.0)
    assert last(broker.history, "a/b/t") == [1.0]
    assert broker.history.shown(broker.history.total)["endMs"] == 10 * MINUTE_MS


async def test_the_busiest_topics_are_kept_and_a_quiet_one_only_while_there_is_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rate_history, "RATES_TOPICS_MAX", 2)
    broker = Broker()
    topic, history = broker.topic, broker.history
    await broker.sample(1)
    await broker.sample(2, topic("a/b/first", 1, 600), topic("a/b/second", 1, 300))
    await broker.sample(3, topic("a/b/first", 1, 600), topic("a/b/second", 1, 900), topic("a/b/idle"))
    assert set(history.topics) == {"persistent://a/b/first", "persistent://a/b/second"}
    await broker.sample(4, topic("a/b/second", 1, 1500), topic("a/b/new", 1, 60))
    assert set(history.topics) == {"persistent://a/b/second", "persistent://a/b/new"}


def test_the_bounds_are_those_that_the_documentation_names() -> None:
    assert SERIES_BYTES == 28_800
    assert (RATES_TOPICS_MAX + RATES_NAMESPACES_MAX + 1) * SERIES_BYTES < 7 * 1024 * 1024


def test_the_namespace_of_a_topic() -> None:
    assert namespace_of_topic("persistent://a/b/c/d") == "a/b"
