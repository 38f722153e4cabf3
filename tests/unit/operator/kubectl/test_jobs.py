"""What `kubectl quire jobs` and `job` make of what the operator writes: objects in, texts and wishes out."""

from datetime import UTC, datetime
from typing import Any

import pytest

from quire_operator.errors import OperatorError
from quire_operator.kubectl.jobs import due, newest_driver, runs_of, stamp, with_wish
from quire_operator.kubectl.main import parser
from quire_operator.plan.job_slots import asked

NOW = datetime(2026, 1, 31, 4, 0, 30, 999, tzinfo=UTC)


def pod(name: str, created: str, **labels: str) -> dict[str, Any]:
    own = {"quire.dev/job": "offload"} | {key.replace("_", "-"): value for key, value in labels.items()}
    return {"metadata": {"name": name, "creationTimestamp": created, "labels": own}}


def test_a_wish_stands_beside_those_for_other_jobs_and_replaces_an_older_one_of_its_own() -> None:
    wish = with_wish("hot@2026-01-30T00:00:00Z, offload@2026-01-01T00:00:00Z", "offload", due({}, NOW))
    assert wish == "hot@2026-01-30T00:00:00Z,offload@2026-01-31T04:00:30Z"
    assert with_wish(None, "offload", "t") == with_wish("", "offload", "t") == "offload@t"
    understood = asked(wish, frozenset({"hot", "offload"}), NOW.timestamp())
    assert not understood.faults and understood.slots_s["offload"] == int(NOW.timestamp())


def test_a_wish_is_later_than_the_latest_run_whatever_the_clock_here_says() -> None:
    assert due({"slot": "2026-01-31T03:00:00Z"}, NOW) == "2026-01-31T04:00:30Z"
    assert due({"slot": "2026-01-31T04:00:30Z"}, NOW) == "2026-01-31T04:00:31Z"
    assert due({"slot": "2026-01-31T04:05:00Z"}, NOW) == "2026-01-31T04:05:01Z"
    assert due({"since": "2026-01-31T06:00:00Z"}, NOW) == "2026-01-31T06:00:00Z", "it is for this job, not a former one"
    assert due({"since": "2026-01-30T06:00:00Z"}, NOW) == "2026-01-31T04:00:30Z"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("2026-01-31T04:00:00Z", "20260131t0400"),
        ("2026-01-31T05:00:00+01:00", "20260131t0400"),
        ("2026-01-31T04:00:30Z", "20260131t040030"),
        ("20260131t0400", "20260131t0400"),
    ],
)
def test_a_slot_is_named_as_the_table_shows_it_or_as_its_label(given: str, expected: str) -> None:
    assert stamp(given) == expected


@pytest.mark.parametrize("given", ["noon", "2026-01-31T04:00:00", ""])
def test_what_is_no_slot_is_refused_with_its_value(given: str) -> None:
    with pytest.raises(OperatorError, match=f"--slot {given}: not a time"):
        stamp(given)


def test_the_log_is_that_of_the_driver_that_was_made_last() -> None:
    first, second = pod("a", "2026-01-31T04:00:00Z"), pod("b", "2026-01-31T04:02:00Z")
    executor = pod("c", "2026-01-31T04:03:00Z", spark_role="executor")
    assert newest_driver([second, executor, first]) == second
    assert newest_driver([executor]) is None and newest_driver([]) is None


def test_the_report_has_what_each_driver_left() -> None:
    ended = {"terminated": {"exitCode": 3, "message": '{"outcome": "partly"}'}}
    status = {"containerStatuses": [{"name": "quire", "state": ended}]}
    killed = {"containerStatuses": [{"state": {"terminated": {"exitCode": 1, "message": "killed"}}}]}
    broker = {"metadata": {"name": "orders-broker-0", "labels": {}}, "status": status}
    pods = [pod("a", "t") | {"status": status}, broker, pod("b", "t") | {"status": killed}, pod("c", "t")]
    assert runs_of(pods) == {
        "a": {"exitCode": 3, "said": {"outcome": "partly"}},
        "b": {"exitCode": 1, "said": "killed"},
    }


def test_the_commands_take_their_options_behind_them() -> None:
    given = parser().parse_args(["job", "logs", "orders/offload", "-f", "--slot", "x", "-n", "storage"])
    assert (given.action, given.name, given.follow, given.namespace) == ("logs", "orders/offload", True, "storage")
    assert parser().parse_args(["jobs"]).managed_ledger is None
    assert parser().parse_args(["job", "run", "hot"]).action == "run"
