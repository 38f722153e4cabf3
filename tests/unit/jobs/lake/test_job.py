from typing import Any

import pytest

from quire_jobs.errors import JobOptionsError
from quire_jobs.job import parse_parameters
from quire_jobs.lake.following import cursor_of, table_layout
from quire_jobs.lake.job import Parameters
from quire_jobs.source.options import Mode
from quire_jobs.tables import TableTarget

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
