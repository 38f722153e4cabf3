"""Runs that start, runs that are deleted, and their status."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from quire_jobs.analytics.parameters import AnalysisParameters
from quire_jobs.errors import JobOptionsError
from quire_jobs.job import parse_parameters
from quire_operator.api.bookie import Bookie
from quire_operator.api.conditions import Finding
from quire_operator.api.managed_ledger import JobState, ManagedLedger
from quire_operator.builders.job_runs import Slot
from quire_operator.plan import actions as act
from quire_operator.plan.jobs import BUSY_S, ENDING, REFUSED_S, STARTS_MAX, VANISHED, JobsPlan, ending, plan_jobs
from quire_operator.plan.jobs_observation import JobsObservation, ObservedRun, Refusal, parse_termination
from quire_operator.plan.ledger_observation import LedgerObservation
from tests.support.kube_resources import bookie, managed_ledger

NOON = datetime(2026, 1, 31, 12, 0, tzinfo=UTC).timestamp()
OFFLOAD: dict[str, Any] = {"target": "s3://cold", "schedule": "17 * * * *"}
RATES: dict[str, Any] = {"name": "rates", "kind": "throughput", "output": "file:///r", "schedule": "@daily"}
CONDITIONS = {"analytics": "AnalyticsHealthy", "jobs_declared": "JobsHealthy"}
NEWEST: dict[str, Any] = {"name": "newest", "kind": "compact", "params": {"topics": "a"}}


def seen(
    now_s: float = NOON,
    jobs: JobsObservation | None = None,
    annotation: str | None = None,
    jobs_declared: Sequence[dict[str, Any]] = (),
    **spec: Any,
) -> LedgerObservation:
    manifest = managed_ledger(**({"offload": OFFLOAD, "jobs": list(jobs_declared)} | spec))
    manifest["metadata"] |= {"namespace": "ns", "uid": "u"}
    if annotation is not None:
        manifest["metadata"]["annotations"] = {"quire.dev/run-job": annotation}
    resource = ManagedLedger.model_validate(manifest)
    return LedgerObservation(resource, now_s, Bookie.model_validate(bookie()), jobs=jobs or JobsObservation())


def after(
    what: LedgerObservation, former: JobsPlan, now_s: float, jobs: JobsObservation | None = None
) -> LedgerObservation:
    """Return a later observation, with the status that the former plan wrote."""
    status = what.resource.status.model_copy(update={"jobs": former.rows})
    resource = what.resource.model_copy(update={"status": status})
    return replace(what, resource=resource, now_s=now_s, jobs=what.jobs if jobs is None else jobs)


def plan(
    what: LedgerObservation, *, may_act: bool = True, ready: bool = True, image: str | None = "jobs:1"
) -> JobsPlan:
    return plan_jobs(what, image, may_act=may_act, ready=ready)


def run(state: JobState, at_s: float, job: str = "offload", **more: Any) -> ObservedRun:
    slot = Slot(at_s)
    ended = {"ended_at": slot.rfc3339} if state in (JobState.SUCCEEDED, JobState.FAILED) else {}
    name = f"orders-{job}-{slot.stamp}"
    return ObservedRun(name, f"uid-{name}", job, at_s, "batch/v1", "Job", state, **(ended | more))


def begun(found: JobsPlan) -> list[str]:
    return [one.manifest["metadata"]["name"] for one in found.actions if isinstance(one, act.StartRun)]


def gone(found: JobsPlan) -> list[str]:
    return [one.name for one in found.actions if isinstance(one, act.DeleteRun)]


def events(found: JobsPlan) -> list[str]:
    return [one.reason for one in found.actions if isinstance(one, act.Emit)]


def finding(found: JobsPlan, kind: str) -> Finding:
    return next(one for one in found.findings if one.type == kind)


def test_a_new_job_waits_for_its_first_slot_and_runs_no_earlier_one() -> None:
    first = plan(seen())
    assert begun(first) == []
    row = first.rows[0]
    assert (row.state, row.next_slot, row.since) == ("Pending", "2026-01-31T12:17:00Z", "2026-01-31T12:00:00Z")
    assert first.requeue_s == 17 * 60
    assert finding(first, "OffloadHealthy").status == "Unknown"
    due = plan(after(seen(), first, NOON + 17 * 60))
    assert begun(due) == ["orders-offload-20260131t1217"]
    assert [one.event.reason for one in due.actions if isinstance(one, act.StartRun)] == ["RunStarted"]


def test_a_run_is_recorded_when_it_is_observed_not_when_it_is_created() -> None:
    first = plan(seen())
    due = plan(after(seen(), first, NOON + 1020))
    again = plan(after(seen(), due, NOON + 1021))
    assert begun(again) == begun(due), "the object may not have been created"
    runs = JobsObservation((run(JobState.PENDING, NOON + 1020),))
    known = plan(after(seen(), again, NOON + 1022, runs))
    assert begun(known) == []
    assert known.rows[0].run_id == "orders-offload-20260131t1217"
    assert known.requeue_s == 2


def refusing(what: LedgerObservation, now_s: float) -> tuple[LedgerObservation, list[str]]:
    """Return the observation after a plan whose runs are all refused, and the runs that it started."""
    what = replace(what, now_s=now_s)
    asked = [one.job for one in plan(what).actions if isinstance(one, act.StartRun)]
    refused = dict(what.jobs.refused) | {job: Refusal("the quota is used up", now_s) for job in asked}
    return replace(what, jobs=replace(what.jobs, refused=refused)), asked


def test_a_refused_run_is_reported_and_retried_later() -> None:
    due_s = NOON + 1020
    refused, asked = refusing(after(seen(), plan(seen()), due_s), due_s)
    found = plan(refused)
    assert (asked, begun(found)) == (["offload"], [])
    assert (found.rows[0].state, found.rows[0].reason) == ("Pending", "the quota is used up")
    assert finding(found, "OffloadHealthy").reason == "CannotRun"
    assert found.requeue_s == REFUSED_S
    assert plan(replace(refused, now_s=due_s + 10)).requeue_s == REFUSED_S - 10
    again = plan(after(refused, found, due_s + REFUSED_S))
    assert len(begun(again)) == 1 and again.rows == found.rows, "success is not reported early"


def test_a_refusal_of_a_run_that_is_no_longer_due_is_not_reported() -> None:
    refused = {"offload": Refusal("the quota is used up", NOON)}
    found = plan(replace(seen(), jobs=JobsObservation(refused=refused)))
    assert (found.rows[0].reason, found.requeue_s) == ("waits for its first scheduled time", 17 * 60)


def test_refused_runs_block_no_others_and_are_not_retried_in_every_reconciliation() -> None:
    names = [f"a{number}" for number in range(3 * STARTS_MAX - 1)]
    analytics = [{"name": name, "kind": "keys", "output": "file:///mnt/o", "schedule": "17 * * * *"} for name in names]
    wanted = seen(analytics=analytics)
    observed = after(wanted, plan(wanted), NOON + 1020)
    all_asked: list[str] = []
    for number in range(3):
        observed, asked = refusing(observed, NOON + 1020 + number * BUSY_S)
        assert len(asked) == STARTS_MAX
        all_asked += asked
    assert sorted(all_asked) == sorted([*names, "offload"])
    quiet = plan(observed)
    assert begun(quiet) == [] and quiet.requeue_s == REFUSED_S - 2 * BUSY_S
    assert {row.reason for row in quiet.rows} == {"the quota is used up"}
    later = plan(replace(observed, now_s=NOON + 1020 + REFUSED_S))
    assert len(begun(later)) == STARTS_MAX and later.rows == quiet.rows


def test_a_running_job_does_not_cause_retries_of_a_refused_one() -> None:
    wanted = seen(analytics=[RATES | {"schedule": "17 * * * *"}])
    runs = JobsObservation((run(JobState.RUNNING, NOON + 1020, "rates"),))
    observed, asked = refusing(after(wanted, plan(wanted), NOON + 1020, runs), NOON + 1020)
    assert asked == ["offload"]
    found = plan(replace(observed, now_s=NOON + 1020 + BUSY_S))
    assert (begun(found), found.requeue_s) == ([], BUSY_S)


def test_only_the_latest_missed_slot_has_a_run() -> None:
    found = plan(after(seen(), plan(seen()), NOON + 10 * 3600))
    assert begun(found) == ["orders-offload-20260131t2117"]


def test_one_run_at_a_time_and_the_next_slot_waits() -> None:
    first = plan(seen())
    going = JobsObservation((run(JobState.RUNNING, NOON + 1020),))
    busy = plan(after(seen(), first, NOON + 3 * 3600, going))
    assert begun(busy) == []
    assert busy.rows[0].state == "Running"
    ended = JobsObservation((run(JobState.SUCCEEDED, NOON + 1020),))
    assert begun(plan(after(seen(), busy, NOON + 3 * 3600, ended))) == ["orders-offload-20260131t1417"]


def test_a_slot_whose_run_was_deleted_has_no_second_run() -> None:
    ended = JobsObservation((run(JobState.SUCCEEDED, NOON + 1020),))
    known = plan(after(seen(), plan(seen()), NOON + 1800, ended))
    later = plan(after(seen(), known, NOON + 1801, JobsObservation()))
    assert begun(later) == []
    assert (later.rows[0].state, later.rows[0].last_success) == ("Succeeded", "2026-01-31T12:17:00Z")


def test_a_suspended_job_runs_only_on_request() -> None:
    suspended = OFFLOAD | {"suspend": True}
    first = plan(seen(offload=suspended))
    assert (first.rows[0].state, first.rows[0].next_slot) == ("Suspended", None)
    assert begun(plan(after(seen(offload=suspended), first, NOON + 7200))) == []
    wish = "offload@2026-01-31T13:59:58Z"
    asked = plan(after(seen(offload=suspended, annotation=wish), first, NOON + 7200))
    assert begun(asked) == ["orders-offload-20260131t135958"]
    runs = JobsObservation((run(JobState.SUCCEEDED, NOON + 7198),))
    assert begun(plan(after(seen(offload=suspended, annotation=wish), asked, NOON + 7300, runs))) == []


def test_a_job_without_a_schedule_runs_on_request() -> None:
    found = plan(seen(offload={"target": "s3://cold"}))
    assert (found.rows[0].reason, found.requeue_s) == ("runs on request", float("inf"))
    wish = seen(offload={"target": "s3://cold"}, annotation="offload@2026-01-31T11:59:00Z")
    assert begun(plan(wish)) == ["orders-offload-20260131t1159"]


def test_an_invalid_request_is_a_condition() -> None:
    found = plan(seen(annotation="ofload@2026-01-31T11:59:00Z"))
    assert begun(found) == []
    assert "declared jobs: offload" in finding(found, "RunRequest").message


@pytest.mark.parametrize(
    "place", ["file:///r", "s3://b/r", "s3a://b", "gs://b", "az://c", "abfss://c@a/r", "ftp://b", "r"]
)
def test_output_urls_are_accepted_like_in_the_job(place: str) -> None:
    try:
        parse_parameters(AnalysisParameters, {"output": place})
        expected = "Unknown"
    except JobOptionsError:
        expected = "False"
    found = plan(seen(analytics=[RATES | {"output": place}]))
    assert finding(found, "AnalyticsHealthy").status == expected


def test_old_runs_and_all_runs_of_removed_jobs_are_deleted() -> None:
    ended = [run(JobState.SUCCEEDED, NOON - hours * 3600) for hours in range(5)]
    others = [run(JobState.RUNNING, NOON, "gone"), run(JobState.FAILED, NOON - 60, "gone")]
    found = plan(seen(jobs=JobsObservation((*ended, *others)), spark={"runsKept": 2}))
    assert sorted(gone(found)) == sorted(one.name for one in (*ended[2:], *others))
    assert gone(plan(seen(jobs=JobsObservation(tuple(replace(one, deleting=True) for one in ended))))) == []


def test_a_removed_job_stays_in_the_status_until_its_runs_are_gone() -> None:
    known = plan(seen(jobs=JobsObservation((run(JobState.RUNNING, NOON),), ("driver",))))
    without = seen(offload=None)
    going = plan(after(without, known, NOON + 1, JobsObservation((run(JobState.RUNNING, NOON),), ("driver",))))
    assert len(gone(going)) == 1
    assert [(row.name, row.reason) for row in going.rows] == [("offload", ENDING)]
    driver = plan(after(without, going, NOON + 2, JobsObservation((), ("driver",))))
    assert [row.name for row in driver.rows] == ["offload"] and driver.requeue_s == 2
    assert plan(after(without, driver, NOON + 3, JobsObservation())).rows == ()


def test_a_request_of_a_former_job_of_this_name_does_not_run() -> None:
    wish = "offload@2026-01-31T11:49:59Z"
    first = plan(seen(annotation=wish))
    assert begun(first) == []
    assert begun(plan(after(seen(annotation=wish), first, NOON + 60))) == []
    assert begun(plan(seen(annotation="offload@2026-01-31T11:50:00Z"))) == ["orders-offload-20260131t1150"]


def test_an_ended_run_emits_one_event_and_sets_the_condition() -> None:
    first = plan(seen())
    failed = JobsObservation((run(JobState.FAILED, NOON + 1020, reason="bucket cold: access denied", pod="p"),))
    told = plan(after(seen(), first, NOON + 1100, failed))
    assert events(told) == ["RunFailed"]
    assert told.rows[0].pod == "p"
    assert finding(told, "OffloadHealthy").status == "False"
    assert "access denied" in finding(told, "OffloadHealthy").message
    again = plan(after(seen(), told, NOON + 1101, failed))
    assert events(again) == []
    going = JobsObservation((*failed.runs, run(JobState.RUNNING, NOON + 4620)))
    running = plan(after(seen(), again, NOON + 4630, going))
    assert finding(running, "OffloadHealthy").status == "False", "the latest ended run counts until the next one ends"
    good = JobsObservation((*failed.runs, run(JobState.SUCCEEDED, NOON + 4620, outputs=("s3://cold",))))
    well = plan(after(seen(), running, NOON + 4700, good))
    assert events(well) == ["RunSucceeded"]
    assert well.rows[0].outputs == ("s3://cold",)
    assert finding(well, "OffloadHealthy").status == "True"


def test_a_deleted_run_has_failed_and_emits_one_event() -> None:
    going = plan(after(seen(), plan(seen()), NOON + 1030, JobsObservation((run(JobState.RUNNING, NOON + 1020),))))
    found = plan(after(seen(), going, NOON + 1060, JobsObservation()))
    assert (found.rows[0].state, found.rows[0].reason) == ("Failed", VANISHED)
    assert events(found) == ["RunFailed"]
    again = plan(after(seen(), found, NOON + 1062, JobsObservation()))
    assert (events(again), begun(again)) == ([], [])


@pytest.mark.parametrize(
    ("spec", "fragment"),
    [
        (
            {"offload": OFFLOAD | {"schedule": "61 * * * *"}},
            "schedule '61 * * * *' is not a cron expression (bad minute)",
        ),
        ({"offload": OFFLOAD | {"credentialsRef": {"name": "s3"}}}, "Secret s3 not found"),
        ({"analytics": [RATES | {"kind": "thruput"}]}, "kind 'thruput' does not exist; did you mean throughput?"),
        ({"offload": OFFLOAD | {"params": {"rate": "1"}}}, "params: rate is set by the operator"),
        ({"offload": OFFLOAD | {"params": {"blocksize": "1"}}}, "did you mean blockSize?"),
        ({"analytics": [RATES | {"kind": "offload"}]}, "declare it as spec.offload"),
        ({"analytics": [RATES | {"kind": "compact"}]}, "kind 'compact' writes no report: declare it in spec.jobs"),
        ({"jobs_declared": [NEWEST | {"kind": "backlog"}]}, "kind 'backlog' is an analysis: declare it in analytics"),
        ({"jobs_declared": [NEWEST | {"kind": "offload"}]}, "declare it as spec.offload"),
        ({"jobs_declared": [NEWEST | {"kind": "compakt"}]}, "kind 'compakt' does not exist; did you mean compact?"),
        ({"jobs_declared": [NEWEST | {"params": {}}]}, "params: topics is missing; compact requires it"),
        ({"jobs_declared": [NEWEST | {"params": {"topics": "a", "output": "file:///r"}}]}, "output is not a parameter"),
        ({"analytics": [RATES | {"params": {"topic": "a"}}]}, "did you mean topics?"),
        ({"analytics": [RATES | {"params": {"metadata": "a"}}]}, "metadata is set by the operator"),
        ({"analytics": [RATES | {"output": "reports"}]}, "output 'reports' is not a valid URL"),
        ({"spark": {"conf": {"spark.master": "local"}}}, "spark.master is set by another field"),
        ({"spark": {"conf": {"log": "x"}}}, "their names begin with spark."),
        ({"spark": {"driver": {"resources": {"limits": {"memory": "512Mi"}}}}}, "memory 512Mi is too little"),
        ({"spark": {"executors": {"resources": {"limits": {"memory": "1e9"}}}}}, "'1e9' is not a quantity"),
        ({"spark": {"launcher": "SparkApplication"}}, "no Spark operator is installed"),
        ({"brokers": {"authentication": {"tokenKeySecret": "keys"}}}, "neither jobs.token nor operator.token"),
    ],
)
def test_a_faulty_job_is_a_condition_and_does_not_run(spec: dict[str, Any], fragment: str) -> None:
    wish = {"annotation": "offload@2026-01-31T11:59:00Z,rates@2026-01-31T11:59:00Z,newest@2026-01-31T11:59:00Z"}
    offload = OFFLOAD if CONDITIONS.keys().isdisjoint(spec) else None
    found = plan(seen(**({"offload": offload} | spec | wish)))
    assert begun(found) == []
    kind = next((kind for field, kind in CONDITIONS.items() if field in spec), "OffloadHealthy")
    assert (finding(found, kind).status, finding(found, kind).reason) == ("False", "CannotRun")
    assert fragment in finding(found, kind).message
    assert fragment in found.rows[0].reason


def test_a_missing_image_is_reported_with_the_field() -> None:
    found = plan(seen(), image=None)
    assert "spark.image" in finding(found, "OffloadHealthy").message
    assert finding(plan(seen(spark={"image": "mine:1"}), image=None), "OffloadHealthy").status == "Unknown"


def test_a_job_without_a_report_runs_and_has_its_own_condition() -> None:
    wish = "newest@2026-01-31T11:59:00Z"
    first = plan(seen(jobs_declared=[NEWEST], analytics=[RATES], annotation=wish))
    assert begun(first) == ["orders-newest-20260131t1159"]
    assert [(row.name, row.kind) for row in first.rows] == [
        ("offload", "offload"),
        ("rates", "throughput"),
        ("newest", "compact"),
    ]
    failed = JobsObservation((run(JobState.FAILED, NOON - 60, "newest", reason="a newer compaction won"),))
    then = plan(after(seen(jobs_declared=[NEWEST], analytics=[RATES]), first, NOON + 60, failed))
    assert finding(then, "JobsHealthy").message.endswith("a newer compaction won")
    assert {finding(then, kind).status for kind in ("OffloadHealthy", "AnalyticsHealthy")} == {"Unknown"}


def test_a_faulty_job_does_not_block_others() -> None:
    both = seen(analytics=[RATES, RATES | {"name": "bad", "kind": "x"}], annotation="rates@2026-01-31T11:59:00Z")
    found = plan(both)
    assert begun(found) == ["orders-rates-20260131t1159"]
    assert finding(found, "AnalyticsHealthy").message.startswith("bad: kind 'x'")


def test_no_run_begins_while_paused_or_without_a_broker() -> None:
    wish = seen(annotation="offload@2026-01-31T11:59:00Z")
    assert plan(wish, may_act=False).actions == ()
    waits = plan(wish, ready=False)
    assert begun(waits) == []
    assert "waits until a broker responds" in waits.rows[0].reason


def test_runs_are_spark_applications_if_a_spark_operator_is_installed() -> None:
    jobs = JobsObservation(applications=("spark.apache.org/v1",))
    wish = "offload@2026-01-31T11:59:00Z"

    def kinds(**spark: Any) -> list[str]:
        found = plan(seen(jobs=jobs, annotation=wish, spark=spark))
        return [one.manifest["apiVersion"] for one in found.actions if isinstance(one, act.StartRun)]

    assert kinds() == kinds(launcher="SparkApplication") == ["spark.apache.org/v1"]
    assert kinds(launcher="Job") == kinds(executors={"replicas": 0}) == ["batch/v1"]


def test_runs_end_before_the_namespace_is_deleted() -> None:
    runs = (run(JobState.RUNNING, NOON), run(JobState.SUCCEEDED, NOON - 60))
    actions, left = ending(seen(jobs=JobsObservation(runs, drivers=("d",))))
    assert [one.name for one in actions if isinstance(one, act.DeleteRun)] == [one.name for one in runs]
    assert left is not None
    assert runs[0].name in left
    assert ending(seen(jobs=JobsObservation(drivers=("d",))))[1] is not None
    assert ending(seen())[1] is None


@pytest.mark.parametrize(
    ("text", "reason", "outputs"),
    [
        ('{"kind": "offload", "outcome": "failed", "error": "no bucket"}', "no bucket", ()),
        ('log\n{"outcome": "partly", "problems": [{"subject": "7", "reason": "open"}]}', "7: open", ()),
        ('{"counts": {"ledgers_offloaded": 3}, "outputs": ["s3://a"]}', "ledgers offloaded 3", ("s3://a",)),
        ("Traceback\nquire: etcd does not answer\n", "etcd does not answer", ()),
        ('{"problems": [1, {"x": 2}], "outputs": "a", "counts": []}', "?: ?", ()),
    ],
)
def test_the_termination_message_of_a_driver_is_parsed(text: str, reason: str, outputs: tuple[str, ...]) -> None:
    found = parse_termination(text)
    assert found is not None
    assert (found.reason, found.outputs) == (reason, outputs)
    assert parse_termination("\n") is None
