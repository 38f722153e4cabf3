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


def topic(name: str, messages: int = 0, size_bytes: int = 0, backlog: int = 0, out: int = 0) -> Topic:
    """Return what the history reads of a topic with one subscription."""
    cursor = SimpleNamespace(backlog=backlog)
    subscription = SimpleNamespace(stats=SimpleNamespace(messages_out=out, bytes_out=10 * out), cursor=cursor)
    return cast(
        Topic,
        SimpleNamespace(
            name=f"persistent://{name}",
            stats=SimpleNamespace(messages_in=messages, bytes_in=size_bytes),
            subscriptions={"s": subscription},
            durable_subscriptions=[subscription],
        ),
    )


async def each(*topics: Topic) -> AsyncIterator[Topic]:
    for one in topics:
        yield one


async def sampled(history: RateHistory, minute: int, *topics: Topic) -> None:
    """Sample at that minute of both clocks."""
    await history.sample(each(*topics), minute * MINUTE_MS, minute * 60.0)


def last(history: RateHistory, name: str, column: str = "messagesIn", count: int = 1) -> list[Any]:
    """Return the last points of a topic's column."""
    points = cast(list[Any], history.shown(history.topics[f"persistent://{name}"])[column])
    return points[-count:]


async def test_a_point_has_the_growth_per_second_and_the_backlog() -> None:
    history = RateHistory()
    await sampled(history, 100, topic("a/b/t", 50))
    await sampled(history, 101, topic("a/b/t", 170, 6000, 7, out=60))
    assert last(history, "a/b/t", count=2) == [None, 2.0]
    assert last(history, "a/b/t", "bytesIn") == [100.0]
    assert last(history, "a/b/t", "messagesOut") == [1.0]
    assert last(history, "a/b/t", "bytesOut") == [10.0]
    assert last(history, "a/b/t", "backlog") == [7.0]
    shown = history.shown(history.total)
    assert shown["endMs"] == 101 * MINUTE_MS and len(cast(Any, shown["messagesIn"])) == RATES_POINTS


async def test_a_namespace_and_the_broker_have_the_sums() -> None:
    history = RateHistory()
    await sampled(history, 1)
    await sampled(history, 2, topic("a/b/t", 60), topic("a/b/u", 120), topic("a/c/t", 60))
    assert cast(Any, history.shown(history.namespaces["a/b"])["messagesIn"])[-1] == 3.0
    assert cast(Any, history.shown(history.total)["messagesIn"])[-1] == 4.0


async def test_counters_that_begin_again_give_no_negative_rate() -> None:
    history = RateHistory()
    await sampled(history, 1, topic("a/b/t", 600))
    await sampled(history, 2, topic("a/b/t", 60))
    assert last(history, "a/b/t") == [0.0]


async def test_minutes_without_a_sample_are_gaps_and_not_those_of_a_day_before() -> None:
    history = RateHistory()
    for minute in range(1, 5):
        await sampled(history, minute, topic("a/b/t", 60 * minute))
    await sampled(history, RATES_POINTS + 4, topic("a/b/t", 60 * (RATES_POINTS + 4)))
    assert last(history, "a/b/t", count=RATES_POINTS) == [None] * (RATES_POINTS - 1) + [1.0]


async def test_a_clock_that_is_set_back_adds_no_point() -> None:
    history = RateHistory()
    for minute in (9, 10):
        await sampled(history, minute, topic("a/b/t", 60 * minute))
    await history.sample(each(topic("a/b/t", 6000)), 5 * MINUTE_MS, 700.0)
    assert last(history, "a/b/t") == [1.0]
    assert history.shown(history.total)["endMs"] == 10 * MINUTE_MS


async def test_the_busiest_topics_are_kept_and_a_quiet_one_only_while_there_is_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rate_history, "RATES_TOPICS_MAX", 2)
    history = RateHistory()
    await sampled(history, 1)
    await sampled(history, 2, topic("a/b/first", 1, 600), topic("a/b/second", 1, 300))
    await sampled(history, 3, topic("a/b/first", 1, 600), topic("a/b/second", 1, 900), topic("a/b/idle"))
    assert set(history.topics) == {"persistent://a/b/first", "persistent://a/b/second"}
    await sampled(history, 4, topic("a/b/second", 1, 1500), topic("a/b/new", 1, 60))
    assert set(history.topics) == {"persistent://a/b/second", "persistent://a/b/new"}


def test_the_bounds_are_those_that_the_documentation_names() -> None:
    assert SERIES_BYTES == 28_800
    assert (RATES_TOPICS_MAX + RATES_NAMESPACES_MAX + 1) * SERIES_BYTES < 7 * 1024 * 1024


def test_the_namespace_of_a_topic() -> None:
    assert namespace_of_topic("persistent://a/b/c/d") == "a/b"
