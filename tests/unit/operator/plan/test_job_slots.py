"""When jobs are due."""

from datetime import UTC, datetime

import pytest

from quire_operator.plan.job_slots import asked, latest_slot_s, next_slot_s, schedule_fault

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
def test_slots_around_a_time(schedule: str, now: str, latest: str, following: str) -> None:
    assert schedule_fault(schedule) is None
    assert latest_slot_s(schedule, at(now)) == at(latest)
    assert next_slot_s(schedule, at(now)) == at(following)


@pytest.mark.parametrize("schedule", ["61 * * * *", "* * *", "0 0 0 * * *", "@never", "x", "0 0 31 2 *"])
def test_what_is_no_schedule_is_named_with_an_example(schedule: str) -> None:
    found = schedule_fault(schedule)
    assert found is not None
    assert repr(schedule) in found
    assert "'17 * * * *'" in found


def test_what_people_ask_for_counts_once_for_each_job() -> None:
    text = "offload@2026-01-31T04:00:30Z, rates@2026-01-31T04:00:00+01:00,offload@2026-01-31T03:00:00Z"
    found = asked(text, JOBS, at("2026-01-31T04:00:31"))
    assert found.slots_s == {"offload": at("2026-01-31T04:00:30"), "rates": at("2026-01-31T03:00:00")}
    assert found.faults == ()
    assert asked(None, JOBS, 0).slots_s == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("offload", "expected JOB@TIME"),
        ("offload@now", "expected JOB@TIME"),
        ("offload@2026-01-31T04:00:00", "no time zone"),
        ("offlaod@2026-01-31T04:00:00Z", "declared jobs: offload, rates"),
        ("offload@2099-01-31T04:00:00Z", "in the future"),
    ],
)
def test_a_wish_that_cannot_be_understood_is_named(text: str, said: str) -> None:
    found = asked(text, JOBS, at("2026-01-31T04:00:00"))
    assert found.slots_s == {}
    assert said in found.faults[0]
    assert repr(text) in found.faults[0]
