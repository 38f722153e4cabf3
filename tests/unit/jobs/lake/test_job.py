from typing import Any

import pytest

from quire_jobs.errors import JobOptionsError, NotFoundError, QuireJobError, SourceUnavailableError
from quire_jobs.job import parse_parameters
from quire_jobs.lake.following import cursor_of, table_layout
from quire_jobs.lake.job import Parameters, _Run
from quire_jobs.source.options import Mode
from quire_jobs.tables import TableTarget
from tests.unit.jobs.analytics.quiet_progress import QuietProgress

GIVEN: dict[str, Any] = {"topics": ["orders"], "table": "lake.shop.orders", "metadata": "http://127.0.0.1:1"}


def test_the_broker_that_serves_metadata_is_asked_for_the_newest_entry_too() -> None:
    parameters = parse_parameters(Parameters, GIVEN)
    assert parameters.source == {
        "metadata": "http://127.0.0.1:1",
        "http": "http://127.0.0.1:1",
        "failOnDataLoss": "true",
        "failOnUndecodable": "false",
    }
    assert parameters.target.shown == "iceberg:lake.shop.orders" and parameters.mode is Mode.TABLE


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"metadata": "etcd://127.0.0.1:1"}, "'http' is missing"),
        ({"topics": []}, "topics"),
        ({"runFor": "1h"}, "runFor needs every"),
        ({"every": "10ms"}, "expected a number, alone or with s"),
        ({"format": "csv"}, "format = 'csv'"),
        ({"partitionBy": "week"}, "partitionBy = 'week'"),
        ({"batchEntries": 0}, "batchEntries = 0"),
    ],
)
def test_wrong_parameters_are_named(given: dict[str, Any], said: str) -> None:
    with pytest.raises(JobOptionsError, match=said):
        parse_parameters(Parameters, GIVEN | given)


def test_the_layout_follows_the_names_of_the_columns() -> None:
    typed, plain = table_layout(Mode.TABLE, "day", 1 << 20), table_layout(Mode.MESSAGES, "hour", 1 << 20)
    assert (typed.day_of, typed.hour_of, typed.sort_by[0]) == ("_publish_time", "", "_topic")
    assert (plain.day_of, plain.hour_of, plain.sort_by[0]) == ("", "publish_time", "topic")


def test_each_table_has_a_subscription_of_its_own() -> None:
    names = {cursor_of(TableTarget.parse("iceberg", f"lake.shop.{name}")) for name in ("orders", "visits", "orders")}
    assert len(names) == 2 and all(name.startswith("quire.table.") for name in names)


class Failing:
    """A follower that never gets further."""

    def __init__(self, name: str, error: QuireJobError) -> None:
        self.name = name
        self._error = error

    def ends(self) -> None:
        raise self._error


@pytest.mark.parametrize(
    ("name", "error", "every", "rounds"),
    [
        ("public/default/x-*", NotFoundError("no topic matches"), "30s", 20),  # they may be created later
        ("public/default/x-*", NotFoundError("no topic matches"), None, 1),
        ("orders", NotFoundError("there is no topic"), "30s", 1),
        ("orders", SourceUnavailableError("no answer"), "30s", 10),
        ("orders", SourceUnavailableError("no answer"), None, 1),
    ],
)
def test_a_topic_is_given_up_when_it_cannot_be_followed(
    name: str, error: QuireJobError, every: str | None, rounds: int
) -> None:
    given = GIVEN if every is None else GIVEN | {"every": every}
    followers: list[Any] = [Failing(name, error)]
    spark: Any = None
    layout = table_layout(Mode.TABLE, "day", 1 << 20)
    state = _Run(parse_parameters(Parameters, given), spark, QuietProgress(), followers, layout)
    done = 0
    while followers and done < 20:
        state.catch_up(followers[0], lambda: True)
        done += 1
    assert done == rounds
    assert [each.subject for each in state.problems] == ([] if followers else [name])
