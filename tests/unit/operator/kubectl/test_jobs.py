"""Texts and requests of `kubectl quire jobs` and `job`, from objects that the operator writes."""

from datetime import UTC, datetime
from typing import Any

import pytest

from quire_operator.errors import OperatorError
from quire_operator.kubectl.jobs import due, newest_driver, runs_of, stamp, with_request
from quire_operator.kubectl.main import parser
from quire_operator.plan.job_slots import requested_runs

NOW = datetime(2026, 1, 31, 4, 0, 30, 999, tzinfo=UTC)


def pod(name: str, created: str, **labels: str) -> dict[str, Any]:
    own = {"quire.dev/job": "offload"} | {key.replace("_", "-"): value for key, value in labels.items()}
    return {"metadata": {"name": name, "creationTimestamp": created, "labels": own}}


def test_a_request_replaces_an_older_one_of_its_job_and_keeps_the_others() -> None:
    wish = with_request("hot@2026-01-30T00:00:00Z, offload@2026-01-01T00:00:00Z", "offload", due({}, NOW))
    assert wish == "hot@2026-01-30T00:00:00Z,offload@2026-01-31T04:00:30Z"
    assert with_request(None, "offload", "t") == with_request("", "offload", "t") == "offload@t"
    understood = requested_runs(wish, frozenset({"hot", "offload"}), NOW.timestamp())
    assert not understood.faults and understood.slots_s["offload"] == int(NOW.timestamp())


def test_a_request_is_later_than_the_latest_run_even_with_a_wrong_clock() -> None:
    assert due({"slot": "2026-01-31T03:00:00Z"}, NOW) == "2026-01-31T04:00:30Z"
    assert due({"slot": "2026-01-31T04:00:30Z"}, NOW) == "2026-01-31T04:00:31Z"
    assert due({"slot": "2026-01-31T04:05:00Z"}, NOW) == "2026-01-31T04:05:01Z"
    assert due({"since": "2026-01-31T06:00:00Z"}, NOW) == "2026-01-31T06:00:00Z", (
        "the request is for this job, not for a former one"
    )
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
def test_a_slot_is_accepted_as_a_time_or_as_a_label(given: str, expected: str) -> None:
    assert stamp(given) == expected


@pytest.mark.parametrize("given", ["noon", "2026-01-31T04:00:00", ""])
def test_an_invalid_slot_is_refused_with_its_value(given: str) -> None:
    with pytest.raises(OperatorError, match=f"--slot {given}: not a time"):
        stamp(given)


def test_the_log_is_from_the_driver_that_was_created_last() -> None:
    first, second = pod("a", "2026-01-31T04:00:00Z"), pod("b", "2026-01-31T04:02:00Z")
    executor = pod("c", "2026-01-31T04:03:00Z", spark_role="executor")
    assert newest_driver([second, executor, first]) == second
    assert newest_driver([executor]) is None and newest_driver([]) is None


def test_the_report_has_the_termination_message_of_each_driver() -> None:
    ended = {"terminated": {"exitCode": 3, "message": '{"outcome": "partly"}'}}
    status = {"containerStatuses": [{"name": "quire", "state": ended}]}
    killed = {"containerStatuses": [{"state": {"terminated": {"exitCode": 1, "message": "killed"}}}]}
    broker = {"metadata": {"name": "orders-broker-0", "labels": {}}, "status": status}
    pods = [pod("a", "t") | {"status": status}, broker, pod("b", "t") | {"status": killed}, pod("c", "t")]
    assert runs_of(pods) == {
        "a": {"exitCode": 3, "said": {"outcome": "partly"}},
        "b": {"exitCode": 1, "said": "killed"},
    }


def test_options_follow_the_commands() -> None:
    given = parser().parse_args(["job", "logs", "orders/offload", "-f", "--slot", "x", "-n", "storage"])
    assert (given.action, given.name, given.follow, given.namespace) == ("logs", "orders/offload", True, "storage")
    assert parser().parse_args(["jobs"]).managed_ledger is None
    assert parser().parse_args(["job", "run", "hot"]).action == "run"
