"""When jobs are due."""

from datetime import UTC, datetime

import pytest

from quire_operator.plan.job_slots import latest_slot_s, next_slot_s, requested_runs, schedule_fault

JOBS = frozenset({"offload", "rates"})


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("schedule", "now", "latest", "following"),
    [
        ("17 * * * *", "2026-01-31T04:17:00", "2026-01-31T04:17:00", "2026-01-31T05:17:00"),
        ("17 * * * *", "2026-01-31T04:16:59.900", "2026-01-31T03:17:00", "2026-01-31T04:17:00"),
        ("@hourly", "2026-01-31T04:59:59", "2026-01-31T04:00:00", "2026-01-31T05:00:00"),
        ("@daily", "2026-01-31T00:00:00.5", "2026-01-31T00:00:00", "2026-02-01T00:00:00"),
        ("0 4 29 2 *", "2026-01-31T04:00:00", "2024-02-29T04:00:00", "2028-02-29T04:00:00"),
        ("*/15 9-17 * * MON-FRI", "2026-01-31T12:00:00", "2026-01-30T17:45:00", "2026-02-02T09:00:00"),
    ],
)
def test_latest_and_next_slot_of_a_time(schedule: str, now: str, latest: str, following: str) -> None:
    assert schedule_fault(schedule) is None
    assert latest_slot_s(schedule, at(now)) == at(latest)
    assert next_slot_s(schedule, at(now)) == at(following)


@pytest.mark.parametrize("schedule", ["61 * * * *", "* * *", "0 0 0 * * *", "@never", "x", "0 0 31 2 *"])
def test_an_invalid_schedule_is_reported_with_an_example(schedule: str) -> None:
    found = schedule_fault(schedule)
    assert found is not None
    assert repr(schedule) in found
    assert "'17 * * * *'" in found


def test_the_latest_request_of_each_job_counts() -> None:
    text = "offload@2026-01-31T04:00:30Z, rates@2026-01-31T04:00:00+01:00,offload@2026-01-31T03:00:00Z"
    found = requested_runs(text, JOBS, at("2026-01-31T04:00:31"))
    assert found.slots_s == {"offload": at("2026-01-31T04:00:30"), "rates": at("2026-01-31T03:00:00")}
    assert found.faults == ()
    assert requested_runs(None, JOBS, 0).slots_s == {}


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ("offload", "expected JOB@TIME"),
        ("offload@now", "expected JOB@TIME"),
        ("offload@2026-01-31T04:00:00", "no time zone"),
        ("offlaod@2026-01-31T04:00:00Z", "declared jobs: offload, rates"),
        ("offload@2099-01-31T04:00:00Z", "in the future"),
    ],
)
def test_an_invalid_request_is_reported(text: str, fragment: str) -> None:
    found = requested_runs(text, JOBS, at("2026-01-31T04:00:00"))
    assert found.slots_s == {}
    assert fragment in found.faults[0]
    assert repr(text) in found.faults[0]
