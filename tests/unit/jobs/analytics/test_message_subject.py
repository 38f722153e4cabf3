"""Descriptions of what an analysis of messages covers, and notes if it found nothing."""

from typing import Any

import pytest

from quire_jobs.analytics import keys
from quire_jobs.analytics.message_subject import advice, notes, subject
from quire_jobs.errors import JobOptionsError
from quire_jobs.job import parse_parameters
from tests.unit.jobs.analytics.conftest import at

AS_OF = "2026-11-22T12:00:00Z"
TOPICS: dict[str, Any] = {"topics": ["shop/orders/*", "shop/audit/log"], "metadata": "etcd://e:2379"}


def parameters(**given: Any) -> keys.Parameters:
    return parse_parameters(keys.Parameters, {"output": "file:///out", "asOf": AS_OF} | given)


def test_the_last_hours_end_at_as_of() -> None:
    assert parameters(**TOPICS).bounds == (None, None)
    assert parameters(**TOPICS, last="24h").bounds == (at("2026-11-21 12:00"), at("2026-11-22 12:00"))
    given = parameters(**TOPICS, startTime="2026-11-20", endTime="2026-11-21")
    assert given.bounds == (at("2026-11-20 00:00"), at("2026-11-21 00:00"))
    without = parse_parameters(keys.Parameters, TOPICS | {"output": "file:///out", "last": "1h"})
    assert without.bounds == without.bounds, "one time for the whole run"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"last": "0"}, "last = '0'.*greater than 0"),
        ({"last": "a day"}, "last = 'a day': expected a number"),
        ({"last": "101000w"}, "last = .*less than or equal"),
        ({"last": "1h", "startTime": "2026-11-20"}, "last excludes startTime and endTime"),
        ({"last": "1h", "endTime": "2026-11-20"}, "last excludes startTime and endTime"),
    ],
)
def test_an_invalid_period_is_named(given: dict[str, str], said: str) -> None:
    with pytest.raises(JobOptionsError, match=said):
        parameters(**TOPICS, **given)


def test_missing_topics_and_missing_messages_are_distinguished() -> None:
    given = parameters(**TOPICS)
    assert notes(given, [], empty=False) == []
    assert notes(given, [], empty=True) == ["no message in shop/orders/*, shop/audit/log"]
    nothing = "no topic matches shop/orders/* yet"
    assert notes(given, ["shop/orders/*"], empty=False) == [nothing]
    assert notes(given, ["shop/orders/*"], empty=True) == [nothing, "no message in shop/audit/log"]
    assert notes(given, given.topics, empty=True) == [nothing, "no topic matches shop/audit/log yet"]
    assert [one.seen for one in advice([nothing])] == ["No topic matches shop/orders/* yet."]


def test_the_subject_includes_the_time_range() -> None:
    table = parameters(messages="lake.shop.orders", last="1h")
    described = "lake.shop.orders, published from 2026-11-22 11:00 until 2026-11-22 12:00"
    assert subject(table).replace(" UTC", "") == described
    assert notes(table, [], empty=True) == [f"no message in {subject(table)}"]
